//! Assigns the tasks of an operation to participants. Each one takes the tasks of its own part in order, and
//! then what others have left, from the ends of their parts. So a thread processes adjacent tasks, knows its
//! next one, and finds in its own cache what it wrote in the previous operation, if that was divided alike.

use std::sync::atomic::{AtomicU64, Ordering};

/// The remaining tasks of the current operation.
pub(super) struct Tasks {
    parts: Vec<Part>,
}

/// The remaining tasks of one part, as [`pack`] encodes them. Padded to two cache lines because processors
/// fetch lines in pairs.
#[repr(align(128))]
struct Part(AtomicU64);

/// Encodes the tasks `first..end` of a part.
fn pack(first: usize, end: usize) -> u64 {
    ((first as u64) << 32) | end as u64
}

/// Inverse of [`pack`]: `(first, end)`.
fn unpack(part: u64) -> (usize, usize) {
    ((part >> 32) as usize, part as u32 as usize)
}

impl Tasks {
    /// For `participants` participants; no tasks yet.
    pub(super) fn new(participants: usize) -> Self {
        Self { parts: (0..participants).map(|_| Part(AtomicU64::new(0))).collect() }
    }

    /// Divides `count` tasks into one contiguous part per participant. Must not run concurrently with
    /// [`Self::take`].
    ///
    /// # Panics
    /// If `count` is 2^32 or more.
    pub(super) fn share_out(&self, count: usize) {
        assert!(u32::try_from(count).is_ok(), "{count} tasks are too many, the limit is 2^32 - 1");
        let bound = |i: usize| (count as u128 * i as u128 / self.parts.len() as u128) as usize;
        for (i, part) in self.parts.iter().enumerate() {
            part.0.store(pack(bound(i), bound(i + 1)), Ordering::Relaxed);
        }
    }

    /// Takes a task for `participant`; `None` if no task is left.
    pub(super) fn take(&self, participant: usize) -> Option<usize> {
        let (before, own) = self.parts.split_at(participant);
        let (own, after) = own.split_first()?;
        own.take_first().or_else(|| after.iter().chain(before).find_map(Part::take_last))
    }

    /// Discards the remaining tasks.
    pub(super) fn discard(&self) {
        self.parts.iter().for_each(|part| part.0.store(0, Ordering::Relaxed));
    }
}

impl Part {
    fn take_first(&self) -> Option<usize> {
        self.take(|first, end| (first + 1, end)).map(|(first, _)| first)
    }

    fn take_last(&self) -> Option<usize> {
        self.take(|first, end| (first, end - 1)).map(|(_, end)| end - 1)
    }

    /// Applies `change` to what is left, if anything; returns the previous `(first, end)`.
    fn take(&self, change: impl Fn(usize, usize) -> (usize, usize)) -> Option<(usize, usize)> {
        let taken = |part: u64| {
            let (first, end) = unpack(part);
            let (first, end) = (first < end).then(|| change(first, end))?;
            Some(pack(first, end))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok().map(unpack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_participant_takes_its_own_in_order_and_then_the_last_of_others() {
        let tasks = Tasks::new(3);
        tasks.share_out(8);
        let order: Vec<usize> = std::iter::from_fn(|| tasks.take(1)).collect();
        assert_eq!(order, [2, 3, 4, 7, 6, 5, 1, 0]);
        assert!((0..3).all(|participant| tasks.take(participant).is_none()));
    }

    #[test]
    fn discarded_tasks_are_not_taken() {
        let tasks = Tasks::new(2);
        tasks.share_out(100);
        assert_eq!([tasks.take(0), tasks.take(1), tasks.take(0)], [Some(0), Some(50), Some(1)]);
        tasks.discard();
        assert_eq!([tasks.take(0), tasks.take(1)], [None, None]);
        tasks.share_out(1);
        assert_eq!([tasks.take(0), tasks.take(1)], [Some(0), None]);
    }
}
