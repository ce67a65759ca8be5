//! Ranks in processes of one machine that exchange through shared memory.
//!
//! ```text
//! end word
//! for each rank:  stamp · sleepers · slot 0: length, bytes · slot 1: length, bytes
//! ```
//!
//! A rank writes its bytes to slot `n % 2`, then stores `n` as its stamp. Once a peer's stamp is `n`, its
//! slot is read. Two slots suffice: a rank writes for exchange `n + 2` only after it has seen every stamp `n
//! + 1`, and a rank stores `n + 1` only after it has read all of exchange `n`.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use skein_sys::shared_memory::{APART, SharedMemory, sleep_while, wake};

use super::{Begun, How, Lost, MAX_RANKS, Ranks, check_lengths};

/// How long a rank spins before it sleeps. An exchange between running ranks takes a few microseconds.
const SPIN: Duration = Duration::from_micros(30);
/// Spins between two clock readings.
const SPINS: u32 = 64;
/// Longest sleep between checks whether the group has ended.
const NAP: Duration = Duration::from_millis(20);

/// Bytes before the first rank's area.
const HEADER: usize = APART;
/// Offsets in a rank's area.
const STAMP: usize = 0;
const SLEEPERS: usize = APART;
const SLOTS: usize = 2 * APART;
/// Size of a slot's header, in bytes: the length.
const SLOT_HEADER: usize = 64;

/// A rank of a group of processes.
#[derive(Debug)]
pub struct Shared {
    memory: SharedMemory,
    layout: Layout,
    rank: usize,
    /// Number of exchanges so far.
    number: u64,
    timeout: Duration,
    /// Offset added to rank numbers in errors.
    first: usize,
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Offset of the group's area in the memory.
    at: usize,
    count: usize,
    /// Capacity of a slot, in bytes.
    capacity: usize,
}

impl Layout {
    fn slot_bytes(&self) -> usize {
        SLOT_HEADER + self.capacity.next_multiple_of(APART)
    }

    fn rank_bytes(&self) -> usize {
        (SLOTS + 2 * self.slot_bytes()).next_multiple_of(APART)
    }

    fn of_rank(&self, rank: usize) -> usize {
        self.at + HEADER + rank * self.rank_bytes()
    }

    fn slot(&self, rank: usize, number: u64) -> usize {
        self.of_rank(rank) + SLOTS + (number % 2) as usize * self.slot_bytes()
    }
}

/// Ends a group's exchanges from any thread or process with access to its memory.
#[derive(Debug, Clone)]
pub struct End {
    memory: SharedMemory,
    layout: Layout,
}

impl End {
    /// Fails every exchange from now on, with `rank` as the cause.
    pub fn because_of(&self, rank: usize) {
        let word = self.memory.word(self.layout.at);
        let _ = word.compare_exchange(0, rank as u32 + 1, Ordering::AcqRel, Ordering::Relaxed);
        for rank in 0..self.layout.count {
            wake(self.memory.word(self.layout.of_rank(rank) + STAMP));
        }
    }

    /// Rank that caused the group to end.
    pub fn cause(&self) -> Option<usize> {
        self.memory.word(self.layout.at).load(Ordering::Acquire).checked_sub(1).map(|rank| rank as usize)
    }
}

impl Shared {
    /// Memory for `count` ranks that exchange `capacity` bytes at a time, in bytes; longer messages are
    /// split.
    pub fn bytes(count: usize, capacity: usize) -> usize {
        Layout { at: 0, count, capacity }.of_rank(count)
    }

    /// Rank `rank` of `count`, in the area of `memory` that starts at `at` and is zero before the first
    /// exchange. A wait lasts at most `timeout`.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`APART`], or the memory is too small.
    pub fn new(
        memory: SharedMemory,
        at: usize,
        (rank, count): (usize, usize),
        capacity: usize,
        timeout: Duration,
    ) -> Self {
        assert!(rank < count && count <= MAX_RANKS, "rank {rank} of {count}, at most {MAX_RANKS}");
        assert!(at.is_multiple_of(APART) && capacity > 0, "at {at}, {capacity} bytes at a time");
        let layout = Layout { at, count, capacity };
        assert!(layout.of_rank(count) <= memory.len(), "the memory has room for {count} ranks");
        Self { memory, layout, rank, number: 0, timeout, first: 0 }
    }

