//! Rank processes of a group on one machine. The leader starts a child for each other rank, sends it its
//! whole configuration, and ends all of them when one is lost.
//!
//! A rank's standard input is its lifeline: the rank ends when it closes, which happens when the leader ends
//! for any reason. Its first line is the [`Welcome`]. The rank writes its [`Answer`]s to standard output, one
//! per line.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_kernels::cuda::KERNEL_CACHE_VARIABLE;
use skein_node::clock;
use skein_node::config::own_variables;

use super::heartbeat::{HEARTBEAT_INTERVAL, Heartbeats};
use super::memory::{GroupMemory, NodePlan};
use super::mesh::Peers;
use super::watch::Watch;
use crate::backend::WindowBlocks;
use crate::backend::cuda::{CudaLoadError, Fits};
use crate::config::{DeviceKind, RankCommand, WorkerConfig};

/// Longest line of a welcome or an answer, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Exit code of a rank whose leader has ended or stopped sending heartbeats.
const EXIT_LEADER_LOST: i32 = 1;
/// How long a rank may take from its start until it joins.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines that a rank gets after its welcome: the addresses of all ranks, and the agreed KV blocks.
const LINES: usize = 2;
/// Most answers queued.
const ANSWERS_IN_FLIGHT: usize = 256;

/// Whole configuration of a rank, sent by the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Number of the rank, from 1.
    pub rank: usize,
    /// Memory layout on the rank's node, with the group's topology.
    pub plan: NodePlan,
    /// Address at which ranks on other nodes reach this node.
    pub address: IpAddr,
    /// Random per start of the group.
    pub epoch: u64,
    /// Process id of the rank's parent.
    pub leader: u32,
    /// Descriptor of the inherited group memory.
    pub memory: i32,
    /// Longest wait for other ranks within a step.
    pub timeout: Duration,
    /// Properties that all ranks must have in common.
    pub terms: Terms,
    /// Settings of the leader, with those of the rank's own node where nodes differ: the model's directory
    /// and that of packed weights.
    pub config: WorkerConfig,
    /// Device of all ranks.
    pub device: DeviceKind,
    /// Number of compute threads of the rank.
    pub threads: usize,
    /// Number of blocks in the KV cache; ranks on GPUs agree on it later.
    pub kv_blocks: u32,
    /// Blocks that layers with a window have apart.
    pub window_blocks: Option<WindowBlocks>,
    /// Slots for states of recurrent layers.
    pub state_slots: u32,
    /// Rows in the largest expected step.
    pub max_rows: u32,
}

/// Properties that ranks must share to draw the same tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Version of the binary.
    pub version: String,
    /// Fingerprint of the model's files.
    pub model: u64,
    /// Arithmetic of the backend, such as its instruction set.
    pub arithmetic: String,
}

impl Terms {
    /// Why a rank with these terms cannot join a leader with the terms `leader`; `None` if it can.
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

/// Message from a rank to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The rank has read its welcome.
    Joined {
        /// Terms of this rank.
        terms: Terms,
        /// Port on which it listens for ranks on other nodes.
        port: Option<u16>,
    },
    /// The rank on a GPU knows how many KV blocks fit, and waits for the number on which all agree.
    Fits(Fits),
    /// The rank has loaded its part of the model.
    Loaded,
    /// The rank has carried out a frame about an adapter, or cannot.
    Adapter {
        /// Number of the frame.
        frame: u64,
        /// What is wrong; `None` = nothing.
        problem: Option<String>,
    },
    /// The rank cannot continue.
    Failed {
        /// Error message of the rank.
        reason: String,
    },
}

impl Answer {
    /// Why this answer of `rank` is not one that is due while it loads.
    fn unexpected(&self, rank: usize) -> String {
        match self {
            Self::Failed { reason } => format!("rank {rank} cannot load its part: {reason}"),
            Self::Joined { .. } => format!("rank {rank} joins twice"),
            Self::Fits(_) | Self::Loaded | Self::Adapter { .. } => {
                format!("rank {rank} answers out of turn: {self:?}")
            }
        }
    }

    /// Writes the answer to standard output. Errors are ignored: if the leader has ended, the lifeline closes
    /// too.
    pub fn emit(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }
}

/// Rank processes on this node, and the answers of all ranks of the group.
pub struct Processes {
    watch: Watch,
    answers: Mutex<Receiver<(usize, Answer)>>,
    /// Answers that arrived before all ranks had joined, except those of joining.
    early: Vec<(usize, Answer)>,
    sender: SyncSender<(usize, Answer)>,
    terms: Terms,
    /// All ranks except the leader.
    ranks: Range<usize>,
    children: Children,
}

type Children = Arc<Mutex<Vec<Arc<Mutex<Started>>>>>;

