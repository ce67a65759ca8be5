//! A simulated process and its tasks. Tasks are suspended while it is stopped, and dropped when it is killed.
//! It can be killed at the n-th poll of its tasks, which may be any await point of any of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use skein_node::task::{self, Gate, Owned, Owner};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::random::Random;

/// Finished tasks are removed from the list after this many spawns.
const FORGET_EVERY: usize = 64;

/// One run of a process. Cheap to clone.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Wakes tasks that wait for the process to end.
    ended: Notify,
    random: Random,
    /// One poll in this many is deferred until other tasks have run; 0 = none.
    put_off: u64,
}

#[derive(Default)]
struct State {
    gone: bool,
    stopped: bool,
    /// Polls left until the process is killed.
    polls_left: Option<u64>,
    tasks: Vec<AbortHandle>,
    asleep: Vec<Waker>,
}

impl Process {
    /// A process without tasks.
    pub fn new(random: Random, put_off: u64) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), ended: Notify::new(), random, put_off }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Runs `task` as a part of this process.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let owner: Arc<dyn Owner> = self.0.clone();
        let handle = tokio::spawn(async move {
            Owned::new(owner, task).await;
        });
        self.0.spawned(handle.abort_handle());
    }

    /// Runs `work` so that the tasks it spawns belong to this process.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let owner: Arc<dyn Owner> = self.0.clone();
        task::within(&owner, work)
    }

    /// Ends the process at once: none of its code runs again, not even destructors.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Kills the process after `polls` more polls of its tasks; `None` = never.
    pub fn kill_after(&self, polls: Option<u64>) {
        self.lock().polls_left = polls;
    }

    /// Stops its tasks, as SIGSTOP does, or continues them.
    pub fn stop(&self, stopped: bool) {
        let woken = {
            let state = &mut *self.lock();
            state.stopped = stopped;
            std::mem::take(&mut state.asleep)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether the process has ended.
    pub fn is_gone(&self) -> bool {
        self.lock().gone
    }

    /// Whether the process is stopped.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Whether this is the same run of the same process.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) {
        loop {
            let mut ended = std::pin::pin!(self.0.ended.notified());
            ended.as_mut().enable();
            if self.is_gone() {
                return;
            }
            ended.await;
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        let tasks = {
            let state = &mut *self.lock();
            state.gone = true;
            std::mem::take(&mut state.tasks)
        };
        // The executor drops each task later, never in the middle of its own poll.
        tasks.iter().for_each(AbortHandle::abort);
        self.ended.notify_waiters();
    }
}

impl Owner for Inner {
    fn gate(&self, context: &mut Context<'_>) -> Gate {
        let mut state = self.lock();
        if state.gone {
            return Gate::Gone;
        }
        if state.stopped {
            state.asleep.push(context.waker().clone());
            return Gate::Shut;
        }
        if let Some(left) = &mut state.polls_left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                drop(state);
                self.kill();
                return Gate::Gone;
            }
        }
        drop(state);
        if self.random.once_in(self.put_off) {
            context.waker().wake_by_ref();
            return Gate::Shut;
        }
        Gate::Open
    }

    fn spawned(&self, task: AbortHandle) {
        let mut state = self.lock();
        if state.gone {
            return task.abort();
        }
        if state.tasks.len() % FORGET_EVERY == FORGET_EVERY - 1 {
            state.tasks.retain(|task| !task.is_finished());
        }
        state.tasks.push(task);
    }
}
