//! Running and waiting sequences, and the blocks and seats that they take. A seat is room for one running
//! sample; there are `max_num_seqs`.

use std::collections::BTreeMap;

use super::Limits;
use super::request::RequestKey;
use super::sequence::{Rank, Sequence};
use crate::kv_cache::KvCache;

/// The sequences of one worker.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Sorted by rank.
    pub running: Vec<Sequence>,
    pub waiting: BTreeMap<Rank, Sequence>,
}

impl Queues {
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// All sequences, running ones first.
    pub fn all(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(self.waiting.values())
    }

    /// Index in `running` of the sequence with this rank.
    pub fn index_of(&self, rank: Rank) -> Option<usize> {
        self.running.binary_search_by_key(&rank, |sequence| sequence.rank).ok()
    }

    /// Rank of the sequence that contains this sample.
    pub fn rank_of(&self, request: RequestKey, sample: u32) -> Option<Rank> {
        let has = |sequence: &&Sequence| sequence.request == request && sequence.samples.contains(&sample);
        Some(self.all().find(has)?.rank)
    }

    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut Sequence> {
        match self.index_of(rank) {
            Some(index) => self.running.get_mut(index),
            None => self.waiting.get_mut(&rank),
        }
    }

    /// Adds a sequence to the running ones.
    pub fn run(&mut self, sequence: Sequence) {
        let place = self.running.partition_point(|other| other.rank < sequence.rank);
        self.running.insert(place, sequence);
    }

    /// Removes a sequence from either queue.
    pub fn remove(&mut self, rank: Rank) -> Option<Sequence> {
        match self.index_of(rank) {
            Some(index) => Some(self.running.remove(index)),
            None => self.waiting.remove(&rank),
        }
    }

    /// Samples that run in `step`, the one being planned.
    pub fn seats_taken(&self, step: u64) -> usize {
        let leaves = |running: &Sequence| running.is_ending() && !running.is_in(step);
        let staying = self.running.iter().filter(|running| !leaves(running));
        staying.map(|running| running.samples.len()).sum()
    }

    /// Blocks that the running sequences still need for their tokens, and one more each to grow.
    pub fn blocks_reserved(&self, limits: &Limits) -> u32 {
        self.running.iter().map(|running| running.blocks_to_grow(limits)).sum()
    }

    /// Window blocks that the running sequences still need for their tokens.
    pub fn windows_reserved(&self, kv: &KvCache) -> u32 {
        if kv.window_counts().is_none() {
            return 0;
        }
        self.running.iter().map(|running| running.windows_to_grow(kv)).sum()
    }

    /// Next position of the prompt that is computed first in `step`.
    pub fn first_context(&self, step: u64) -> u32 {
        let is_prompt = |sequence: &&Sequence| {
            !sequence.is_in(step) && !sequence.is_decoding(step) && sequence.pending(step) > 0
        };
        self.running.iter().find(is_prompt).map_or(0, Sequence::next_row)
    }
}