/// A child process and its standard input.
struct Started {
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Processes {
    /// Starts a process for each rank on the node of `memory`, except the leader. Each gets `welcome` with
    /// its own number.
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

    /// Watch that detects failures of the group.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Sender for answers of ranks on other nodes.
    pub fn answers(&self) -> &SyncSender<(usize, Answer)> {
        &self.sender
    }

    /// Next answer, waiting up to `most`.
    pub fn next_answer(&self, most: Duration) -> Option<(usize, Answer)> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(most).ok()
    }

    /// Writes a line to the standard input of every process.
    pub fn send_line(&self, line: &str) {
        for started in self.children.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
            // Fails if the child has ended, which is detected elsewhere.
            if let Some(lifeline) = &mut started.lifeline {
                let _ = writeln!(lifeline, "{line}");
            }
        }
    }

    /// Whether any of the processes is running.
    pub fn any_runs(&self) -> bool {
        self.any(|status| status.is_none())
    }

    /// Whether any of the processes has ended with an error.
    pub fn any_failed(&self) -> bool {
        self.any(|status| status.is_some_and(|status| !status.success()))
    }

    /// Whether the status of any process `is` so; `None` = it runs.
    fn any(&self, is: impl Fn(Option<ExitStatus>) -> bool) -> bool {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.iter().any(|started| {
            // While a thread waits for the process, the lock is held; the process has closed its output.
            started.try_lock().is_ok_and(|mut started| started.child.try_wait().is_ok_and(&is))
        })
    }

    /// Kills the processes.
    pub fn kill(&self) {
        kill_all(&self.children);
    }

    /// Waits until every rank has joined; returns their ports in order, starting with rank 1.
    ///
    /// # Errors
    /// If a rank is lost or its terms differ.
    pub fn joined(&mut self) -> Result<Vec<Option<u16>>, String> {
        let (mut ports, mut early) = (vec![None; self.ranks.len()], Vec::new());
        let own = self.terms.clone();
        self.each(Some(JOIN_TIMEOUT), |rank, answer| match answer {
            Answer::Joined { terms, port } => {
                ports[rank - 1] = port;
                terms.differ(rank, &own).map_or(Ok(true), Err)
            }
            Answer::Failed { reason } => Err(format!("rank {rank} cannot join: {reason}")),
            later @ (Answer::Fits(_) | Answer::Loaded | Answer::Adapter { .. }) => {
                early.push((rank, later));
                Ok(false)
            }
        })?;
        self.early = early;
        Ok(ports)
    }

    /// Waits until every rank on a GPU knows what fits; returns the KV blocks that fit all of them and the
    /// leader, to which `own` fits. There is no time limit while the rank is alive.
    ///
    /// # Errors
    /// If a rank is lost, cannot load or has a device that computes differently.
    pub fn agree(&mut self, own: Fits) -> Result<u32, CudaLoadError> {
        let mut all = vec![own; self.ranks.end];
        let answered = self.each(None, |rank, answer| match answer {
            Answer::Fits(fits) => {
                all[rank] = fits;
                Ok(true)
            }
            other => Err(other.unexpected(rank)),
        });
        answered.map_err(CudaLoadError::Group)?;
        Fits::all(&all).inspect_err(|why| drop(self.fail(why.to_string())))
    }

    /// Waits until every rank has loaded its part; returns the watch and the answers that follow. There is no
    /// time limit while the rank is alive.
    ///
    /// # Errors
    /// If a rank is lost or cannot load.
    pub fn loaded(mut self) -> Result<(Watch, Receiver<(usize, Answer)>), String> {
        self.each(None, |rank, answer| match answer {
            Answer::Loaded => Ok(true),
            other => Err(other.unexpected(rank)),
        })?;
        let answers = self.answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((self.watch, answers))
    }

    /// Takes answers until every rank has sent one that `take` accepts.
    fn each(
        &mut self,
        within: Option<Duration>,
        mut take: impl FnMut(usize, Answer) -> Result<bool, String>,
    ) -> Result<(), String> {
        let began = clock::now();
        let mut early = std::mem::take(&mut self.early).into_iter();
        let mut missing: Vec<usize> = self.ranks.clone().collect();
        while let Some(first) = missing.first() {
            let answer = early.next().or_else(|| self.next_answer(HEARTBEAT_INTERVAL));
            let taken = match answer {
                Some((rank, answer)) if self.ranks.contains(&rank) => take(rank, answer).map(|counts| {
                    missing.retain(|other| *other != rank || !counts);
                }),
                Some((rank, _)) => Err(format!("received an answer from rank {rank}, which does not exist")),
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

    /// Ends the group with the reason `why`; returns the reason recorded first.
    pub fn fail(&self, why: String) -> String {
        self.watch.fail(why)
    }
}

/// A child process about to be started.
struct Start {
    rank: usize,
    command: RankCommand,
    welcome: String,
    watch: Watch,
    children: Children,
    answers: SyncSender<(usize, Answer)>,
}

impl Start {
    /// Starts the process, relays its answers, and reports its end.
    ///
    /// Runs on a thread that lives as long as the child: the system kills the child when the thread that
    /// started it ends.
    fn run(self) {
        let rank = self.rank;
        let end = self.watch_child().unwrap_or_else(|error| format!("cannot start: {error}"));
        self.watch.fail_because_of(rank, format!("rank {rank} {end}"));
    }

    fn watch_child(&self) -> std::io::Result<String> {
        let variables = std::env::vars_os().map(|(name, _)| name);
        let mut child = command(&self.command, variables).spawn()?;
        let (mut lifeline, out) = (child.stdin.take(), child.stdout.take());
        if let Some(lifeline) = &mut lifeline {
            // Fails if the child has ended, which is detected below.
            let _ = writeln!(lifeline, "{}", self.welcome);
        }
        let child = Arc::new(Mutex::new(Started { child, lifeline }));
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child.clone());
        if self.watch.failure().is_some() {
            kill(&child); // the group ended before this child was in the list
        }
        let mut failed = None;
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok)) {
            match serde_json::from_str(&line) {
                Ok(Answer::Failed { reason }) => failed = Some(format!("ended: {reason}")),
                Ok(answer) => drop(self.answers.try_send((self.rank, answer))),
                Err(_) => tracing::debug!(rank = self.rank, line, "unexpected output of a rank"),
            }
        }
        // Its output is closed, so it has ended or is about to.
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).child.wait()?;
        Ok(failed.unwrap_or_else(|| format!("ended with {status}")))
    }
}

