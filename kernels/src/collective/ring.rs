//! Ring buffer of words in shared memory with one writing process and several readers, each at its own pace.
//!
//! ```text
//! written: word, position · for each reader: word, position · bytes
//! ```
//!
//! The words change with every move; a waiting process sleeps on them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use skein_sys::shared_memory::{APART, SharedMemory, sleep_while, wake};

use super::End;

/// Longest sleep between checks whether the group has ended.
const NAP: Duration = Duration::from_millis(100);

/// A ring buffer in a group's memory.
#[derive(Debug, Clone)]
pub struct Ring {
    memory: SharedMemory,
    at: usize,
    bytes: usize,
    readers: usize,
    end: End,
}

/// Why a ring is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The group has ended.
    #[error("the group ends because of rank {0}")]
    Ended(usize),
    /// A reader or the writer made no progress.
    #[error("no progress for {} ms", after.as_millis())]
    Late {
        /// Reader that is behind or waiting.
        reader: usize,
        /// How long the other side waited.
        after: Duration,
    },
}

#[allow(clippy::disallowed_methods)] // deadlines of waits between threads and processes
fn now() -> Instant {
    Instant::now()
}

impl Ring {
    /// Memory for a ring of `bytes` bytes, in bytes.
    pub fn size(bytes: usize, readers: usize) -> usize {
        ((1 + readers) * APART + bytes).next_multiple_of(APART)
    }

    /// The ring at offset `at`, where the memory is zero before first use. Waits fail once `end` reports the
    /// group's end.
    ///
    /// # Panics
    /// If `at` or `bytes` is not a multiple of its alignment, or the memory is too small.
    pub fn new(memory: SharedMemory, at: usize, bytes: usize, readers: usize, end: End) -> Self {
        assert!(
            at.is_multiple_of(APART) && bytes.is_multiple_of(16) && bytes > 0,
            "a ring of {bytes} at {at}"
        );
        assert!(at + Self::size(bytes, readers) <= memory.len(), "the memory has room for the ring");
        Self { memory, at, bytes, readers, end }
    }

    /// Writing end; waits up to `timeout` while the ring is full.
    pub fn writer(&self, timeout: Duration) -> RingWriter {
        RingWriter { ring: self.clone(), written: 0, timeout }
    }

    /// Reading end of reader number `reader`, from 0.
    pub fn reader(&self, reader: usize) -> RingReader {
        RingReader { ring: self.clone(), reader, read: 0 }
    }

    /// Wakes all sleeping processes, so that they detect the group's end.
    pub fn wake(&self) {
        (0..=self.readers).for_each(|i| wake(self.memory.word(self.at + i * APART)));
    }

    fn read_at(&self, reader: usize) -> usize {
        self.at + (1 + reader) * APART
    }

    fn position(&self, at: usize) -> u64 {
        self.memory.long(at + 8).load(Ordering::Acquire)
    }

    fn advance(&self, at: usize, position: u64) {
        self.memory.long(at + 8).store(position, Ordering::Release);
        self.memory.word(at).fetch_add(1, Ordering::SeqCst);
        wake(self.memory.word(at));
    }

    /// Waits up to `most` until the position at `at` reaches `position`; false on timeout.
    fn wait(&self, at: usize, position: u64, most: Option<Duration>) -> Result<bool, RingError> {
        let began = most.map(|_| now());
        loop {
            let seen = self.memory.word(at).load(Ordering::SeqCst);
            if self.position(at) >= position {
                return Ok(true);
            }
            if let Some(rank) = self.end.cause() {
                return Err(RingError::Ended(rank));
            }
            if let (Some(began), Some(most)) = (began, most)
                && began.elapsed() >= most
            {
                return Ok(false);
            }
            sleep_while(self.memory.word(at), seen, NAP.min(most.unwrap_or(NAP)));
        }
    }

    /// Offset of byte `position`, and the number of contiguous bytes from there.
    fn byte(&self, position: u64) -> (usize, usize) {
        let at = (position % self.bytes as u64) as usize;
        (self.at + (1 + self.readers) * APART + at, self.bytes - at)
    }

    /// Words moved at a time: at most half of the ring, so that the writer and the readers overlap.
    fn piece(&self, words: usize, room: usize) -> usize {
        words.min(room.min(self.bytes / 2) / 4)
    }
}

/// Writing end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    ring: Ring,
    written: u64,
    timeout: Duration,
}

