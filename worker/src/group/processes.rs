//! The processes of a group on one machine: the leader starts a child for each other rank, tells it
//! everything it needs, and ends all of them when one is lost.
//!
//! A rank ends when its standard input, the *leash*, closes, which happens when the leader ends for any
//! reason. The first line on the leash is the [`Welcome`]. The rank writes its [`Answer`]s to standard
//! output, one a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_node::clock;

use super::memory::{GroupMemory, NodePlan};
use super::mesh::Peers;
use super::pulse::{BEAT, Pulse};
use super::watch::Watch;
use crate::config::{CudaConfig, Precision, SchedulerConfig};

/// Longest line of a welcome or an answer, bytes.
const MAX_LINE: u64 = 1 << 20;
/// Exit code of a rank whose leader has ended or is silent.
const LEFT_ALONE: i32 = 1;
/// How long a rank may take from its start until it joins.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Most answers queued.
const ANSWERS_IN_FLIGHT: usize = 256;

/// A rank's whole configuration, sent by the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The rank, from 1.
    pub rank: usize,
    /// The group, and the rank's node.
    pub plan: NodePlan,
    /// Address at which ranks of other nodes reach this node.
    pub address: IpAddr,
    /// Drawn at each start of the group.
    pub epoch: u64,
    /// Process id of the process that starts the rank.
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
    /// What a rank with a GPU needs to know; `None` on the CPU.
    pub cuda: Option<CudaWelcome>,
}

/// What a rank with a GPU needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CudaWelcome {
    /// Its settings; the device is that of rank 0, and those of the other ranks follow it.
    pub config: CudaConfig,
    /// Limits, which set the size of the largest step.
    pub limits: SchedulerConfig,
    /// KV cache bytes; `None` = whatever memory is left.
    pub kv_cache_memory_bytes: Option<u64>,
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
    /// It has read its welcome.
    Joined {
        /// Its own terms.
        terms: Terms,
        /// Port on which it listens for ranks of other nodes.
        port: Option<u16>,
    },
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

/// The started processes of a group on this node, and what all of its ranks answer.
pub struct Processes {
    watch: Watch,
    answers: Mutex<Receiver<(usize, Answer)>>,
    /// Ranks that had loaded before all others had joined.
    early: Vec<usize>,
    sender: SyncSender<(usize, Answer)>,
    terms: Terms,
    /// All ranks but the leader.
    ranks: Range<usize>,
    children: Children,
}

type Children = Arc<Mutex<Vec<Arc<Mutex<Started>>>>>;

/// A child process, and its standard input.
struct Started {
    child: Child,
    leash: Option<ChildStdin>,
}

impl Processes {
    /// Starts a process for each rank of the node of `memory`, but the leader. Each is told what `welcome`
    /// says, with its own number.
    ///
    /// # Errors
    /// If a process or thread cannot be started.
    pub fn start(memory: &GroupMemory, command: &RankCommand, welcome: &Welcome) -> std::io::Result<Self> {
        let children = Children::default();
        let killed = children.clone();
        let watch = Watch::new(memory.clone(), move || kill_all(&killed));
        let (sender, answers) = sync_channel(ANSWERS_IN_FLIGHT);
        for rank in memory.plan().children() {
            let start = Start {
                rank,
                command: command.clone(),
                welcome: serde_json::to_string(&Welcome { rank, ..welcome.clone() })?,
                watch: watch.clone(),
                children: children.clone(),
                answers: sender.clone(),
            };
            std::thread::Builder::new().name(format!("skein-rank-{rank}")).spawn(move || start.run())?;
        }
        watch.listen()?;
        let (ranks, terms) = (1..memory.plan().topology.ranks(), welcome.terms.clone());
        let (answers, early) = (Mutex::new(answers), Vec::new());
        Ok(Self { watch, answers, early, sender, terms, ranks, children })
    }

    /// The group's watch.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Takes the answers of other nodes' ranks.
    pub fn answers(&self) -> &SyncSender<(usize, Answer)> {
        &self.sender
    }

