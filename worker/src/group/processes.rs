//! The processes of a group on one machine: the leader starts a child for each other rank, tells it
//! everything it needs, and ends all of them when one is lost.
//!
//! A rank ends when its standard input, the *leash*, closes, which happens when the leader ends for any
//! reason. The first line on the leash is the [`Welcome`]. The rank writes its [`Answer`]s to standard
//! output, one a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_node::clock;

use super::memory::GroupMemory;
use super::pulse::{BEAT, Pulse};
use super::watch::Watch;
use crate::config::Precision;

/// Longest line of a welcome or an answer, bytes.
const MAX_LINE: u64 = 1 << 20;
/// Exit code of a rank whose leader has ended or is silent.
const LEFT_ALONE: i32 = 1;
/// How long a rank may take from its start until it joins.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Most answers queued.
const ANSWERS_IN_FLIGHT: usize = 256;

/// A rank's whole configuration, sent by the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The rank, from 1.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Drawn at each start of the group.
    pub epoch: u64,
    /// Process id of the leader.
    pub leader: u32,
    /// Number of the inherited group memory.
    pub memory: i32,
    /// Longest wait for other ranks within a step.
    pub patience: Duration,
    /// What all ranks must agree on.
    pub terms: Terms,
    /// Directory of the model.
    pub model: PathBuf,
    /// Compute threads.
    pub threads: usize,
    /// Blocks in the KV cache.
    pub kv_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Rows of the largest expected step.
    pub max_rows: u32,
    /// Number types.
    pub precision: Precision,
    /// Directory of packed weights.
    pub packed_cache_dir: Option<PathBuf>,
}

/// What ranks must agree on to draw the same tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Version of the binary.
    pub version: String,
    /// Fingerprint of the model's files.
    pub model: u64,
    /// Arithmetic of the backend.
    pub arithmetic: String,
}

impl Terms {
    /// Why a rank with these terms may not join a leader with the terms `leader`.
    pub fn differ(&self, rank: usize, leader: &Self) -> Option<String> {
        let pairs = [
            ("version", self.version.clone(), leader.version.clone()),
            ("model", format!("{:016x}", self.model), format!("{:016x}", leader.model)),
            ("arithmetic", self.arithmetic.clone(), leader.arithmetic.clone()),
        ];
        let (what, its, own) = pairs.into_iter().find(|(_, its, own)| its != own)?;
        Some(format!(
            "rank {rank} has the {what} `{its}`, rank 0 has `{own}`; all ranks need the same binary and model"
        ))
    }
}

/// A rank's message to its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It has read its welcome; these are its own terms.
    Joined(Terms),
    /// Its part of the model is loaded.
    Loaded,
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Answer {
    /// Writes the answer to standard output. Errors are ignored: if the leader has ended, the leash closes,
    /// too.
    pub fn emit(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }
}

/// How the group's other processes are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCommand {
    /// The binary.
    pub binary: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// The started processes of a group.
pub struct Processes {
    watch: Watch,
    answers: Receiver<(usize, Answer)>,
    terms: Terms,
    ranks: usize,
}

type Children = Arc<Mutex<Vec<Arc<Mutex<Child>>>>>;

impl Processes {
    /// Starts a process for each rank but the leader; `welcome` says what each is told.
    ///
    /// # Errors
    /// If a process or thread cannot be started.
    pub fn start(
        memory: &GroupMemory,
        command: &RankCommand,
        welcome: impl Fn(usize) -> Welcome,
    ) -> std::io::Result<Self> {
        let children = Children::default();
        let killed = children.clone();
        let watch = Watch::new(memory.clone(), move || kill_all(&killed));
        let (sender, answers) = sync_channel(ANSWERS_IN_FLIGHT);
        for rank in 1..memory.ranks() {
            let start = Start {
                rank,
                command: command.clone(),
                welcome: serde_json::to_string(&welcome(rank))?,
                watch: watch.clone(),
                children: children.clone(),
                answers: sender.clone(),
            };
            std::thread::Builder::new().name(format!("skein-rank-{rank}")).spawn(move || start.run())?;
        }
        watch.listen()?;
        Ok(Self { watch, answers, terms: welcome(0).terms, ranks: memory.ranks() })
    }

    /// Waits until every rank has joined.
    ///
    /// # Errors
    /// A rank that was lost, or whose terms differ.
    pub fn joined(&self) -> Result<(), String> {
        self.each(Some(JOIN_TIMEOUT), |rank, answer| match answer {
            Answer::Joined(terms) => terms.differ(rank, &self.terms).map_or(Ok(()), Err),
            other => Err(format!("rank {rank} answers {other:?} before it has joined")),
        })
    }

