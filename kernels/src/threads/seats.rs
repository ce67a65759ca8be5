//! Which thread sits where, when there is one for each core.
//!
//! Threads that the system may move end up two on one core when another program takes the other one, and take half the
//! machine instead of three quarters. On a core each they cannot. But then one of them shares its core with the other
//! program, and that should not be the caller, for whom all wait at the end of an operation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::processors::{Placement, keep_to};

/// How often the caller asks whether it was pushed aside.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// How often it was when somebody else computes on its core, too: each of both has it for 3 or 4 ms then.
const CROWDED: u64 = 4;
/// How long it stays where it went, at least: everywhere else may be as crowded.
const STAY: Duration = Duration::from_millis(500);

/// Places of all participants.
#[derive(Default)]
pub(super) struct Seats {
    /// Processors of each participant, or nothing where the system places them.
    seats: Vec<Vec<usize>>,
    /// Where they are placed without seats.
    keep_to: Option<Vec<usize>>,
    /// The caller's; the participant whose it was has the first.
    callers: AtomicUsize,
}

impl Seats {
    pub(super) fn new(placement: &Placement) -> Self {
        let (seats, keep_to) = (placement.seats.clone(), placement.keep_to.clone());
        Self { seats, keep_to, callers: AtomicUsize::new(0) }
    }

    fn of(&self, participant: usize) -> usize {
        match (participant, self.callers.load(Ordering::Relaxed)) {
            (0, callers) => callers,
            (participant, callers) if participant == callers => 0,
            (participant, _) => participant,
        }
    }

    /// Places the calling thread, a participant, and says where.
    pub(super) fn take(&self, participant: usize) -> usize {
        let seat = self.of(participant);
        if let Some(processors) = self.seats.get(seat).or(self.keep_to.as_ref()) {
            let _ = keep_to(processors); // for speed only: who may not be placed computes all the same
        }
        seat
    }

    /// Moves the calling thread if its seat is no longer `seat`.
    #[inline]
    pub(super) fn follow(&self, participant: usize, seat: usize) -> usize {
        if self.of(participant) == seat { seat } else { self.take(participant) }
    }

    /// Changes the caller's seat for the next one.
    fn move_caller(&self) {
        self.callers.store((self.of(0) + 1) % self.seats.len(), Ordering::Relaxed);
        self.take(0);
    }
}

/// What the caller knows of its seat; nothing unless it was placed.
#[derive(Default)]
pub(super) struct Caller {
    looked: Option<Looked>,
}

struct Looked {
    at: Instant,
    again_after: Duration,
    preemptions: u64,
}

impl Caller {
    /// Of the calling thread, which takes its seat.
    pub(super) fn placed(seats: &Seats) -> Self {
        seats.take(0);
        Self { looked: (seats.seats.len() > 1).then(|| Looked::now(LOOK_AROUND)) }
    }

    /// Goes elsewhere if somebody else computes here. Called after each operation.
    pub(super) fn look_around(&mut self, seats: &Seats) {
        let Some(before) = &self.looked else { return };
        let since = before.at.elapsed();
        if since < before.again_after {
            return;
        }
        let now = Looked::now(LOOK_AROUND);
        // Over a longer time, in which it mostly slept, a few are nothing.
        let is_crowded = since < 2 * before.again_after && now.preemptions - before.preemptions >= CROWDED;
        self.looked = Some(now);
        if is_crowded {
            seats.move_caller();
            self.looked = Some(Looked::now(STAY));
        }
    }
}

impl Looked {
    #[allow(clippy::disallowed_methods)] // the system's turns are real time, also in simulations
    fn now(again_after: Duration) -> Self {
        Self { at: Instant::now(), again_after, preemptions: preemptions() }
    }
}

/// How often the calling thread lost its processor although it had work.
#[cfg(target_os = "linux")]
fn preemptions() -> u64 {
    // SAFETY: the structure is plain numbers, and is written by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn preemptions() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seat_has_one_participant_wherever_the_caller_goes() {
        // Processors that no machine has: nobody is really moved.
        let seats = Seats { seats: vec![vec![60_000]; 4], ..Seats::default() };
        for round in 0..9 {
            let mut taken: Vec<usize> = (0..4).map(|participant| seats.of(participant)).collect();
            assert_eq!(taken[0], round % 4);
            taken.sort_unstable();
            assert_eq!(taken, [0, 1, 2, 3]);
            seats.move_caller();
        }
        assert_eq!(seats.follow(2, seats.of(2)), seats.of(2));
    }

    #[test]
    fn a_thread_that_gives_its_processor_away_is_not_pushed_aside() {
        let before = preemptions();
        (0..5).for_each(|_| std::thread::sleep(Duration::from_micros(100)));
        assert!(preemptions() - before < 1000);
    }
}
