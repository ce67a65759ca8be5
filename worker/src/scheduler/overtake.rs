//! Short prompts before long ones: which may overtake in the step being planned, and how many rows are
//! reserved for them.
//!
//! In rank order alone, a short question behind a long document waits for the whole document. So the prompts
//! with the least left to compute get up to half of a step's prompt rows, and the first in rank gets the
//! other half. A short prompt reaches its first token in about twice the time that it needs alone, and
//! nothing starves: the first in rank keeps at least half of its speed. Equal prompts still finish one after
//! another, because the earliest also has the least left, so none overtakes.
//!
//! A step with an overtaking prompt is kept short, too: its other rows are time that the short prompt waits.
//!
//! A waiting prompt may overtake only if it fits together with all that wait before it. Otherwise small
//! requests could pass one that needs many blocks forever. Priorities are not overtaken.

use super::Limits;
use super::queues::Queues;
use super::sequence::{Rank, Sequence};
use crate::kv_cache::KvCache;

/// Rows of the step being planned, reserved for overtaking prompts.
#[derive(Debug, Default)]
pub(super) struct Overtaking(Vec<(Rank, u32)>);

impl Overtaking {
    /// True if no prompt overtakes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reserves rows for the prompt at `rank`.
    pub fn reserve(&mut self, rank: Rank, rows: u32) {
        self.0.push((rank, rows));
    }

    /// Rows reserved for the prompt at `rank`; 0 if it does not overtake.
    pub fn rows(&self, rank: Rank) -> u32 {
        self.0.iter().find(|(other, _)| *other == rank).map_or(0, |&(_, rows)| rows)
    }

    /// Reserved rows not used in `step` yet. A preempted prompt loses its reservation.
    pub fn rows_reserved(&self, queues: &Queues, step: u64) -> u32 {
        let waits =
            |rank: Rank| queues.index_of(rank).is_some_and(|index| !queues.running[index].is_in(step));
        self.0.iter().filter(|&&(rank, _)| waits(rank)).map(|&(_, rows)| rows).sum()
    }
}

/// Seats, blocks and window blocks not claimed by a running sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub seats: usize,
    pub blocks: u32,
    pub windows: u32,
}

/// A prompt that could have rows in the step being planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// Tokens to compute before its first draw; for a waiting one, given what was cached when it was queued.
    pub left: u32,
    pub rank: Rank,
}

/// The first prompt in rank and those that may overtake it, shortest first; `None` without prompts.
pub(super) fn shorter(
    queues: &Queues,
    limits: &Limits,
    kv: &KvCache,
    room: Room,
    step: u64,
) -> Option<(Candidate, Vec<Candidate>)> {
    let candidates = candidates(queues, limits, kv, room, step);
    let first = candidates.iter().min_by_key(|candidate| candidate.rank).copied()?;
    let overtakes = |other: &Candidate| {
        other.left < first.left && other.rank.priority == first.rank.priority && other.rank != first.rank
    };
    let mut shorter: Vec<Candidate> = candidates.into_iter().filter(overtakes).collect();
    shorter.sort_unstable();
    Some((first, shorter))
}

/// Running prompts, and those at the head of the queue that all fit together.
fn candidates(queues: &Queues, limits: &Limits, kv: &KvCache, mut room: Room, step: u64) -> Vec<Candidate> {
    let wants = |sequence: &&Sequence| {
        !sequence.is_in(step) && !sequence.is_decoding(step) && sequence.pending(step) > 0
    };
    let running = queues.running.iter().filter(wants);
    let running = running.map(|sequence| Candidate { left: sequence.pending(step), rank: sequence.rank });
    let admissible = queues.waiting.values().take_while(|sequence| {
        // Shared blocks are not subtracted: a cache lookup for each of them in every step costs too much.
        let needed = sequence.blocks_to_grow(limits);
        let windows = kv.windows_for(sequence.len());
        let fits = sequence.samples.len() <= room.seats && needed <= room.blocks && windows <= room.windows;
        if fits {
            room.seats -= sequence.samples.len();
            room.blocks -= needed;
            room.windows -= windows;
        }
        fits
    });
    let waiting = admissible.map(|sequence| Candidate { left: sequence.uncached, rank: sequence.rank });
    running.chain(waiting).collect()
}
