//! A fixed set of threads that share the tasks of one operation at a time.
//!
//! The caller works too. Each participant takes the [`tasks`] of its own part first and then those that
//! others have left, so a slow thread takes fewer. Results must not depend on which thread runs a task.
//! Between operations the helpers spin for some tens of microseconds and then sleep, so that an idle machine
//! stays idle. A helper that wakes up late finds the operation closed, and nothing waits for it.
//!
//! If other programs compete for the processors, the system preempts one of these threads for some
//! milliseconds, most likely in the middle of a task, and all the others wait for that task. So helpers yield
//! between tasks, where nothing waits for them, before they are preempted ([`TimeSlice`]). A caller that has
//! waited long sleeps, so that its processor is free for the thread it waits for. No thread is pinned, but
//! helpers stay off the caller's processor: the system likes to wake them there, and the two would share one
//! processor for tens of milliseconds while the other program has a whole one.

mod processors;
mod tasks;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use processors::Mask;
pub use processors::{ThreadPlacement, keep_to};
use tasks::Tasks;

/// Spins of a helper without work before it sleeps: 20–50 µs on current x86.
const SPINS: u32 = 1000;
/// Spins of a caller that waits for helpers before it sleeps: 200–500 µs.
const CALLER_SPINS: u32 = 10_000;
/// How long a helper works before it yields. Systems preempt after 3 to 4 ms, so yielding after 3 ms is often
/// too late.
const TIME_SLICE: Duration = Duration::from_millis(2);

/// Threads that work on one operation at a time; see [`Threads::run`].
pub struct Threads {
    common: Arc<Common>,
    helpers: Vec<JoinHandle<()>>,
    keep_to: Option<Vec<usize>>,
}

/// The function that runs one task of an operation: `work(task, participant)`.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
}

struct Common {
    /// Operation number, [`AWAITED`], [`OPEN`] and the number of helpers in the operation ([`JOINED`]).
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    tasks: Tasks,
    /// The caller's processor when it opened the operation; [`NOWHERE`] if the system does not tell.
    caller_on: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

/// Not a processor's number.
const NOWHERE: usize = usize::MAX;

/// Mask: helpers in the operation.
const JOINED: u64 = 0xffff;
/// Flag: helpers may join the operation.
const OPEN: u64 = 0x1_0000;
/// Flag: the caller sleeps until the last helper has left.
const AWAITED: u64 = 0x2_0000;
/// Increment of the operation number, which is in the bits above.
const OPERATION: u64 = 0x4_0000;

/// The operation number of a state.
fn operation(state: u64) -> u64 {
    state & !(JOINED | OPEN | AWAITED)
}

// SAFETY: `job` is written only by the owner of `Threads`, while no operation is open and no helper has
// joined. Only helpers that joined an open operation read it. Joining and leaving are acquire and release on
// `state`.
unsafe impl Sync for Common {}
// SAFETY: the pointer in `job` is only used while `Threads::run`, which borrowed its target, has not
// returned.
unsafe impl Send for Common {}

impl Threads {
    /// `count` participants including the caller; 0 counts as 1.
    pub fn new(count: usize) -> Self {
        Self::start(count, None)
    }

    /// As many participants as `placement` says, on the processors it names: helpers from the start, the
    /// caller once it has called [`Threads::place_caller`].
    pub fn on(placement: &ThreadPlacement) -> Self {
        Self::start(placement.threads, placement.keep_to.clone())
    }

    /// Moves the calling thread to the placement's processors. Call it on the thread that will call
    /// [`Threads::run`].
    pub fn place_caller(&self) {
        place(self.keep_to.as_deref());
    }

    fn start(count: usize, keep_to: Option<Vec<usize>>) -> Self {
        let count = count.clamp(1, JOINED as usize);
        let common = Arc::new(Common {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            tasks: Tasks::new(count),
            caller_on: AtomicUsize::new(NOWHERE),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        // A helper that cannot be started is not an error: the others do its tasks.
        let helpers = (1..count)
            .map_while(|participant| {
                let common = Arc::clone(&common);
                let name = format!("skein-compute-{participant}");
                let keep_to = keep_to.clone();
                let help = move || {
                    place(keep_to.as_deref());
                    let allowed = keep_to.unwrap_or_else(processors::allowed);
                    common.help(participant, Mask::of(&allowed));
                };
                std::thread::Builder::new().name(name).spawn(help).ok()
            })
            .collect();
        Self { common, helpers, keep_to }
    }

    /// Participants, including the caller.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(task, participant)` once for each task, spread over all participants; returns when all
    /// tasks are done. Each participant mostly gets consecutive tasks. Concurrent calls never have the same
    /// participant. If a task panics, the panic is raised again here once the others have finished.
    pub fn run(&mut self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(|task| work(task, 0));
            return;
        }
        let work: &(dyn Fn(usize, usize) + Sync) = &work;
        // SAFETY: only the lifetime changes; the pointer is not used after this function has returned.
        let work: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(work) };
        let job = Job { work };
        let common = &*self.common;
        // SAFETY: no operation is open and no helper has joined: the last `run` waited for that, and `self`
        // is unique.
        unsafe { *common.job.get() = Some(job) };
        common.tasks.share_out(tasks);
        common.caller_on.store(processors::current().unwrap_or(NOWHERE), Ordering::Relaxed);
        let next = operation(common.state.load(Ordering::Relaxed)).wrapping_add(OPERATION);
        common.state.store(next | OPEN, Ordering::SeqCst);
        if common.sleepers.load(Ordering::SeqCst) > 0 {
            drop(common.lock_sleep());
            common.wake.notify_all();
        }
        common.work(job, 0, &TimeSlice::UNLIMITED);
        common.wait_for_helpers();
        let panic = common.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Placement only affects speed: a thread that cannot be placed computes anyway.
fn place(keep_to: Option<&[usize]>) {
    if let Some(processors) = keep_to {
        let _ = processors::keep_to(processors);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::SeqCst);
        drop(self.common.lock_sleep());
        self.common.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join(); // `work` has caught its panics
        }
    }
}

/// When a thread was last scheduled or yielded, to tell when to yield next.
struct TimeSlice {
    began: Option<Instant>,
}

impl TimeSlice {
    /// For the caller, which never yields: everything waits for it.
    const UNLIMITED: Self = Self { began: None };