/// The process of a rank. It gets its settings on standard input, so those among our `variables`, which may
/// be secrets, are not for it.
fn command(given: &RankCommand, variables: impl IntoIterator<Item = OsString>) -> Command {
    let mut command = Command::new(&given.binary);
    command.args(&given.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    for name in own_variables(variables, &[KERNEL_CACHE_VARIABLE]) {
        command.env_remove(name);
    }
    // Only the leader handles Ctrl-C: it lets requests finish.
    command.process_group(0);
    command
}

fn kill(child: &Mutex<Started>) {
    // Fails if it has already ended.
    let _ = child.lock().unwrap_or_else(PoisonError::into_inner).child.kill();
}

fn kill_all(children: &Children) {
    children.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|child| kill(child));
}

/// State of a process started as a rank.
pub struct RankProcess {
    /// Configuration sent by the leader.
    pub welcome: Welcome,
    /// Shared memory of its node.
    pub memory: GroupMemory,
    lines: Receiver<String>,
}

impl RankProcess {
    /// Waits for the addresses of all ranks.
    ///
    /// # Errors
    /// If they do not arrive in time.
    pub fn peers(&self) -> Result<Peers, String> {
        let line = self.lines.recv_timeout(JOIN_TIMEOUT);
        let line =
            line.map_err(|_| "the leader did not send the other ranks' addresses in time".to_owned())?;
        serde_json::from_str(&line)
            .map_err(|error| format!("cannot parse the addresses of the ranks: {error}"))
    }

    /// Tells the leader what fits this rank; returns the KV blocks on which all ranks agree. Waits as long as
    /// the leader is alive.
    ///
    /// # Errors
    /// If the leader sends something else.
    pub fn agree(&self, own: Fits) -> Result<u32, CudaLoadError> {
        Answer::Fits(own).emit();
        let ended = |_| CudaLoadError::Group("the leader has ended".into());
        let line = self.lines.recv().map_err(ended)?;
        let other =
            |_| CudaLoadError::Group(format!("the leader's number of KV blocks is {:?}", line.trim()));
        line.trim().parse().map_err(other)
    }
}

