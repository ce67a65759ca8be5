//! Watches a group: whatever ends one rank ends all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_node::clock;

use super::memory::GroupMemory;
use super::pulse::{BEAT, Pulse};
use crate::backend::Alarm;

/// A group's failure, once there is one. Clones share it.
#[derive(Clone)]
pub struct Watch(Arc<Inner>);

struct Inner {
    memory: GroupMemory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The rank whose failure ended the group, and the reason.
    failure: Option<(usize, String)>,
    /// The group was told to stop, so a rank that ends has not failed.
    stopped: bool,
    alarm: Option<Alarm>,
    /// Called on the first failure, to end the ranks.
    kill: Vec<Kill>,
}

/// Ends ranks because of one of them, and why.
type Kill = Box<dyn FnOnce(usize, &str) + Send>;

impl Watch {
    /// Watches the ranks over `memory`; `kill` ends their processes when one fails.
    pub fn new(memory: GroupMemory, kill: impl FnOnce() + Send + 'static) -> Self {
        let kill: Kill = Box::new(|_, _| kill());
        let state = State { kill: vec![kill], ..State::default() };
        Self(Arc::new(Inner { memory, state: Mutex::new(state) }))
    }

    /// Also calls `kill` on the first failure; at once if there was one.
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

    /// Whether the group has failed or was told to stop.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.stopped || state.failure.is_some()
    }

    /// The rank whose failure ended the group, and the reason.
    pub fn cause(&self) -> Option<(usize, String)> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group because of `why`, unless it has ended; returns why it has ended.
    pub fn fail(&self, why: String) -> String {
        self.fail_because_of(0, why)
    }

    /// [`fail`](Self::fail), naming the rank that is lost.
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
        tracing::error!(rank, why, "the group ends");
        self.0.memory.end_because_of(rank);
        kill.into_iter().for_each(|kill| kill(rank, &why));
        alarm.into_iter().for_each(|alarm| alarm());
        why
    }

    /// From now on, a rank that ends has not failed.
    pub fn stop(&self) {
        self.lock().stopped = true;
    }

    /// Why the group has ended.
    pub fn failure(&self) -> Option<String> {
        self.cause().map(|(_, why)| why)
    }

    /// Calls `alarm` at the first failure.
    pub fn on_failure(&self, alarm: Alarm) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.alarm = Some(alarm);
            return;
        }
        drop(state);
        alarm();
    }

    /// Beats for seat 0 and listens for the others' beats, on a thread of its own, until the group ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn listen(&self) -> std::io::Result<()> {
        // Weak, so that the thread ends with the group.
        let (watch, memory) = (Arc::downgrade(&self.0), self.0.memory.clone());
        let listen = move || {
            let seats = 1..memory.plan().seats();
            let mut pulse = Pulse::new(seats.len(), clock::now());
            while let Some(inner) = watch.upgrade() {
                memory.beat(0);
                let beats = seats.clone().map(|seat| memory.beats(seat));
                if let Some((index, silent)) = pulse.look(clock::now(), beats) {
                    let (rank, ms) = (memory.plan().rank_on(index + 1), silent.as_millis());
                    Self(inner).fail_because_of(rank, format!("rank {rank} has been silent for {ms} ms"));
                    return;
                }
                drop(inner);
                std::thread::sleep(BEAT);
            }
        };
        std::thread::Builder::new().name("skein-group".into()).spawn(listen).map(drop)
    }
}
