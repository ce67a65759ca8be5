//! Detects failures of a group: the failure of one rank ends all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_node::clock;

use super::heartbeat::{HEARTBEAT_INTERVAL, Heartbeats};
use super::memory::GroupMemory;
use crate::backend::Alarm;

/// First failure of a group. Clones share it.
#[derive(Clone)]
pub struct Watch(Arc<Inner>);

struct Inner {
    memory: GroupMemory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Rank that caused the group to end, and the reason.
    failure: Option<(usize, String)>,
    /// The leader requested a stop, so a rank that ends has not failed.
    stopped: bool,
    alarm: Option<Alarm>,
    /// Called at the first failure, to end the ranks.
    kill: Vec<Kill>,
}

/// Ends ranks, given the rank that caused it and the reason.
type Kill = Box<dyn FnOnce(usize, &str) + Send>;

impl Watch {
    /// Watches the ranks over `memory`; `kill` ends their processes after a failure.
    pub fn new(memory: GroupMemory, kill: impl FnOnce() + Send + 'static) -> Self {
        let kill: Kill = Box::new(|_, _| kill());
        let state = State { kill: vec![kill], ..State::default() };
        Self(Arc::new(Inner { memory, state: Mutex::new(state) }))
    }

    /// Adds another callback for the first failure; calls it now if there was one.
    pub fn also(&self, kill: impl FnOnce(usize, &str) + Send + 'static) {
        let mut state = self.lock();
        match state.failure.clone() {
            None => state.kill.push(Box::new(kill)),
            Some((rank, why)) => {
                drop(state);
                kill(rank, &why);
            }
        }
    }

    /// Whether the group has failed or is stopping.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.stopped || state.failure.is_some()
    }

    /// Rank that caused the group to end, and the reason.
    pub fn cause(&self) -> Option<(usize, String)> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group with the reason `why`; returns the reason recorded first.
    pub fn fail(&self, why: String) -> String {
        self.fail_because_of(0, why)
    }

    /// Like [`fail`](Self::fail), with the rank that caused it.
    pub fn fail_because_of(&self, rank: usize, why: String) -> String {
        let mut state = self.lock();
        if let Some((_, first)) = &state.failure {
            return first.clone();
        }
        if state.stopped {
            return why;
        }
        state.failure = Some((rank, why.clone()));
        let (alarm, kill) = (state.alarm.take(), std::mem::take(&mut state.kill));
        drop(state);
        self.0.memory.end_because_of(rank);
        kill.into_iter().for_each(|kill| kill(rank, &why));
        alarm.into_iter().for_each(|alarm| alarm());
        // Last, because a log on a busy disk can block for seconds.
        tracing::error!(rank, why, "the group failed");
        why
    }

    /// From now on, a rank that ends has not failed.
    pub fn stop(&self) {
        self.lock().stopped = true;
    }

    /// Reason for the group's failure, if it failed.
    pub fn failure(&self) -> Option<String> {
        self.cause().map(|(_, why)| why)
    }

    /// Calls `alarm` at the first failure; immediately if there was one.
    pub fn on_failure(&self, alarm: Alarm) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.alarm = Some(alarm);
            return;
        }
        drop(state);
        alarm();
    }

    /// Sends heartbeats for process 0 and checks those of the other processes on this node, on its own
    /// thread, until the group ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn listen(&self) -> std::io::Result<()> {
        // Weak, so that the thread ends with the group.
        let (watch, memory) = (Arc::downgrade(&self.0), self.0.memory.clone());
        let listen = move || {
            let others = 1..memory.plan().processes();
            let mut heartbeats = Heartbeats::new(others.len(), clock::now());
            while let Some(inner) = watch.upgrade() {
                memory.beat(0);
                let beats = others.clone().map(|process| memory.beats(process));
                if let Some((index, silent)) = heartbeats.overdue(clock::now(), beats) {
                    let (rank, ms) = (memory.plan().rank_of(index + 1), silent.as_millis());
                    Self(inner).fail_because_of(rank, format!("rank {rank} has been silent for {ms} ms"));
                    return;
                }
                drop(inner);
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        };
        std::thread::Builder::new().name("skein-group".into()).spawn(listen).map(drop)
    }
}