/// Reads the welcome from standard input. From then on, this process exits without exit handlers when its
/// parent ends or stops sending heartbeats. Call it first.
///
/// # Errors
/// If this process was not started by a leader.
#[cfg(target_os = "linux")]
pub fn join() -> Result<RankProcess, String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut line);
    read.map_err(|error| error.to_string())?;
    let welcome: Welcome = serde_json::from_str(&line).map_err(|error| {
        format!(
            "no welcome on standard input ({error}); only a worker with --tensor-parallel-size or --pipeline-parallel-size starts ranks"
        )
    })?;
    if !skein_sys::process::die_with_parent(welcome.leader) {
        return Err("the leader has ended".into());
    }
    let memory = GroupMemory::inherited(welcome.memory, welcome.plan, welcome.timeout)
        .map_err(|error| format!("cannot map the group's memory: {error}"))?;
    let (rank, process) = (welcome.rank, welcome.plan.process_of(welcome.rank));
    let end = || skein_sys::process::exit_without_handlers(EXIT_LEADER_LOST);
    let (sender, lines) = sync_channel(LINES);
    let lifeline = move || {
        let mut line = String::new();
        while std::io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut line).is_ok_and(|count| count > 0) {
            // The channel has room for all lines that a leader sends.
            let _ = sender.try_send(std::mem::take(&mut line));
        }
        end();
    };
    let beats = memory.clone();
    let beat = move || {
        let mut heartbeats = Heartbeats::new(1, clock::now());
        loop {
            beats.beat(process);
            if let Some((_, silent)) = heartbeats.overdue(clock::now(), std::iter::once(beats.beats(0))) {
                tracing::error!(rank, "the leader has been silent for {} ms", silent.as_millis());
                end();
            }
            std::thread::sleep(HEARTBEAT_INTERVAL);
        }
    };
    let spawned = [
        std::thread::Builder::new().name("lifeline".into()).spawn(lifeline),
        std::thread::Builder::new().name("skein-group".into()).spawn(beat),
    ];
    for thread in spawned {
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    Ok(RankProcess { welcome, memory, lines })
}

/// Command that starts ranks: this executable with `arguments`.
///
/// # Errors
/// If the system cannot report the path of this executable.
pub fn this_binary(arguments: &[&str]) -> std::io::Result<RankCommand> {
    let binary: &Path = &std::env::current_exe()?;
    Ok(RankCommand {
        binary: binary.to_owned(),
        arguments: arguments.iter().map(|&argument| argument.into()).collect(),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::group::topology::Topology;

    pub fn terms() -> Terms {
        Terms { version: "1.2.3".into(), model: 7, arithmetic: "cpu 6".into() }
    }

    fn memory(ranks: usize) -> GroupMemory {
        let plan = NodePlan::new(Topology::new(ranks, 1, 1).unwrap(), 0, 0);
        GroupMemory::create(plan, Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_rank_starts_without_our_settings_and_secrets() {
        let given = RankCommand { binary: "sh".into(), arguments: Vec::new() };
        let all = ["SKEIN_API_KEY", "SKEIN_GROUP_SECRET", "SKEIN_KERNEL_CACHE", "PATH", "OTHER_SKEIN_KEY"];
        let command = command(&given, all.map(OsString::from));
        let removed: Vec<_> = command.get_envs().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(removed, [("SKEIN_API_KEY".into(), None), ("SKEIN_GROUP_SECRET".into(), None)]);
    }

    fn start(script: &str) -> (Processes, GroupMemory) {
        start_ranks(2, script)
    }

    /// A group of `ranks`, whose processes run `script` in place of a rank.
    pub fn start_ranks(ranks: usize, script: &str) -> (Processes, GroupMemory) {
        let memory = memory(ranks);
        let command = RankCommand { binary: "sh".into(), arguments: vec!["-c".into(), script.into()] };
        let welcome = Welcome {
            rank: 0,
            plan: memory.plan(),
            address: IpAddr::from([127, 0, 0, 1]),
            epoch: 1,
            leader: std::process::id(),
            memory: 0,
            timeout: Duration::from_secs(5),
            terms: terms(),
            config: WorkerConfig::new("model", "m"),
            device: DeviceKind::Cpu,
            threads: 1,
            kv_blocks: 1,
            window_blocks: None,
            state_slots: 0,
            max_rows: 1,
        };
        (Processes::start(&memory, &command, &welcome).unwrap(), memory)
    }

    /// Script of a rank until it has joined.
    pub fn joins(terms: &Terms) -> String {
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
    fn a_failed_rank_shows_while_others_run() {
        let script = format!(
            "{}; case \"$welcome\" in *'\"rank\":2'*) kill -9 $$;; esac; exec sleep 600",
            joins(&terms())
        );
        let (mut processes, _) = start_ranks(3, &script);
        // The leader has told the ranks to stop, so that the end of one is no failure of the group.
        processes.watch().stop();
        processes.joined().unwrap();
        assert!(within_a_minute(|| processes.any_failed()));
        assert!(processes.any_runs());
        processes.kill();
        assert!(within_a_minute(|| !processes.any_runs()));
    }

    fn within_a_minute(check: impl Fn() -> bool) -> bool {
        let began = clock::now();
        while clock::now().since(began) < Duration::from_secs(60) {
            if check() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
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
        let (watch, _) = processes.loaded().unwrap();
        assert!(watch.failure().is_none());
        watch.fail("ends the processes".into());
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
        assert!(watch.failure().unwrap().starts_with("rank 1 cannot start: "));
    }
}
