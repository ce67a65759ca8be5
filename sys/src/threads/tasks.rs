//! Who takes which task of an operation: each participant those of a part of its own, in order, and afterwards what others have
//! left, from the end of their parts. So a thread goes through tasks that lie side by side, knows its next one, and meets in its
//! own cache what it wrote in the operation before, where that was cut alike.

use std::sync::atomic::{AtomicU64, Ordering};

/// The tasks of one operation at a time.
pub(super) struct Tasks {
    parts: Vec<Part>,
}

/// What is left of a participant's part, see [`packed`]; apart from the others, as processors fetch lines in pairs.
#[repr(align(128))]
struct Part(AtomicU64);

/// Tasks `first..end` of a part.
fn packed(first: usize, end: usize) -> u64 {
    ((first as u64) << 32) | end as u64
}

/// What was packed.
fn unpacked(part: u64) -> (usize, usize) {
    ((part >> 32) as usize, part as u32 as usize)
}

impl Tasks {
    /// None yet, for so many participants.
    pub(super) fn new(participants: usize) -> Self {
        Self { parts: (0..participants).map(|_| Part(AtomicU64::new(0))).collect() }
    }

    /// Shares `count` tasks out. Nobody takes one meanwhile.
    ///
    /// # Panics
    /// If there are more than 2^32.
    pub(super) fn share_out(&self, count: usize) {
        assert!(u32::try_from(count).is_ok(), "{count} tasks are more than 2^32");
        let bound = |i: usize| (count as u128 * i as u128 / self.parts.len() as u128) as usize;
        for (i, part) in self.parts.iter().enumerate() {
            part.0.store(packed(bound(i), bound(i + 1)), Ordering::Relaxed);
        }
    }

    /// A task that nobody has taken.
    pub(super) fn take(&self, participant: usize) -> Option<usize> {
        let (before, own) = self.parts.split_at(participant);
        let (own, after) = own.split_first()?;
        own.take_first().or_else(|| after.iter().chain(before).find_map(Part::take_last))
    }

    /// Leaves no task to take.
    pub(super) fn give_up(&self) {
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

    /// Changes what is left, if something is; gives what was.
    fn take(&self, change: impl Fn(usize, usize) -> (usize, usize)) -> Option<(usize, usize)> {
        let taken = |part: u64| {
            let (first, end) = unpacked(part);
            let (first, end) = (first < end).then(|| change(first, end))?;
            Some(packed(first, end))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok().map(unpacked)
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
    fn what_is_given_up_is_taken_by_nobody() {
        let tasks = Tasks::new(2);
        tasks.share_out(100);
        assert_eq!([tasks.take(0), tasks.take(1), tasks.take(0)], [Some(0), Some(50), Some(1)]);
        tasks.give_up();
        assert_eq!([tasks.take(0), tasks.take(1)], [None, None]);
        tasks.share_out(1);
        assert_eq!([tasks.take(0), tasks.take(1)], [Some(0), None]);
    }
}