    /// Reports lost ranks by their number in a larger group, in which rank 0 of this group is `first`.
    pub fn numbered_from(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// All ranks of a group, for threads of this process.
    ///
    /// # Errors
    /// If the system cannot provide the memory.
    pub fn in_one_process(count: usize, capacity: usize, timeout: Duration) -> io::Result<Vec<Self>> {
        let memory = SharedMemory::create(Self::bytes(count, capacity))?;
        let rank = |rank| Self::new(memory.clone(), 0, (rank, count), capacity, timeout);
        Ok((0..count).map(rank).collect())
    }

    /// Handle to end the group's exchanges.
    pub fn end(&self) -> End {
        End { memory: self.memory.clone(), layout: self.layout }
    }

    /// Publishes `mine`, which must fit a slot.
    fn give(&self, mine: &[u8]) {
        let (slot, own) = (self.layout.slot(self.rank, self.number), self.layout.of_rank(self.rank));
        self.memory.long(slot).store(mine.len() as u64, Ordering::Relaxed);
        self.memory.put(slot + SLOT_HEADER, mine);
        let stamp = self.memory.word(own + STAMP);
        // Sequentially consistent, as in `wait`: either the sleeper sees the stamp, or this thread sees the
        // sleeper.
        stamp.store(self.number as u32, Ordering::SeqCst);
        if self.memory.word(own + SLEEPERS).load(Ordering::SeqCst) > 0 {
            wake(stamp);
        }
    }

    /// Waits until `rank` has published its bytes for this exchange.
    fn wait(&self, rank: usize, begun: &Begun) -> Result<(), Lost> {
        let stamp = self.memory.word(self.layout.of_rank(rank) + STAMP);
        let given = || has_reached(stamp.load(Ordering::SeqCst), self.number as u32);
        let latest = begun.at.elapsed() + SPIN;
        loop {
            for _ in 0..SPINS {
                if given() {
                    return Ok(());
                }
                spin_loop();
            }
            if begun.at.elapsed() > latest {
                break;
            }
        }
        let sleepers = self.memory.word(self.layout.of_rank(rank) + SLEEPERS);
        sleepers.fetch_add(1, Ordering::SeqCst);
        let outcome = self.sleep_until(rank, stamp, &given, begun);
        sleepers.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn sleep_until(
        &self,
        rank: usize,
        stamp: &AtomicU32,
        given: &impl Fn() -> bool,
        begun: &Begun,
    ) -> Result<(), Lost> {
        loop {
            let seen = stamp.load(Ordering::SeqCst);
            if given() {
                return Ok(());
            }
            if let Some(rank) = self.end().cause() {
                return Err(begun.lost(rank, How::Ended));
            }
            let left = begun.left();
            if left.is_zero() {
                return Err(begun.lost(self.first + rank, How::Silent));
            }
            sleep_while(stamp, seen, left.min(NAP));
        }
    }

    /// Exchanges one piece. Rank 0's bytes go to the start of `all`, and each further rank's `stride` bytes
    /// later.
    fn exchange(&mut self, mine: &[u8], all: &mut [u8], stride: usize) -> Result<(), Lost> {
        self.number += 1;
        let begun = Begun::new(self.number, mine.len(), self.timeout);
        if let Some(rank) = self.end().cause() {
            return Err(begun.lost(rank, How::Ended));
        }
        self.give(mine);
        all[self.rank * stride..][..mine.len()].copy_from_slice(mine);
        // Each rank starts with its successor, so that ranks do not all read the same slot at once.
        for rank in (self.rank + 1..self.layout.count).chain(0..self.rank) {
            self.wait(rank, &begun)?;
            let slot = self.layout.slot(rank, self.number);
            let length = self.memory.long(slot).load(Ordering::Relaxed);
            if length != mine.len() as u64 {
                return Err(begun.lost(self.first + rank, How::Differs(length)));
            }
            self.memory.get(slot + SLOT_HEADER, &mut all[rank * stride..][..mine.len()]);
        }
        Ok(())
    }
}

/// Whether a stamp is at least `number`; both wrap around.
fn has_reached(stamp: u32, number: u32) -> bool {
    stamp.wrapping_sub(number) as i32 >= 0
}

impl Ranks for Shared {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.layout.count
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        check_lengths(mine, all, self.layout.count);
        if mine.len() <= self.layout.capacity {
            return self.exchange(mine, all, mine.len());
        }
        for (piece, at) in mine.chunks(self.layout.capacity).zip((0..).step_by(self.layout.capacity)) {
            self.exchange(piece, &mut all[at..], mine.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_group_exchanges_nothing_and_wakes_those_that_wait() {
        let mut ranks = Shared::in_one_process(3, 64, Duration::from_secs(60)).unwrap();
        let end = ranks[0].end();
        let mut first = ranks.swap_remove(0);
        let waiting = std::thread::spawn(move || first.gather(&[1; 8], &mut [0; 24]));
        std::thread::sleep(Duration::from_millis(5));
        end.because_of(2);
        end.because_of(1); // the first cause is kept
        let lost = waiting.join().unwrap().unwrap_err();
        assert_eq!((lost.rank, lost.how), (2, How::Ended));
        assert!(lost.after < Duration::from_secs(10));
        assert_eq!(ranks[0].gather(&[], &mut []).unwrap_err().rank, 2);
    }

    #[test]
    fn stamps_wrap_around() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(0, u32::MAX) && !has_reached(u32::MAX, 0));
    }
}