    #[allow(clippy::disallowed_methods)] // the system's scheduler runs in real time, also in simulations
    fn begin() -> Self {
        Self { began: Some(Instant::now()) }
    }

    fn is_over(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() >= TIME_SLICE)
    }
}

impl Common {
    fn lock_sleep(&self) -> MutexGuard<'_, ()> {
        self.sleep_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until none is left or the time slice is over. A panic discards the remaining tasks: the
    /// operation has failed anyway.
    fn work(&self, job: Job, participant: usize, slice: &TimeSlice) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this participant is in the operation, so `run` has not returned and its closure is
            // alive.
            let work = unsafe { &*job.work };
            while !slice.is_over() {
                let Some(task) = self.tasks.take(participant) else { return };
                work(task, participant);
            }
        }));
        if let Err(panic) = result {
            self.tasks.discard();
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Closes the operation, and returns when all helpers have left it.
    fn wait_for_helpers(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..CALLER_SPINS {
            if state & JOINED == 0 {
                return;
            }
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        let mut asleep = self.lock_sleep();
        // Either the last helper to leave sees the flag, or this thread sees that it has left.
        state = self.state.fetch_or(AWAITED, Ordering::AcqRel);
        while state & JOINED != 0 {
            asleep = self.done.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// A helper's loop: wait for an operation, join it, work, leave. It may run on the processors in `place`.
    fn help(&self, participant: usize, mut place: Mask) {
        let (mut last, mut slice) = (0, TimeSlice::begin());
        while let Some(state) = self.wait_for_other_than(last, &mut slice) {
            self.keep_off_caller(&mut place);
            if !self.join(operation(state)) {
                last = operation(state);
                continue;
            }
            // SAFETY: this thread has joined an open operation: `job` was written before it opened and stays
            // until all have left.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job, participant, &slice);
            }
            self.leave();
            if slice.is_over() {
                // Yield here, because nothing waits for a helper that has left. `last` is unchanged, so that
                // this helper joins the same operation again if it is still open.
                std::thread::yield_now();
                slice = TimeSlice::begin();
            } else {
                last = operation(state);
            }
        }
    }

    /// Moves this thread off the caller's processor if it is there and may use another.
    fn keep_off_caller(&self, place: &mut Mask) {
        let caller_on = self.caller_on.load(Ordering::Relaxed);
        if processors::current() == Some(caller_on) {
            place.keep_off(caller_on);
        }
    }

    /// Joins operation `number` if it is still open.
    fn join(&self, number: u64) -> bool {
        let still_open = |state: u64| (operation(state) == number && state & OPEN != 0).then(|| state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, still_open).is_ok()
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & JOINED == 1 && before & AWAITED != 0 {
            drop(self.lock_sleep());
            self.done.notify_one();
        }
    }

    /// Waits for an open operation other than `last` and returns its state; `None` to stop. Sleeping starts a
    /// new time slice.
    fn wait_for_other_than(&self, last: u64, slice: &mut TimeSlice) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && operation(state) != last;
        for _ in 0..SPINS {
            let state = self.state.load(Ordering::Relaxed);
            if is_new(state) {
                return Some(state);
            }
            std::hint::spin_loop();
        }
        let mut asleep = self.lock_sleep();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // `run` opens and then checks for sleepers; this registers as a sleeper and then checks for an
        // operation. So one of the two sees the other.
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            if is_new(state) {
                break Some(state);
            }
            asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(asleep);
        *slice = TimeSlice::begin();
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
    fn a_panic_in_a_task_reaches_the_caller_and_nothing_hangs() {
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
            std::thread::sleep(std::time::Duration::from_millis(2)); // far longer than a helper spins
            let done = AtomicUsize::new(0);
            threads.run(64, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 64);
        }
    }

    #[test]
    fn a_helper_that_yields_during_an_operation_rejoins_it() {
        let mut threads = Threads::new(3);
        let runs: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        let by_helpers = AtomicUsize::new(0);
        for _ in 0..3 {
            threads.run(runs.len(), |task, participant| {
                runs[task].fetch_add(1, Ordering::Relaxed);
                by_helpers.fetch_add(usize::from(participant > 0), Ordering::Relaxed);
                std::thread::sleep(TIME_SLICE / 3); // the operation takes many time slices
            });
        }
        assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 3));
        assert!(by_helpers.into_inner() > 0, "helpers took some of 192 tasks of a millisecond");
    }

    #[test]
    fn a_caller_sleeps_until_the_last_helper_has_left() {
        let mut threads = Threads::new(2);
        for _ in 0..20 {
            let done = AtomicUsize::new(0);
            threads.run(2, |_, participant| {
                // Far longer than the caller spins, if a helper got a task at all.
                let pause = if participant > 0 { 5 } else { 0 };
                std::thread::sleep(std::time::Duration::from_millis(pause));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 2);
        }
    }

    #[test]
    fn placed_threads_compute_like_others() {
        let threads = &mut Threads::on(&ThreadPlacement::of_this_machine(0));
        threads.place_caller();
        for _ in 0..200 {
            let done = AtomicUsize::new(0);
            threads.run(100, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 100);
        }
    }
}
