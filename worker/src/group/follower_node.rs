//! Process of a node without the leader. It joins the leader's group, starts this node's ranks, and relays
//! frames and answers between them and the leader. It holds no part of the model, so it outlives a group and
//! joins the next one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_node::clock;

use super::frame::is_stop;
use super::heartbeat::{HEARTBEAT_INTERVAL, Heartbeats};
use super::hello::Hello;
use super::memory::GroupMemory;
use super::nodes::{Ending, RankAnswer};
use super::processes::{Processes, Welcome};
use super::rendezvous::{self, Lock, NotJoined};
use super::watch::Watch;
use super::wire::{Incoming, Kind, Outgoing, words};
use crate::config::{CpuConfig, NodesConfig, RankCommand, RanksConfig, WorkerConfig};

/// How long ranks may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a follower node.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Settings of this node's worker.
    pub config: WorkerConfig,
    /// Introduction of this node to the leader.
    pub hello: Hello,
    /// Command that starts its ranks.
    pub command: RankCommand,
    /// Compute threads of all its ranks together.
    pub threads: usize,
}

/// How a group ended for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEnd {
    /// The leader sent a stop.
    Stopped,
    /// A rank or a node was lost.
    Lost(String),
    /// The leader refused this node.
    Refused(String),
}

/// Joins the leader's group and serves it until the group ends.
pub fn serve_group(settings: &NodeSettings, lock: &Lock) -> GroupEnd {
    let nodes = &settings.config.ranks.nodes;
    let joined = rendezvous::join(&nodes.leader, &settings.hello, lock);
    let (incoming, outgoing, address, welcome) = match joined {
        Ok(joined) => joined,
        Err(NotJoined::Refused(why)) => return GroupEnd::Refused(why),
        Err(NotJoined::Lost(why)) => return GroupEnd::Lost(why),
    };
    let welcome: Welcome = match serde_json::from_slice(&welcome) {
        Ok(welcome) => welcome,
        Err(error) => return GroupEnd::Refused(format!("cannot use the leader's welcome: {error}")),
    };
    let start = || {
        let memory = GroupMemory::create(welcome.plan, welcome.timeout)?;
        let threads = (settings.threads / welcome.plan.topology.on_node()).max(1);
        let template = Welcome {
            leader: std::process::id(),
            memory: memory.descriptor(),
            config: on_this_node(&welcome.config, &settings.config),
            threads,
            address,
            ..welcome.clone()
        };
        let processes = Processes::start(&memory, &settings.command, &template)?;
        Ok::<_, std::io::Error>((memory, processes))
    };
    match start() {
        Ok((memory, processes)) => Serving::new(memory, processes, outgoing).run(incoming),
        Err(error) => GroupEnd::Lost(format!("this node's ranks cannot start: {error}")),
    }
}

/// The leader's settings with `own` values where nodes may differ.
fn on_this_node(leader: &WorkerConfig, own: &WorkerConfig) -> WorkerConfig {
    let cpu = CpuConfig { packed_cache_dir: own.cpu.packed_cache_dir.clone(), ..leader.cpu.clone() };
    let nodes = NodesConfig { tls: own.ranks.nodes.tls.clone(), ..leader.ranks.nodes.clone() };
    let ranks = RanksConfig { nodes, ..leader.ranks.clone() };
    WorkerConfig { model: own.model.clone(), cpu, ranks, ..leader.clone() }
}

struct Serving {
    memory: GroupMemory,
    processes: Arc<Processes>,
    watch: Watch,
    outgoing: Arc<Mutex<Outgoing>>,
}

impl Serving {
    fn new(memory: GroupMemory, processes: Processes, outgoing: Outgoing) -> Self {
        let watch = processes.watch().clone();
        Self { memory, processes: Arc::new(processes), watch, outgoing: Arc::new(Mutex::new(outgoing)) }
    }

