//! Dropping the oldest output of a ring.

use super::{Cursor, Ring, SampleOutput, bytes_of};

impl Ring {
    /// Drops the oldest output that all `readers` have read, until at most `goal` bytes are left or nothing
    /// more may go: prompt scores first, then the tokens at the lowest positions.
    pub fn forget_read<'a>(&mut self, goal: usize, readers: impl Iterator<Item = &'a Cursor> + Clone) {
        if self.bytes <= goal {
            return;
        }
        let floor = readers.clone().map(|cursor| cursor.next_score).min().unwrap_or(u32::MAX);
        let count = floor.min(self.scores_end()).saturating_sub(self.scores_from) as usize;
        self.bytes -= self.scores.drain(..count).map(|score| bytes_of(&score)).sum::<usize>();
        self.scores_from += count as u32;
        let floor_of = |sample: &SampleOutput| {
            let lowest = readers.clone().filter_map(|cursor| cursor.position(sample.index)).min();
            lowest.unwrap_or(u32::MAX).min(sample.end())
        };
        let mut floors: Vec<u32> = self.samples.iter().map(floor_of).collect();
        if goal > 0 {
            self.limit_floors(goal, &mut floors);
        }
        for (sample, floor) in self.samples.iter_mut().zip(floors) {
            self.bytes -= sample.forget_before(floor);
        }
    }

    /// `floors` say up to which position each sample may be dropped. Lowers them to one common position that
    /// frees just enough.
    fn limit_floors(&self, goal: usize, floors: &mut [u32]) {
        let freed = |position: u32| -> usize {
            let parts = self.samples.iter().zip(&*floors);
            parts.map(|(sample, &floor)| sample.bytes_before(floor.min(position))).sum()
        };
        let first = self.samples.iter().map(|sample| sample.from).min().unwrap_or(0);
        let last = floors.iter().copied().max().unwrap_or(first);
        // Binary search for the lowest position that frees enough: freed() rises with it.
        let (mut low, mut high) = (first, last);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.bytes.saturating_sub(freed(middle)) <= goal { high = middle } else { low = middle + 1 }
        }
        floors.iter_mut().for_each(|floor| *floor = (*floor).min(low));
    }
}