    /// The next answer, if there is one within `most`.
    pub fn next_answer(&self, most: Duration) -> Option<(usize, Answer)> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(most).ok()
    }

    /// Writes a line to the standard input of every process.
    pub fn tell(&self, line: &str) {
        for started in self.children.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
            // Fails if the child has ended, which is noticed elsewhere.
            if let Some(leash) = &mut started.leash {
                let _ = writeln!(leash, "{line}");
            }
        }
    }

    /// Whether any of the processes runs.
    pub fn any_runs(&self) -> bool {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.iter().any(|started| {
            // A process that is waited for has closed its output.
            started.try_lock().is_ok_and(|mut started| matches!(started.child.try_wait(), Ok(None)))
        })
    }

    /// Ends the processes.
    pub fn kill(&self) {
        kill_all(&self.children);
    }

    /// Waits until every rank has joined; returns their ports by rank, beginning with rank 1.
    ///
    /// # Errors
    /// A rank that was lost, or whose terms differ.
    pub fn joined(&mut self) -> Result<Vec<Option<u16>>, String> {
        let (mut ports, mut early) = (vec![None; self.ranks.len()], Vec::new());
        self.each(Vec::new(), Some(JOIN_TIMEOUT), |rank, answer| match answer {
            Answer::Joined { terms, port } => {
                ports[rank - 1] = port;
                terms.differ(rank, &self.terms).map_or(Ok(true), Err)
            }
            Answer::Failed { reason } => Err(format!("rank {rank} cannot join: {reason}")),
            Answer::Loaded => {
                early.push(rank);
                Ok(false)
            }
        })?;
        self.early = early;
        Ok(ports)
    }

    /// Waits until every rank has loaded its part; a rank that is alive may take any time.
    ///
    /// # Errors
    /// A rank that was lost, or could not load.
    pub fn loaded(self) -> Result<Watch, String> {
        self.each(self.early.clone(), None, |rank, answer| match answer {
            Answer::Loaded => Ok(true),
            Answer::Failed { reason } => Err(format!("rank {rank} cannot load its part: {reason}")),
            Answer::Joined { .. } => Err(format!("rank {rank} joins twice")),
        })?;
        Ok(self.watch.clone())
    }

    /// Takes answers until each rank but those that are `done` has given one that counts; `take` says
    /// whether.
    fn each(
        &self,
        done: Vec<usize>,
        within: Option<Duration>,
        mut take: impl FnMut(usize, Answer) -> Result<bool, String>,
    ) -> Result<(), String> {
        let began = clock::now();
        let mut missing: Vec<usize> = self.ranks.clone().filter(|rank| !done.contains(rank)).collect();
        while let Some(first) = missing.first() {
            let taken = match self.next_answer(BEAT) {
                Some((rank, answer)) if self.ranks.contains(&rank) => take(rank, answer).map(|counts| {
                    missing.retain(|other| *other != rank || !counts);
                }),
                Some((rank, _)) => Err(format!("there is no rank {rank}, and it answers")),
                None if within.is_none_or(|within| clock::now().since(began) < within) => Ok(()),
                None => Err(format!("rank {first} has not answered")),
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
        if let Some(leash) = &mut leash {
            // Fails if the child has ended, which is noticed below.
            let _ = writeln!(leash, "{}", self.welcome);
        }
        let child = Arc::new(Mutex::new(Started { child, leash }));
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child.clone());
        if self.watch.failure().is_some() {
            kill(&child); // the group ended before this child was in the list
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
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).child.wait()?;
        Ok(failed.unwrap_or_else(|| format!("ended with {status}")))
    }
}

fn kill(child: &Mutex<Started>) {
    // Fails if it has ended.
    let _ = child.lock().unwrap_or_else(PoisonError::into_inner).child.kill();
}

fn kill_all(children: &Children) {
    children.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|child| kill(child));
}

/// A process that was started as a rank.
pub struct RankProcess {
    /// What it was told.
    pub welcome: Welcome,
    /// Its node's memory.
    pub memory: GroupMemory,
    lines: Receiver<String>,
}

impl RankProcess {
    /// Waits for the addresses of all ranks.
    ///
    /// # Errors
    /// If they do not come in time.
    pub fn peers(&self) -> Result<Peers, String> {
        let line = self.lines.recv_timeout(JOIN_TIMEOUT);
        let line = line.map_err(|_| "the leader has sent no addresses of the other ranks".to_owned())?;
        serde_json::from_str(&line).map_err(|error| format!("these are no addresses of ranks: {error}"))
    }
}

