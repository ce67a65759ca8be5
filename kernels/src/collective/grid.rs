//! Ranks on several machines, several on each: an exchange goes over the network first, between the ranks
//! with the same place on each machine, and then within each machine. So no bytes cross the network twice.

use super::{How, Lost, Ranks, check_lengths};

/// One rank: `across` connects it to the ranks with its place on the other machines, `within` to those of its
/// own. Ranks are numbered machine by machine.
#[derive(Debug)]
pub struct Grid<A, W> {
    across: A,
    within: W,
    /// What the ranks with this place gave.
    column: Vec<u8>,
    /// What all ranks gave, by place and then by machine.
    columns: Vec<u8>,
    /// Number of the first rank in what is said of lost ones.
    first: usize,
}

impl<A: Ranks, W: Ranks> Grid<A, W> {
    /// All ranks of the machines that `across` connects; each has as many as `within`.
    pub fn new(across: A, within: W) -> Self {
        Self { across, within, column: Vec::new(), columns: Vec::new(), first: 0 }
    }

    /// Names lost ranks by their number in a larger group, in which rank 0 of this one is `first`.
    pub fn numbered_from(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The rank with the given place on the given machine.
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
            // The cause of a group's end is a rank of all, and not a place.
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