    fn send(&self, kind: Kind, message: &[u8]) {
        let sent = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).send(kind, message);
        if let Err(error) = sent {
            self.watch.fail(format!("cannot send to the leader: {error}"));
        }
    }

    fn run(self, incoming: Incoming) -> GroupEnd {
        let serving = Arc::new(self);
        let beating = Arc::clone(&serving);
        let beat = move || {
            while !beating.watch.is_over() {
                beating.send(Kind::Heartbeat, &[]);
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        };
        let answering = Arc::clone(&serving);
        let answer = move || {
            while !answering.watch.is_over() {
                let Some((rank, answer)) = answering.processes.next_answer(HEARTBEAT_INTERVAL) else {
                    continue;
                };
                let said = serde_json::to_vec(&RankAnswer { rank, answer }).unwrap_or_default();
                answering.send(Kind::Answer, &said);
            }
        };
        for (name, work) in
            [("skein-beat", Box::new(beat) as Box<dyn FnOnce() + Send>), ("skein-answers", Box::new(answer))]
        {
            if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
                return GroupEnd::Lost(serving.watch.fail(format!("cannot start a thread: {error}")));
            }
        }
        serving.relay(incoming)
    }

    /// Relays the leader's messages to the ranks until the group ends.
    fn relay(&self, mut incoming: Incoming) -> GroupEnd {
        let mut frames = self.memory.writer();
        let (mut heartbeats, mut beats) = (Heartbeats::new(1, clock::now()), 0);
        loop {
            match incoming.receive(HEARTBEAT_INTERVAL) {
                Ok(Some((Kind::Heartbeat, _))) => beats += 1,
                Ok(Some((Kind::Line, line))) => self.processes.send_line(&String::from_utf8_lossy(&line)),
                Ok(Some((Kind::Frame, message))) => {
                    let words = words(&message);
                    if is_stop(&words) {
                        self.watch.stop();
                    }
                    if let Err(error) = frames.write(&words) {
                        self.watch.fail(error.to_string());
                    }
                    if is_stop(&words) {
                        return self.stopped();
                    }
                }
                Ok(Some((Kind::End, ending))) => {
                    let ending = serde_json::from_slice::<Ending>(&ending);
                    let (rank, why) = ending.map_or((0, "no reason given".into()), |it| (it.rank, it.why));
                    self.watch.fail_because_of(rank, format!("the leader ended the group: {why}"));
                }
                Ok(Some((kind, _))) => tracing::debug!(?kind, "ignored an unexpected message"),
                Ok(None) => {}
                Err(error) => drop(self.watch.fail(format!("the leader has ended: {error}"))),
            }
            if let Some((_, silent)) = heartbeats.overdue(clock::now(), std::iter::once(beats)) {
                self.watch.fail(format!("the leader has been silent for {} ms", silent.as_millis()));
            }
            if let Some((rank, why)) = self.watch.cause() {
                let ending = serde_json::to_vec(&Ending { rank, why: why.clone() }).unwrap_or_default();
                self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).send_last(Kind::End, &ending);
                return GroupEnd::Lost(why);
            }
        }
    }

    /// Waits for the stopping ranks. Once one has failed, the others may wait for it, so they are killed.
    fn stopped(&self) -> GroupEnd {
        let began = clock::now();
        let failed = loop {
            let failed = self.processes.any_failed();
            if failed || !self.processes.any_runs() || clock::now().since(began) >= STOP_TIMEOUT {
                break failed;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.processes.kill();
        if failed {
            GroupEnd::Lost("a rank failed while the group stopped".into())
        } else {
            GroupEnd::Stopped
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Frame, Sequence};
    use super::super::processes::tests::{joins, start_ranks, terms};
    use super::super::wire::split;
    use super::super::wire::tests::connection;
    use super::*;

    /// How a node ends once the leader has sent a stop. Its two ranks run `script` once both have joined.
    fn end_of_stop(script: &str) -> GroupEnd {
        let directory = tempfile::tempdir().unwrap();
        let all_joined = directory.path().join("all have joined");
        let wait = format!("until [ -e '{}' ]; do sleep 0.01; done", all_joined.display());
        let [(_there, mut leader), (incoming, outgoing)] = connection().map(|end| split(end).unwrap());
        let (mut processes, memory) = start_ranks(3, &format!("{}; {wait}; {script}", joins(&terms())));
        // As after the stop, so that it does not matter which comes first.
        processes.watch().stop();
        processes.joined().unwrap();
        std::fs::write(all_joined, []).unwrap();
        let mut stop = Vec::new();
        Sequence { epoch: 1, step: 0 }.write(&Frame::Stop, &mut stop);
        leader.send_words(&stop).unwrap();
        Serving::new(memory, processes, outgoing).run(incoming)
    }

    #[test]
    fn ranks_that_wait_for_one_that_failed_are_not_given_time_to_stop() {
        assert_eq!(end_of_stop("exit 0"), GroupEnd::Stopped);
        let one_fails = "case \"$welcome\" in *'\"rank\":2'*) kill -9 $$;; esac; exec sleep 600";
        assert_eq!(end_of_stop(one_fails), GroupEnd::Lost("a rank failed while the group stopped".into()));
    }
}
