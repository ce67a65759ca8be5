//! Ranks on several machines, several on each. An exchange first crosses the network, between the ranks at
//! the same place on each machine, and is then completed within each machine, so that no byte crosses the
//! network twice.

use super::{How, Lost, Ranks, check_lengths};

/// A rank: `across` connects it to the ranks at its place on other machines, `within` to those on its own
/// machine. Ranks are numbered machine by machine.
#[derive(Debug)]
pub struct Grid<A, W> {
    across: A,
    within: W,
    /// Data of all ranks at this place.
    column: Vec<u8>,
    /// Data of all ranks, by place and then by machine.
    columns: Vec<u8>,
    /// Offset added to rank numbers in errors.
    first: usize,
}

impl<A: Ranks, W: Ranks> Grid<A, W> {
    /// A rank of the group formed by the machines that `across` connects, each with as many ranks as
    /// `within`.
    pub fn new(across: A, within: W) -> Self {
        Self { across, within, column: Vec::new(), columns: Vec::new(), first: 0 }
    }

    /// Reports lost ranks by their number in a larger group, in which rank 0 of this group is `first`.
    pub fn numbered_from(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Rank at the given place of the given machine.
    fn rank_of(&self, machine: usize, place: usize) -> usize {
        machine * self.within.count() + place
    }
}

impl<A: Ranks, W: Ranks> Ranks for Grid<A, W> {
    fn rank(&self) -> usize {
        self.rank_of(self.across.rank(), self.within.rank())
    }

    fn count(&self) -> usize {
        self.across.count() * self.within.count()
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        check_lengths(mine, all, self.count());
        let (machines, places, len) = (self.across.count(), self.within.count(), mine.len());
        self.column.resize(machines * len, 0);
        self.columns.resize(machines * places * len, 0);
        let place = self.within.rank();
        let across = self.across.gather(mine, &mut self.column);
        across.map_err(|lost| Lost { rank: self.first + self.rank_of(lost.rank, place), ..lost })?;
        let machine = self.across.rank();
        self.within.gather(&self.column, &mut self.columns).map_err(|lost| match lost.how {
            // The cause of a group's end is already a rank number, not a place.
            How::Ended => lost,
            _ => Lost { rank: self.first + self.rank_of(machine, lost.rank), ..lost },
        })?;
        for (i, from) in self.columns.chunks_exact(len.max(1)).enumerate() {
            let to = self.rank_of(i % machines, i / machines);
            all[to * len..][..len].copy_from_slice(from);
        }
        Ok(())
    }
}
