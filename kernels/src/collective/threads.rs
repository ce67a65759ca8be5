//! Ranks in threads of one process, for tests.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Begun, How, Lost, Ranks, check_lengths};

/// A rank of a group of threads. Dropping it ends it, which the others detect immediately.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    group: Arc<Group>,
    /// Number of exchanges so far.
    number: u64,
    timeout: Duration,
}

#[derive(Debug)]
struct Group {
    given: Mutex<Vec<Given>>,
    changed: Condvar,
}

/// Data published by a rank.
#[derive(Debug, Clone, Default)]
struct Given {
    /// Number of its last exchange.
    number: u64,
    ended: bool,
    /// Data of exchange `number` is at `number % 2`: no rank starts exchange `n + 2` before all have finished
    /// `n`.
    bytes: [Vec<u8>; 2],
}

impl Threads {
    /// A group of `count` ranks, in order; a wait lasts at most `timeout`.
    pub fn new(count: usize, timeout: Duration) -> Vec<Self> {
        let given = Mutex::new(vec![Given::default(); count]);
        let group = Arc::new(Group { given, changed: Condvar::new() });
        (0..count).map(|rank| Self { rank, group: group.clone(), number: 0, timeout }).collect()
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Vec<Given>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranks for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.group.lock().len()
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        let (mut given, parity) = (self.group.lock(), ((self.number + 1) % 2) as usize);
        check_lengths(mine, all, given.len());
        self.number += 1;
        let begun = Begun::new(self.number, mine.len(), self.timeout);
        given[self.rank].bytes[parity] = mine.to_vec();
        given[self.rank].number = self.number;
        self.group.changed.notify_all();
        for rank in 0..given.len() {
            while given[rank].number < self.number {
                let left = begun.left();
                if given[rank].ended || left.is_zero() {
                    let how = if given[rank].ended { How::Ended } else { How::Silent };
                    return Err(begun.lost(rank, how));
                }
                let waited = self.group.changed.wait_timeout(given, left);
                given = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let bytes = &given[rank].bytes[parity];
            if bytes.len() != mine.len() {
                return Err(begun.lost(rank, How::Differs(bytes.len() as u64)));
            }
            all[rank * mine.len()..][..mine.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.group.lock()[self.rank].ended = true;
        self.group.changed.notify_all();
    }
}
