//! The memory that all ranks of a group on one machine share.
//!
//! ```text
//! exchange of steps · exchange of reports · a beat for each rank · ring: writes, reads of each rank, bytes
//! ```
//!
//! The ring carries frames from the leader to every other rank: it is written once, and each rank reads at
//! its own pace.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_kernels::collective::{End, Shared};
use skein_node::clock::{self, Timestamp};
use skein_sys::shared_memory::{APART, SharedMemory, sleep_while, wake};

/// Most bytes of a rank in one exchange of a step; longer messages are split.
const EXCHANGE_BYTES: usize = 1 << 20;
/// Bytes of the ring: several steps of 256 sequences of 2,000 tokens.
const RING_BYTES: usize = 4 << 20;
/// Bytes of a rank's report on a step.
pub const REPORT_BYTES: usize = 16;
/// Longest sleep of a rank without work, and of a leader whose ring is full.
const NAP: Duration = Duration::from_millis(100);

/// A group's memory.
#[derive(Debug, Clone)]
pub struct GroupMemory {
    memory: SharedMemory,
    ranks: usize,
    /// Longest wait within a step.
    patience: Duration,
    ring_bytes: usize,
}

/// Why the ring cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The group has been told to end.
    #[error("the group ends because of rank {0}")]
    Ended(usize),
    /// A rank does not read.
    #[error("rank {rank} has read no frame for {} ms", after.as_millis())]
    Full {
        /// The rank that is behind.
        rank: usize,
        /// How long the leader has waited.
        after: Duration,
    },
    /// A frame longer than any step.
    #[error("a frame of {0} words, at most {MAX_FRAME_WORDS}: the ranks do not run the same program")]
    TooLong(u64),
}

/// Most words of a frame.
pub const MAX_FRAME_WORDS: usize = 1 << 28;

impl GroupMemory {
    /// Memory for `ranks` ranks, of which each waits at most `patience` for the others within a step.
    ///
    /// # Errors
    /// If the system has none.
    pub fn create(ranks: usize, patience: Duration) -> io::Result<Self> {
        Self::with_ring(ranks, patience, RING_BYTES)
    }

    fn with_ring(ranks: usize, patience: Duration, ring_bytes: usize) -> io::Result<Self> {
        let ring = Self::ring_at(ranks) + ring_bytes;
        Ok(Self { memory: SharedMemory::create(ring)?, ranks, patience, ring_bytes })
    }