/// Reads the welcome from standard input, and from now on ends this process without exit handlers when the
/// process that started it ends or is silent. Call it first.
///
/// # Errors
/// If this process was not started by a leader.
#[cfg(target_os = "linux")]
pub fn join() -> Result<RankProcess, String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(MAX_LINE).read_line(&mut line);
    read.map_err(|error| error.to_string())?;
    let welcome: Welcome = serde_json::from_str(&line).map_err(|error| {
        format!(
            "no welcome on standard input ({error}); only a worker with --tensor-parallel-size or              --pipeline-parallel-size starts ranks"
        )
    })?;
    if !skein_sys::process::die_with_parent(welcome.leader) {
        return Err("the leader has ended".into());
    }
    let memory = GroupMemory::inherited(welcome.memory, welcome.plan, welcome.patience)
        .map_err(|error| format!("cannot map the group's memory: {error}"))?;
    let (rank, seat) = (welcome.rank, welcome.plan.seat_of(welcome.rank));
    let end = || skein_sys::process::exit_without_handlers(LEFT_ALONE);
    let (sender, lines) = sync_channel(1);
    let leash = move || {
        let mut line = String::new();
        while std::io::stdin().lock().take(MAX_LINE).read_line(&mut line).is_ok_and(|count| count > 0) {
            // Only the first line means something, and there is room for it.
            let _ = sender.try_send(std::mem::take(&mut line));
        }
        end();
    };
    let beats = memory.clone();
    let beat = move || {
        let mut pulse = Pulse::new(1, clock::now());
        loop {
            beats.beat(seat);
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
    Ok(RankProcess { welcome, memory, lines })
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
    use crate::group::topology::Topology;

    fn terms() -> Terms {
        Terms { version: "1.2.3".into(), model: 7, arithmetic: "cpu 6".into() }
    }

    fn memory(ranks: usize) -> GroupMemory {
        let plan = NodePlan::new(Topology::new(ranks, 1, 1).unwrap(), 0, 0);
        GroupMemory::create(plan, Duration::from_secs(5)).unwrap()
    }

    fn start(script: &str) -> (Processes, GroupMemory) {
        start_ranks(2, script)
    }

    fn start_ranks(ranks: usize, script: &str) -> (Processes, GroupMemory) {
        let memory = memory(ranks);
        let command = RankCommand { binary: "sh".into(), arguments: vec!["-c".into(), script.into()] };
        let welcome = Welcome {
            rank: 0,
            plan: memory.plan(),
            address: IpAddr::from([127, 0, 0, 1]),
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
            cuda: None,
        };
        (Processes::start(&memory, &command, &welcome).unwrap(), memory)
    }

    fn joins(terms: &Terms) -> String {
        format!(
            "read -r welcome; echo '{}'",
            serde_json::to_string(&Answer::Joined { terms: terms.clone(), port: None }).unwrap()
        )
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
            let (mut processes, memory) = start(&format!("{}; exec sleep 600", joins(&other)));
            let why = processes.joined().unwrap_err();
            assert!(why.contains("rank 1 has") && why.contains(expected), "{why}");
            assert!(clock::now().since(began) < Duration::from_secs(5));
            assert!(memory.cause().is_some());
        }
    }

    #[test]
    fn a_killed_rank_ends_the_group_at_once() {
        let (mut processes, memory) = start(&format!("{}; kill -9 $$", joins(&terms())));
        let why = processes.joined().and_then(|_| processes.loaded().map(drop)).unwrap_err();
        assert!(why.starts_with("rank 1 ended with signal: 9"), "{why}");
        assert_eq!(memory.cause(), Some(1));
    }

    #[test]
    fn a_rank_may_have_loaded_before_others_have_joined() {
        let loaded = serde_json::to_string(&Answer::Loaded).unwrap();
        let joins = joins(&terms());
        // The second rank joins last.
        let late = format!("{joins}; echo '{loaded}'; exec sleep 600");
        let script = late.replacen(
            "read -r welcome;",
            "read -r welcome; case \"$welcome\" in *'\"rank\":2'*) sleep 0.5;; esac;",
            1,
        );
        let (mut processes, _) = start_ranks(3, &script);
        processes.joined().unwrap();
        assert!(processes.loaded().unwrap().failure().is_none());
    }

    #[test]
    fn a_rank_that_cannot_load_says_why() {
        let failed = serde_json::to_string(&Answer::Failed { reason: "no memory".into() }).unwrap();
        let (mut processes, _) = start(&format!("{}; echo '{failed}'; exit 1", joins(&terms())));
        let why = processes.joined().and_then(|_| processes.loaded().map(drop)).unwrap_err();
        assert_eq!(why, "rank 1 ended: no memory");
    }

    #[test]
    fn a_stopped_rank_is_killed_with_its_group() {
        let (mut processes, _) = start(&format!("{}; echo $$ >&2; kill -STOP $$", joins(&terms())));
        processes.joined().unwrap();
        let why = processes.loaded().map(drop).unwrap_err();
        assert!(why.starts_with("rank 1 has been silent for "), "{why}");
    }

    #[test]
    fn a_binary_that_does_not_exist_is_named() {
        let memory = memory(2);
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
