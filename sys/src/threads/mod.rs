//! A fixed set of threads that share out the tasks of one operation at a time.
//!
//! The caller works too. Each takes the [`tasks`] of its own part, then others', so a slow thread takes fewer; which thread takes
//! which must not matter to the result. Between operations the others spin for some tens of microseconds, then sleep:
//! an idle machine stays idle. A thread that wakes late finds the operation closed and is not waited for.
//!
//! Where another program wants a processor, too, the system takes it from one of these threads for some milliseconds, most
//! likely amid a task, and all others would wait for that task. So helpers offer their processor between tasks, where
//! nobody waits for them, before it is taken ([`Turn`]); and a caller that waits long sleeps, so that the system can bring
//! the thread it waits for to its processor. None is kept to one processor, but a helper keeps off the caller's: else the
//! system likes to wake it there, where the two take turns for tens of milliseconds while the other program has a processor for
//! itself.

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
pub use processors::Placement;
use tasks::Tasks;

/// Pauses before a thread without work sleeps: 20–50 µs on current x86.
const SPINS: u32 = 1000;
/// Pauses before a caller that waits for the others sleeps: 200–500 µs.
const SPINS_OF_CALLER: u32 = 10_000;
/// How long a helper works before it offers its processor to others. Systems take it after 3 to 4 ms if they are asked to, and
/// after 3 that is often too late.
const TURN: Duration = Duration::from_millis(2);

/// Threads that work on one operation at a time; see [`Threads::run`].
pub struct Threads {
    common: Arc<Common>,
    helpers: Vec<JoinHandle<()>>,
    keep_to: Option<Vec<usize>>,
}

/// One operation: what a task of it does.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
}

struct Common {
    /// Operation number, whether the caller sleeps until it ends, whether it is open, and how many helpers are in it; see
    /// the constants below.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    tasks: Tasks,
    /// The processor that the caller was on when it opened the operation; [`NOWHERE`] where the system does not tell.
    caller_on: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

/// No processor's number.
const NOWHERE: usize = usize::MAX;

const JOINED: u64 = 0xffff;
const OPEN: u64 = 0x1_0000;
const AWAITED: u64 = 0x2_0000;
const OPERATION: u64 = 0x4_0000;

/// The operation that a state is about.
fn operation(state: u64) -> u64 {
    state & !(JOINED | OPEN | AWAITED)
}

// SAFETY: `job` is written only by the owner of `Threads`, while no operation is open and no helper is joined; it is
// read only by helpers that joined an open one. Joining and leaving are acquire and release on `state`.
unsafe impl Sync for Common {}
// SAFETY: the pointer in `job` is used only while `Threads::run`, which borrowed its target, has not returned.
unsafe impl Send for Common {}

impl Threads {
    /// `count` participants, the caller included; 0 counts as 1.
    pub fn new(count: usize) -> Self {
        Self::start(count, None)
    }

    /// As many participants as `placement` says, where it says: the helpers at once, the caller from
    /// [`Threads::place_caller`] on.
    pub fn on(placement: &Placement) -> Self {
        Self::start(placement.threads, placement.keep_to.clone())
    }

    /// Places the calling thread, which is to call [`Threads::run`] from now on.
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
            bed: Mutex::new(()),
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