    /// The memory of the group that this process was started for.
    ///
    /// # Errors
    /// If `descriptor` is not such memory.
    #[cfg(target_os = "linux")]
    pub fn inherited(descriptor: i32, ranks: usize, patience: Duration) -> io::Result<Self> {
        let memory = SharedMemory::inherited(descriptor)?;
        if memory.len() != Self::ring_at(ranks) + RING_BYTES {
            let why = format!("{} bytes are not the memory of a group of {ranks} ranks", memory.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { memory, ranks, patience, ring_bytes: RING_BYTES })
    }

    /// The number under which a child process inherits it.
    #[cfg(target_os = "linux")]
    pub fn descriptor(&self) -> i32 {
        self.memory.descriptor()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The exchanges of `rank` within steps.
    pub fn exchange(&self, rank: usize) -> Shared {
        Shared::new(self.memory.clone(), 0, (rank, self.ranks), EXCHANGE_BYTES, self.patience)
    }

    /// The exchange of `rank`'s reports after steps.
    pub fn reports(&self, rank: usize) -> Shared {
        let at = Self::reports_at(self.ranks);
        Shared::new(self.memory.clone(), at, (rank, self.ranks), REPORT_BYTES, self.patience)
    }

    /// Counts a beat of `rank`.
    pub fn beat(&self, rank: usize) {
        self.memory.word(self.beat_at(rank)).fetch_add(1, Ordering::Relaxed);
    }

    /// Beats of `rank` so far.
    pub fn beats(&self, rank: usize) -> u32 {
        self.memory.word(self.beat_at(rank)).load(Ordering::Relaxed)
    }

    /// Makes every wait of every rank fail because of `rank`.
    pub fn end_because_of(&self, rank: usize) {
        self.exchange(0).end().because_of(rank);
        self.reports(0).end().because_of(rank);
        wake(self.memory.word(Self::written_at(self.ranks)));
        (1..self.ranks).for_each(|rank| wake(self.memory.word(self.read_at(rank))));
    }

    /// The rank because of which the group ends.
    pub fn cause(&self) -> Option<usize> {
        self.end().cause()
    }

    fn end(&self) -> End {
        self.exchange(0).end()
    }

    /// The leader's end of the ring.
    pub fn writer(&self) -> FrameWriter {
        FrameWriter { group: self.clone(), written: 0 }
    }

    /// `rank`'s end of the ring.
    pub fn reader(&self, rank: usize) -> FrameReader {
        FrameReader { group: self.clone(), rank, read: 0 }
    }

    fn reports_at(ranks: usize) -> usize {
        Shared::bytes(ranks, EXCHANGE_BYTES)
    }

    fn beats_at(ranks: usize) -> usize {
        Self::reports_at(ranks) + Shared::bytes(ranks, REPORT_BYTES)
    }

    fn beat_at(&self, rank: usize) -> usize {
        Self::beats_at(self.ranks) + rank * APART
    }

    /// A word that changes with every write, for readers to sleep on; the position is 8 bytes after it.
    fn written_at(ranks: usize) -> usize {
        Self::beats_at(ranks) + ranks * APART
    }

    /// The same for what `rank` has read.
    fn read_at(&self, rank: usize) -> usize {
        Self::written_at(self.ranks) + (1 + rank) * APART
    }

    fn ring_at(ranks: usize) -> usize {
        Self::written_at(ranks) + (1 + ranks) * APART
    }

    fn position(&self, at: usize) -> u64 {
        self.memory.long(at + 8).load(Ordering::Acquire)
    }

    fn advance(&self, at: usize, position: u64) {
        self.memory.long(at + 8).store(position, Ordering::Release);
        self.memory.word(at).fetch_add(1, Ordering::SeqCst);
        wake(self.memory.word(at));
    }

    /// Waits until the position at `at` reaches `position`; false if it has not by `until`.
    fn wait(&self, at: usize, position: u64, until: Option<Timestamp>) -> Result<bool, RingError> {
        loop {
            let seen = self.memory.word(at).load(Ordering::SeqCst);
            if self.position(at) >= position {
                return Ok(true);
            }
            if let Some(rank) = self.cause() {
                return Err(RingError::Ended(rank));
            }
            if until.is_some_and(|until| clock::now() >= until) {
                return Ok(false);
            }
            sleep_while(self.memory.word(at), seen, NAP);
        }
    }

    /// Offset of the ring's byte `position`, and how many bytes follow before the ring begins again.
    fn ring(&self, position: u64) -> (usize, usize) {
        let at = (position % self.ring_bytes as u64) as usize;
        (Self::ring_at(self.ranks) + at, self.ring_bytes - at)
    }
}

/// Writes frames for all other ranks.
#[derive(Debug)]
pub struct FrameWriter {
    group: GroupMemory,
    written: u64,
}

impl FrameWriter {
    /// Writes a frame. Waits for ranks that are behind only if the ring is full.
    ///
    /// # Errors
    /// If the group ends, or a rank does not read in time.
    pub fn write(&mut self, words: &[u32]) -> Result<(), RingError> {
        self.put(&[words.len() as u32, 0])?;
        self.put(words)?;
        self.group.advance(GroupMemory::written_at(self.group.ranks), self.written);
        Ok(())
    }

    fn put(&mut self, mut words: &[u32]) -> Result<(), RingError> {
        while !words.is_empty() {
            let (at, room) = self.group.ring(self.written);
            // Half of the ring at a time: ranks read the first half while the second is written.
            let (now, later) = words.split_at(words.len().min(room.min(self.group.ring_bytes / 2) / 4));
            let bytes = size_of_val(now).next_multiple_of(8) as u64;
            self.make_room(bytes)?;
            self.group.memory.put_words(at, now);
            self.written += bytes;
            words = later;
            if !later.is_empty() {
                self.group.advance(GroupMemory::written_at(self.group.ranks), self.written);
            }
        }
        Ok(())
    }

    fn make_room(&self, bytes: u64) -> Result<(), RingError> {
        let began = clock::now();
        let least = (self.written + bytes).saturating_sub(self.group.ring_bytes as u64);
        for rank in 1..self.group.ranks {
            if !self.group.wait(self.group.read_at(rank), least, Some(began + self.group.patience))? {
                return Err(RingError::Full { rank, after: clock::now().since(began) });
            }
        }
        Ok(())
    }
}

/// Reads the leader's frames.
#[derive(Debug)]
pub struct FrameReader {
    group: GroupMemory,
    rank: usize,
    read: u64,
}

impl FrameReader {
    /// Waits for the next frame, for as long as the group exists, and reads it into `words`.
    ///
    /// # Errors
    /// If the group ends.
    pub fn read(&mut self, words: &mut Vec<u32>) -> Result<(), RingError> {
        let mut length = [0; 2];
        self.take(&mut length)?;
        let length = length[0] as usize;
        if length > MAX_FRAME_WORDS {
            return Err(RingError::TooLong(length as u64));
        }
        words.resize(length, 0);
        self.take(words)
    }

    fn take(&mut self, mut words: &mut [u32]) -> Result<(), RingError> {
        while !words.is_empty() {
            let (at, room) = self.group.ring(self.read);
            let now = words.len().min(room.min(self.group.ring_bytes / 2) / 4);
            let (now, later) = words.split_at_mut(now);
            let end = self.read + size_of_val(now).next_multiple_of(8) as u64;
            self.group.wait(GroupMemory::written_at(self.group.ranks), end, None)?;
            self.group.memory.get_words(at, now);
            self.read = end;
            self.group.advance(self.group.read_at(self.rank), end);
            words = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn frame(number: usize) -> Vec<u32> {
        (0..(number * 37) % 500).map(|i| (i * number) as u32).collect()
    }

    #[test]
    fn every_rank_reads_every_frame_also_those_longer_than_the_ring() {
        for ring_bytes in [64, 1024, RING_BYTES] {
            let group = GroupMemory::with_ring(3, PATIENCE, ring_bytes).unwrap();
            let read = |rank| {
                let mut reader = group.reader(rank);
                std::thread::spawn(move || {
                    let mut words = Vec::new();
                    for number in 0..100 {
                        reader.read(&mut words).unwrap();
                        assert_eq!(words, frame(number), "frame {number} of a ring of {ring_bytes}");
                    }
                })
            };
            let readers = [read(1), read(2)];
            let mut writer = group.writer();
            (0..100).for_each(|number| writer.write(&frame(number)).unwrap());
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        }
    }

    #[test]
    fn a_rank_that_does_not_read_is_named_in_time_and_an_end_wakes_readers() {
        let group = GroupMemory::with_ring(2, Duration::from_millis(50), 64).unwrap();
        let mut writer = group.writer();
        let error = (0..3).find_map(|_| writer.write(&[1; 8]).err());
        assert!(matches!(error, Some(RingError::Full { rank: 1, .. })), "{error:?}");
        let mut reader = GroupMemory::with_ring(2, PATIENCE, 64).unwrap().reader(1);
        let group = reader.group.clone();
        let waiting = std::thread::spawn(move || reader.read(&mut Vec::new()));
        group.end_because_of(0);
        assert_eq!(waiting.join().unwrap(), Err(RingError::Ended(0)));
        assert_eq!(group.exchange(1).end().cause(), Some(0));
    }
}