    /// Waits until every rank has loaded its part; a rank that is alive may take any time.
    ///
    /// # Errors
    /// A rank that was lost, or could not load.
    pub fn loaded(self) -> Result<Watch, String> {
        self.each(None, |rank, answer| match answer {
            Answer::Loaded => Ok(()),
            Answer::Failed { reason } => Err(format!("rank {rank} cannot load its part: {reason}")),
            Answer::Joined(_) => Err(format!("rank {rank} joins twice")),
        })?;
        Ok(self.watch.clone())
    }

    /// Takes one answer of each rank.
    fn each(
        &self,
        within: Option<Duration>,
        take: impl Fn(usize, Answer) -> Result<(), String>,
    ) -> Result<(), String> {
        let began = clock::now();
        let mut missing: Vec<usize> = (1..self.ranks).collect();
        while let Some(first) = missing.first() {
            let taken = match self.answers.recv_timeout(BEAT) {
                Ok((rank, answer)) => {
                    missing.retain(|other| *other != rank);
                    take(rank, answer)
                }
                Err(RecvTimeoutError::Timeout)
                    if within.is_none_or(|within| clock::now().since(began) < within) =>
                {
                    Ok(())
                }
                Err(_) => Err(format!("rank {first} has not answered")),
            };
            taken.map_err(|why| self.watch.fail(why))?;
            if let Some(why) = self.watch.failure() {
                return Err(why);
            }
        }
        Ok(())
    }

    /// Ends the group because of `why`; returns why it has ended.
    pub fn fail(&self, why: String) -> String {
        self.watch.fail(why)
    }
}

/// A child process that is about to be started.
struct Start {
    rank: usize,
    command: RankCommand,
    welcome: String,
    watch: Watch,
    children: Children,
    answers: SyncSender<(usize, Answer)>,
}

impl Start {
    /// Starts the process, passes on its answers, and reports its end.
    ///
    /// Runs on a thread that lives as long as the child: the system kills the child when the thread that
    /// started it ends.
    fn run(self) {
        let rank = self.rank;
        let end = self.watch_child().unwrap_or_else(|error| format!("cannot be started: {error}"));
        self.watch.fail_because_of(rank, format!("rank {rank} {end}"));
    }

    fn watch_child(&self) -> std::io::Result<String> {
        let mut command = Command::new(&self.command.binary);
        command.args(&self.command.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the leader, which lets requests finish.
        command.process_group(0);
        let mut child = command.spawn()?;
        let (mut leash, out) = (child.stdin.take(), child.stdout.take());
        let child = Arc::new(Mutex::new(child));
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child.clone());
        if self.watch.failure().is_some() {
            kill(&child); // the group ended before this child was in the list
        }
        if let Some(leash) = &mut leash {
            // Fails if the child has ended, which is noticed below.
            let _ = writeln!(leash, "{}", self.welcome);
        }
        let mut failed = None;
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok)) {
            match serde_json::from_str(&line) {
                Ok(Answer::Failed { reason }) => failed = Some(format!("ended: {reason}")),
                Ok(answer) => drop(self.answers.try_send((self.rank, answer))),
                Err(_) => tracing::debug!(rank = self.rank, line, "other output of a rank"),
            }
        }
        // Its output is closed: it has ended, or is about to.
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
        drop(leash);
        Ok(failed.unwrap_or_else(|| format!("ended with {status}")))
    }
}

fn kill(child: &Mutex<Child>) {
    // Fails if it has ended.
    let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
}

fn kill_all(children: &Children) {
    children.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|child| kill(child));
}

/// Reads the welcome from standard input, and from now on ends this process without exit handlers when its
/// leader ends or is silent. Call it first.
///
/// # Errors
/// If this process was not started by a leader.
#[cfg(target_os = "linux")]
pub fn join() -> Result<(Welcome, GroupMemory), String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(MAX_LINE).read_line(&mut line);
    read.map_err(|error| error.to_string())?;
    let welcome: Welcome = serde_json::from_str(&line).map_err(|error| {
        format!(
            "no welcome on standard input ({error}); only a worker with --tensor-parallel-size starts ranks"
        )
    })?;
    if !skein_sys::process::die_with_parent(welcome.leader) {
        return Err("the leader has ended".into());
    }
    let memory = GroupMemory::inherited(welcome.memory, welcome.ranks, welcome.patience)
        .map_err(|error| format!("cannot map the group's memory: {error}"))?;
    let rank = welcome.rank;
    let end = || skein_sys::process::exit_without_handlers(LEFT_ALONE);
    let leash = move || {
        while std::io::stdin().lock().read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        end();
    };
    let beats = memory.clone();
    let beat = move || {
        let mut pulse = Pulse::new(1, clock::now());
        loop {
            beats.beat(rank);
            if let Some((_, silent)) = pulse.look(clock::now(), std::iter::once(beats.beats(0))) {
                tracing::error!(rank, "the leader has been silent for {} ms", silent.as_millis());
                end();
            }
            std::thread::sleep(BEAT);
        }
    };
    let spawned = [
        std::thread::Builder::new().name("leash".into()).spawn(leash),
        std::thread::Builder::new().name("skein-group".into()).spawn(beat),
    ];
    for thread in spawned {
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    Ok((welcome, memory))
}

