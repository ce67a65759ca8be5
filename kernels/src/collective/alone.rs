//! A group with a single rank.

use super::{Lost, Ranks, check_lengths};

/// The only rank of its group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        check_lengths(mine, all, 1);
        all.copy_from_slice(mine);
        Ok(())
    }
}