    /// Participants, the caller included.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(task, participant)` once for each task, on all participants; returns when all are done. After a task a
    /// participant mostly gets the one that follows.
    /// No two calls at a time have the same participant. A panic in a task reaches the caller, others finish first.
    pub fn run(&mut self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(|task| work(task, 0));
            return;
        }
        let work: &(dyn Fn(usize, usize) + Sync) = &work;
        // SAFETY: only the lifetime changes; nobody uses the pointer once this function has returned.
        let work: *const (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(work) };
        let job = Job { work };
        let common = &*self.common;
        // SAFETY: no operation is open and no helper joined: the last `run` waited for that, and `self` is unique.
        unsafe { *common.job.get() = Some(job) };
        common.tasks.share_out(tasks);
        common.caller_on.store(processors::current().unwrap_or(NOWHERE), Ordering::Relaxed);
        let next = operation(common.state.load(Ordering::Relaxed)).wrapping_add(OPERATION);
        common.state.store(next | OPEN, Ordering::SeqCst);
        if common.sleepers.load(Ordering::SeqCst) > 0 {
            drop(common.lock_bed());
            common.wake.notify_all();
        }
        common.work(job, 0, &Turn::ENDLESS);
        common.wait_for_helpers();
        let panic = common.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Placement is for speed only: a thread that may not be placed computes all the same.
fn place(keep_to: Option<&[usize]>) {
    if let Some(processors) = keep_to {
        let _ = processors::keep_to(processors);
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

/// How long a thread has had its processor.
struct Turn {
    began: Option<Instant>,
}

impl Turn {
    /// That of a thread which nobody can do without.
    const ENDLESS: Self = Self { began: None };

    #[allow(clippy::disallowed_methods)] // the system's turns are real time, also in simulations
    fn begin() -> Self {
        Self { began: Some(Instant::now()) }
    }

    fn is_over(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() >= TURN)
    }
}

impl Common {
    fn lock_bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tasks until none is left, or the turn is over. After a panic none is left: the operation has failed anyway.
    fn work(&self, job: Job, participant: usize, turn: &Turn) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this participant is in the operation, so `run` has not returned and its closure lives.
            let work = unsafe { &*job.work };
            while !turn.is_over() {
                let Some(task) = self.tasks.take(participant) else { return };
                work(task, participant);
            }
        }));
        if let Err(panic) = result {
            self.tasks.give_up();
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Closes the operation, and returns when all helpers have left it.
    fn wait_for_helpers(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..SPINS_OF_CALLER {
            if state & JOINED == 0 {
                return;
            }
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        let mut bed = self.lock_bed();
        // The last helper to leave sees this, or this sees that it has left.
        state = self.state.fetch_or(AWAITED, Ordering::AcqRel);
        while state & JOINED != 0 {
            bed = self.done.wait(bed).unwrap_or_else(PoisonError::into_inner);
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// The life of a helper: wait for an operation, join it, work, leave. It may run on the processors in `place`.
    fn help(&self, participant: usize, mut place: Mask) {
        let (mut last, mut turn) = (0, Turn::begin());
        while let Some(state) = self.wait_for_other_than(last, &mut turn) {
            self.keep_off_caller(&mut place);
            if !self.join(operation(state)) {
                last = operation(state);
                continue;
            }
            // SAFETY: joined an open operation: `job` was written before it opened and stays until all have left.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job, participant, &turn);
            }
            self.leave();
            if turn.is_over() {
                // Nobody waits for this thread now; if the operation is still open afterwards, it joins again.
                std::thread::yield_now();
                turn = Turn::begin();
            } else {
                last = operation(state);
            }
        }
    }

    /// Moves this thread to another of the processors that it may use if it is on the caller's.
    fn keep_off_caller(&self, place: &mut Mask) {
        let caller_on = self.caller_on.load(Ordering::Relaxed);
        if processors::current() == Some(caller_on) {
            place.keep_off(caller_on);
        }
    }

    /// Joins `operation` if it is still open.
    fn join(&self, joined: u64) -> bool {
        let still_open = |state: u64| (operation(state) == joined && state & OPEN != 0).then(|| state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, still_open).is_ok()
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & JOINED == 1 && before & AWAITED != 0 {
            drop(self.lock_bed());
            self.done.notify_one();
        }
    }

    /// The state once an operation other than `last` is open; `None` to stop. A thread that slept begins a turn.
    fn wait_for_other_than(&self, last: u64, turn: &mut Turn) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && operation(state) != last;
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
        drop(bed);
        *turn = Turn::begin();
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
    #[test]
    fn a_helper_that_rests_amid_an_operation_comes_back_to_it() {
        let mut threads = Threads::new(3);
        let runs: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        let by_helpers = AtomicUsize::new(0);
        for _ in 0..3 {
            threads.run(runs.len(), |task, participant| {
                runs[task].fetch_add(1, Ordering::Relaxed);
                by_helpers.fetch_add(usize::from(participant > 0), Ordering::Relaxed);
                std::thread::sleep(TURN / 3); // an operation of many turns
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
                // Long past the caller's spins, if a helper got a task at all.
                let pause = if participant > 0 { 5 } else { 0 };
                std::thread::sleep(std::time::Duration::from_millis(pause));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 2);
        }
    }

    #[test]
    fn placed_threads_compute_like_others() {
        let threads = &mut Threads::on(&Placement::of_this_machine(0));
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