/// The command that starts ranks of the group: this binary with `arguments`.
///
/// # Errors
/// If the system cannot tell the path of this binary.
pub fn this_binary(arguments: &[&str]) -> std::io::Result<RankCommand> {
    let binary: &Path = &std::env::current_exe()?;
    Ok(RankCommand {
        binary: binary.to_owned(),
        arguments: arguments.iter().map(|&argument| argument.into()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { version: "1.2.3".into(), model: 7, arithmetic: "cpu 6".into() }
    }

    fn start(script: &str) -> (Processes, GroupMemory) {
        let memory = GroupMemory::create(2, Duration::from_secs(5)).unwrap();
        let command = RankCommand { binary: "sh".into(), arguments: vec!["-c".into(), script.into()] };
        let welcome = |rank| Welcome {
            rank,
            ranks: 2,
            epoch: 1,
            leader: std::process::id(),
            memory: 0,
            patience: Duration::from_secs(5),
            terms: terms(),
            model: PathBuf::from("model"),
            threads: 1,
            kv_blocks: 1,
            block_size: 16,
            max_rows: 1,
            precision: Precision::default(),
            packed_cache_dir: None,
        };
        (Processes::start(&memory, &command, welcome).unwrap(), memory)
    }

    fn joins(terms: &Terms) -> String {
        format!("read -r welcome; echo '{}'", serde_json::to_string(&Answer::Joined(terms.clone())).unwrap())
    }

    #[test]
    fn another_version_model_or_arithmetic_is_refused_with_both_sides_named() {
        assert_eq!(terms().differ(1, &terms()), None);
        for (other, expected) in [
            (Terms { version: "1.2.4".into(), ..terms() }, "the version `1.2.4`, rank 0 has `1.2.3`"),
            (Terms { model: 8, ..terms() }, "`0000000000000008`, rank 0 has `0000000000000007`"),
            (Terms { arithmetic: "cpu 5".into(), ..terms() }, "the arithmetic `cpu 5`, rank 0 has `cpu 6`"),
        ] {
            let began = clock::now();
            let (processes, memory) = start(&format!("{}; exec sleep 600", joins(&other)));
            let why = processes.joined().unwrap_err();
            assert!(why.contains("rank 1 has") && why.contains(expected), "{why}");
            assert!(clock::now().since(began) < Duration::from_secs(5));
            assert!(memory.cause().is_some());
        }
    }

    #[test]
    fn a_killed_rank_ends_the_group_at_once() {
        let (processes, memory) = start(&format!("{}; kill -9 $$", joins(&terms())));
        let why = processes.joined().and_then(|()| processes.loaded().map(drop)).unwrap_err();
        assert!(why.starts_with("rank 1 ended with signal: 9"), "{why}");
        assert_eq!(memory.cause(), Some(1));
    }

    #[test]
    fn a_rank_that_cannot_load_says_why() {
        let failed = serde_json::to_string(&Answer::Failed { reason: "no memory".into() }).unwrap();
        let (processes, _) = start(&format!("{}; echo '{failed}'; exit 1", joins(&terms())));
        let why = processes.joined().and_then(|()| processes.loaded().map(drop)).unwrap_err();
        assert_eq!(why, "rank 1 ended: no memory");
    }

    #[test]
    fn a_stopped_rank_is_killed_with_its_group() {
        let (processes, _) = start(&format!("{}; echo $$ >&2; kill -STOP $$", joins(&terms())));
        processes.joined().unwrap();
        let why = processes.loaded().map(drop).unwrap_err();
        assert!(why.starts_with("rank 1 has been silent for "), "{why}");
    }

    #[test]
    fn a_binary_that_does_not_exist_is_named() {
        let memory = GroupMemory::create(2, Duration::from_secs(5)).unwrap();
        let command = RankCommand { binary: "/nowhere/skein".into(), arguments: Vec::new() };
        let (processes, _) = start("exit 0");
        drop(processes);
        let watch = Watch::new(memory.clone(), || ());
        let (answers, _keep) = sync_channel(1);
        let children = Children::default();
        let welcome = String::new();
        Start { rank: 1, command, welcome, watch: watch.clone(), children, answers }.run();
        assert!(watch.failure().unwrap().starts_with("rank 1 cannot be started: "));
    }
}
