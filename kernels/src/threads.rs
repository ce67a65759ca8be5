//! A fixed set of threads that share out the tasks of one operation at a time.
//!
//! The caller works too. Tasks are taken from one counter, so a slow thread takes fewer; which thread takes which
//! must not matter to the result. Between operations the others spin for some tens of microseconds, then sleep:
//! an idle machine stays idle. A thread that wakes late finds the operation closed and is not waited for.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Pauses before a thread without work sleeps: 20–50 µs on current x86.
const SPINS: u32 = 1000;
/// Pauses before a caller that waits for the others gives its processor away in between.
const SPINS_BEFORE_YIELD: u32 = 10_000;

/// Threads that work on one operation at a time; see [`Threads::run`].
pub struct Threads {
    common: Arc<Common>,
    helpers: Vec<JoinHandle<()>>,
}

/// One operation: its tasks, and what a task does.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

struct Common {
    /// Operation number, whether it is open, and how many helpers are in it; see the constants below.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next_task: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
}

const JOINED: u64 = 0xffff;
const OPEN: u64 = 0x1_0000;
const OPERATION: u64 = 0x2_0000;

// SAFETY: `job` is written only by the owner of `Threads`, while no operation is open and no helper is joined; it is
// read only by helpers that joined an open one. Joining and leaving are acquire and release on `state`.
unsafe impl Sync for Common {}
// SAFETY: the pointer in `job` is used only while `Threads::run`, which borrowed its target, has not returned.
unsafe impl Send for Common {}

impl Threads {
    /// `count` participants, the caller included; 0 counts as 1.
    pub fn new(count: usize) -> Self {
        let common = Arc::new(Common {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next_task: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
        });
        // A helper that cannot be started is not an error: the others do its tasks.
        let helpers = (1..count.clamp(1, JOINED as usize))
            .map_while(|participant| {
                let common = Arc::clone(&common);
                let name = format!("skein-compute-{participant}");
                std::thread::Builder::new().name(name).spawn(move || common.help(participant)).ok()
            })
            .collect();
        Self { common, helpers }
    }

    /// Participants, the caller included.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(task, participant)` once for each task, on all participants; returns when all are done.
    /// No two calls at a time have the same participant. A panic in a task reaches the caller, others finish first.
    pub fn run(&mut self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(|task| work(task, 0));
            return;
        }
        let work: &(dyn Fn(usize, usize) + Sync) = &work;
        // SAFETY: only the lifetime changes; nobody uses the pointer once this function has returned.
        let work: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(work) };
        let job = Job { work, tasks };
        let common = &*self.common;
        // SAFETY: no operation is open and no helper joined: the last `run` waited for that, and `self` is unique.
        unsafe { *common.job.get() = Some(job) };
        common.next_task.store(0, Ordering::Relaxed);
        let operation = (common.state.load(Ordering::Relaxed) & !(OPEN | JOINED)).wrapping_add(OPERATION);
        common.state.store(operation | OPEN, Ordering::SeqCst);
        if common.sleepers.load(Ordering::SeqCst) > 0 {
            drop(common.lock_bed());
            common.wake.notify_all();
        }
        common.work(job, 0);
        common.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while common.state.load(Ordering::Acquire) & JOINED != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panic = common.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::SeqCst);
        drop(self.common.lock_bed());
        self.common.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join(); // its panics were caught in `work`
        }
    }
}

impl Common {
    fn lock_bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tasks until none is left. A panic empties the counter: the operation has failed anyway.
    fn work(&self, job: Job, participant: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this participant is in the operation, so `run` has not returned and its closure lives.
            let work = unsafe { &*job.work };
            loop {
                let task = self.next_task.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    return;
                }
                work(task, participant);
            }
        }));
        if let Err(panic) = result {
            self.next_task.store(job.tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// The life of a helper: wait for an operation, join it, work, leave.
    fn help(&self, participant: usize) {
        let mut last = 0;
        while let Some(state) = self.wait_for_other_than(last) {
            last = state & !(OPEN | JOINED);
            if !self.join(last) {
                continue;
            }
            // SAFETY: joined an open operation: `job` was written before it opened and stays until all have left.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job, participant);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Joins `operation` if it is still open.
    fn join(&self, operation: u64) -> bool {
        let still_open = |state: u64| (state & !JOINED == operation | OPEN).then(|| state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, still_open).is_ok()
    }

    /// The state once an operation other than `last` is open; `None` to stop.
    fn wait_for_other_than(&self, last: u64) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state & !(OPEN | JOINED) != last;
        for _ in 0..SPINS {
            let state = self.state.load(Ordering::Relaxed);
            if is_new(state) {
                return Some(state);
            }
            std::hint::spin_loop();
        }
        let mut bed = self.lock_bed();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // `run` opens, then looks for sleepers; this lies down, then looks for an operation: one sees the other.
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            if is_new(state) {
                break Some(state);
            }
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_whatever_the_count() {
        for count in [0, 1, 2, 3, 7] {
            let mut threads = Threads::new(count);
            for tasks in (0..50).chain([1000]) {
                let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(tasks, |task, participant| {
                    assert!(participant < count.max(1));
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1),
                    "{count} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_hangs_nobody() {
        let mut threads = Threads::new(3);
        for round in 0..20 {
            let run = catch_unwind(AssertUnwindSafe(|| {
                threads.run(100, |task, _| assert!(task != 7 * (round % 5), "task {task} fails"));
            }));
            assert!(run.is_err());
            let done = AtomicUsize::new(0);
            threads.run(100, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 100);
        }
    }

    #[test]
    fn sleeping_threads_wake_for_work_and_for_the_end() {
        let mut threads = Threads::new(4);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(2)); // long past the spin
            let done = AtomicUsize::new(0);
            threads.run(64, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 64);
        }
    }
}