impl RingWriter {
    /// Appends `words`; the last of them become visible with [`publish`](Self::publish).
    ///
    /// # Errors
    /// If the group ends, or a reader makes no room in time.
    pub fn put(&mut self, mut words: &[u32]) -> Result<(), RingError> {
        while !words.is_empty() {
            let (at, room) = self.ring.byte(self.written);
            let (now, later) = words.split_at(self.ring.piece(words.len(), room));
            let bytes = size_of_val(now).next_multiple_of(8) as u64;
            self.make_room(bytes)?;
            self.ring.memory.put_words(at, now);
            self.written += bytes;
            words = later;
            if !later.is_empty() {
                self.publish();
            }
        }
        Ok(())
    }

    /// Makes everything written visible to the readers.
    pub fn publish(&self) {
        self.ring.advance(self.ring.at, self.written);
    }

    fn make_room(&self, bytes: u64) -> Result<(), RingError> {
        let least = (self.written + bytes).saturating_sub(self.ring.bytes as u64);
        for reader in 0..self.ring.readers {
            if !self.ring.wait(self.ring.read_at(reader), least, Some(self.timeout))? {
                return Err(RingError::Late { reader, after: self.timeout });
            }
        }
        Ok(())
    }
}

/// Reading end of a ring.
#[derive(Debug)]
pub struct RingReader {
    ring: Ring,
    reader: usize,
    read: u64,
}

impl RingReader {
    /// Whether there are unread words, after waiting up to `most` for them.
    ///
    /// # Errors
    /// If the group ends.
    pub fn has_more(&self, most: Duration) -> Result<bool, RingError> {
        self.ring.wait(self.ring.at, self.read + 1, Some(most))
    }

    /// Waits up to `most`, or as long as the group exists, for the next `words`, which the writer put in one
    /// call.
    ///
    /// # Errors
    /// If the group ends, or nothing arrives in time.
    pub fn take(&mut self, mut words: &mut [u32], most: Option<Duration>) -> Result<(), RingError> {
        while !words.is_empty() {
            let (at, room) = self.ring.byte(self.read);
            let (now, later) = words.split_at_mut(self.ring.piece(words.len(), room));
            let end = self.read + size_of_val(now).next_multiple_of(8) as u64;
            if !self.ring.wait(self.ring.at, end, most)? {
                let after = most.unwrap_or_default();
                return Err(RingError::Late { reader: self.reader, after });
            }
            self.ring.memory.get_words(at, now);
            self.read = end;
            self.ring.advance(self.ring.read_at(self.reader), end);
            words = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shared;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn ring(bytes: usize, readers: usize) -> Ring {
        let before = Shared::bytes(1, 64);
        let memory = SharedMemory::create(before + Ring::size(bytes, readers)).unwrap();
        let end = Shared::new(memory.clone(), 0, (0, 1), 64, TIMEOUT).end();
        Ring::new(memory, before, bytes, readers, end)
    }

    fn message(number: usize) -> Vec<u32> {
        (0..1 + (number * 37) % 500).map(|i| (i * number) as u32).collect()
    }

    #[test]
    fn every_reader_reads_every_word_also_of_messages_longer_than_the_ring() {
        for bytes in [64, 1024, 1 << 20] {
            let ring = ring(bytes, 2);
            let read = |reader| {
                let mut reader = ring.reader(reader);
                std::thread::spawn(move || {
                    for number in 0..100 {
                        let mut words = vec![0; message(number).len()];
                        reader.take(&mut words, Some(TIMEOUT)).unwrap();
                        assert_eq!(words, message(number), "message {number} of a ring of {bytes}");
                    }
                })
            };
            let readers = [read(0), read(1)];
            let mut writer = ring.writer(TIMEOUT);
            for number in 0..100 {
                writer.put(&message(number)).unwrap();
                writer.publish();
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        }
    }

    #[test]
    fn waits_end_in_time_and_with_the_group() {
        let ring = ring(64, 1);
        let mut writer = ring.writer(Duration::from_millis(50));
        let error = (0..3).find_map(|_| writer.put(&[1; 8]).err());
        assert!(matches!(error, Some(RingError::Late { reader: 0, .. })), "{error:?}");
        writer.publish();
        let mut reader = ring.reader(0);
        let empty = self::ring(64, 1);
        let late = empty.reader(0).take(&mut [0; 4], Some(Duration::from_millis(10)));
        assert!(matches!(late, Err(RingError::Late { .. })), "{late:?}");
        assert_eq!(empty.reader(0).has_more(Duration::from_millis(1)), Ok(false));
        assert_eq!(reader.has_more(TIMEOUT), Ok(true));
        reader.take(&mut [0; 16], Some(TIMEOUT)).unwrap();
        ring.end.because_of(3);
        assert_eq!(reader.take(&mut [0; 8], None), Err(RingError::Ended(3)));
    }
}
