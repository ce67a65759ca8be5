//! Short prompts before long ones: who may overtake in the step being planned, and how many of its rows are kept for it.
//!
//! In rank order alone a short question behind a long document waits for all of the document. So the prompts with the
//! least left to compute get up to half of a step's prompt rows, and the first in rank gets the other half: a short one
//! reaches its first token in about twice the time that it needs alone, and nobody starves, for whoever is first in rank
//! moves at half the speed at least. Equal prompts still end one after another: the one that came first is the one with
//! the least left, and then nobody overtakes.
//!
//! A step in which somebody overtakes is short, too: rows that others get there are time that the short one waits.
//!
//! Room is kept for those before it: who waits may overtake only if it fits beside all that wait before it, so that
//! nobody who needs many blocks is passed by for ever by those who need few. Priorities are not overtaken.

use super::Limits;
use super::queues::Queues;
use super::sequence::{Rank, Sequence};

/// Rows of the step being planned that are kept for those that overtake.
#[derive(Debug, Default)]
pub(super) struct Overtaking(Vec<(Rank, u32)>);

impl Overtaking {
    /// Whether nobody overtakes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps rows for this one.
    pub fn keep(&mut self, rank: Rank, rows: u32) {
        self.0.push((rank, rows));
    }

    /// Rows kept for this one; 0 for one that does not overtake.
    pub fn rows(&self, rank: Rank) -> u32 {
        self.0.iter().find(|(other, _)| *other == rank).map_or(0, |&(_, rows)| rows)
    }

    /// Rows kept for those that have none in `step` yet. One that lost its place keeps none.
    pub fn rows_kept(&self, queues: &Queues, step: u64) -> u32 {
        let waits =
            |rank: Rank| queues.index_of(rank).is_some_and(|index| !queues.running[index].is_in(step));
        self.0.iter().filter(|&&(rank, _)| waits(rank)).map(|&(_, rows)| rows).sum()
    }
}

/// Seats and blocks that nobody has a claim to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub seats: usize,
    pub blocks: u32,
}

/// A prompt that could have rows in the step being planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// Tokens to compute before its first draw; of one that waits, by what was cached when it came.
    pub left: u32,
    pub rank: Rank,
}

/// The first prompt in rank, and those that may overtake it, shortest first; `None` without any prompt.
pub(super) fn shorter(
    queues: &Queues,
    limits: &Limits,
    room: Room,
    step: u64,
) -> Option<(Candidate, Vec<Candidate>)> {
    let candidates = candidates(queues, limits, room, step);
    let first = candidates.iter().min_by_key(|candidate| candidate.rank).copied()?;
    let overtakes = |other: &Candidate| {
        other.left < first.left && other.rank.priority == first.rank.priority && other.rank != first.rank
    };
    let mut shorter: Vec<Candidate> = candidates.into_iter().filter(overtakes).collect();
    shorter.sort_unstable();
    Some((first, shorter))
}

/// Prompts that run, and those at the head of the queue for which there is room all together.
fn candidates(queues: &Queues, limits: &Limits, mut room: Room, step: u64) -> Vec<Candidate> {
    let wants = |sequence: &&Sequence| {
        !sequence.is_in(step) && !sequence.is_decoding(step) && sequence.pending(step) > 0
    };
    let running = queues.running.iter().filter(wants);
    let running = running.map(|sequence| Candidate { left: sequence.pending(step), rank: sequence.rank });
    let admissible = queues.waiting.values().take_while(|sequence| {
        // What it shares with others is not subtracted: nothing is looked up for so many in every step.
        let needed = sequence.blocks_to_grow(limits);
        let fits = sequence.samples.len() <= room.seats && needed <= room.blocks;
        if fits {
            room.seats -= sequence.samples.len();
            room.blocks -= needed;
        }
        fits
    });
    let ready = admissible.filter(|sequence| sequence.hold.is_none());
    let waiting = ready.map(|sequence| Candidate { left: sequence.uncached, rank: sequence.rank });
    running.chain(waiting).collect()
}
