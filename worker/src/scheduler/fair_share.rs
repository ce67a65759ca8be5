//! Limits how many sequences one call may run while others wait.
//!
//! A client's call may hold 128 prompts of many samples each, and all of them rank before a request that
//! arrives later. In rank order alone, another client's short request would wait for all of them. So while
//! another call waits, a call has at most its share of the seats (`max_num_seqs`): an even part, but at least
//! an eighth. The sequences that it runs beyond its share are preempted, last in rank first, and sequences of
//! other calls overtake its waiting ones. A call that competes with no other may take all seats.
//!
//! Smaller requests may overtake one whose samples need more seats than the excess, but they may take only
//! excess seats. So the large request starts at the latest when the calls before it have ended.
//!
//! This starves no call: preemption never leaves a call with less than its share, and never takes its only
//! sequence. Priorities come first: a waiting sequence never preempts one of a better priority.

use std::collections::HashMap;

use super::Scheduler;
use super::sequence::{Call, Rank, Sequence};

/// The smallest share of a call is 1/`LEAST_SHARE` of the seats. With more calls than that, the earlier ones
/// run first: a smaller share could not run the samples of an ordinary request together.
const LEAST_SHARE: usize = 8;

/// Seats per call, while more than one call needs some.
#[derive(Debug)]
pub(super) struct FairShare {
    /// Seats that each call may hold.
    share: usize,
    held: HashMap<Call, usize>,
}

impl FairShare {
    /// Shares among the calls that run sequences or have some waiting at the best waiting priority. `None` if
    /// nothing waits or there is only one such call.
    fn of(scheduler: &Scheduler) -> Option<Self> {
        let queues = &scheduler.queues;
        let priority = queues.waiting.keys().next()?.priority;
        let mut held: HashMap<Call, usize> = HashMap::new();
        for running in &queues.running {
            *held.entry(running.call).or_default() += running.samples.len();
        }
        for waiting in queues.waiting.values().take_while(|waiting| waiting.rank.priority == priority) {
            held.entry(waiting.call).or_default();
        }
        let seats = scheduler.limits.max_num_seqs as usize;
        let share = (seats / held.len().max(1)).max(seats / LEAST_SHARE).max(1);
        (held.len() > 1).then_some(Self { share, held })
    }

    fn held(&self, call: Call) -> usize {
        self.held.get(&call).copied().unwrap_or(0)
    }

    /// Seats that calls hold beyond their shares.
    fn excess(&self) -> usize {
        self.held.values().map(|held| held.saturating_sub(self.share)).sum()
    }

    /// Whether any call exceeds its share.
    fn is_exceeded(&self) -> bool {
        self.held.values().any(|&held| held > self.share)
    }

    /// Whether the sequence fits into its call's share. A call's first sequence always does.
    fn has_room_for(&self, waiting: &Sequence) -> bool {
        let held = self.held(waiting.call);
        held == 0 || held + waiting.samples.len() <= self.share
    }

    /// Whether `running` may be preempted for a sequence of `rank`: without `running`, its call must still
    /// have a full share.
    fn gives_way(&self, running: &Sequence, rank: Rank) -> bool {
        let others = self.held(running.call).saturating_sub(running.samples.len());
        others >= self.share && running.rank.priority >= rank.priority && !running.is_ending()
    }

    /// Counts the seats of an admitted sequence.
    pub fn seat(&mut self, sequence: &Sequence) {
        *self.held.entry(sequence.call).or_default() += sequence.samples.len();
    }

    fn unseat(&mut self, sequence: &Sequence) {
        let held = self.held.entry(sequence.call).or_default();
        *held = held.saturating_sub(sequence.samples.len());
    }
}

impl Scheduler {
    /// Admits waiting sequences that fit into their call's share while other calls exceed theirs, and
    /// preempts the excess.
    pub(super) fn share_seats(&mut self) -> Option<FairShare> {
        let mut fair = FairShare::of(self)?;
        while fair.is_exceeded()
            && let Some(rank) = self.first_in_share(&fair, self.room().seats + fair.excess())
            && self.make_way(rank, &mut fair)
            && self.admit(rank)
        {
            self.seated(rank, &mut fair);
        }
        self.short_of_blocks = false;
        Some(fair)
    }

    /// The sequence to admit next: the first in rank that fits into its call's share, or else the first in
    /// rank.
    pub(super) fn next_to_admit(&self, fair: Option<&FairShare>) -> Option<Rank> {
        let in_share = fair.and_then(|fair| self.first_in_share(fair, usize::MAX));
        in_share.or_else(|| self.queues.waiting.keys().next().copied())
    }

    /// Counts the seats of the sequence of `rank` if it was admitted.
    pub(super) fn seated(&self, rank: Rank, fair: &mut FairShare) {
        if let Some(index) = self.queues.index_of(rank) {
            fair.seat(&self.queues.running[index]);
        }
    }

    /// The first waiting sequence in rank that fits into its call's share and needs at most `seats`.
    fn first_in_share(&self, fair: &FairShare, seats: usize) -> Option<Rank> {
        let waiting = &self.queues.waiting;
        let priority = waiting.keys().next()?.priority;
        let mut ranked = waiting.values().take_while(|sequence| sequence.rank.priority == priority);
        let fits = |sequence: &&Sequence| sequence.samples.len() <= seats && fair.has_room_for(sequence);
        ranked.find(fits).map(|sequence| sequence.rank)
    }

    /// Preempts sequences of calls that exceed their share until the waiting sequence fits, and only if that
    /// frees enough room. Returns whether it fits.
    fn make_way(&mut self, rank: Rank, fair: &mut FairShare) -> bool {
        while let Some(waiting) = self.queues.waiting.get(&rank) {
            if self.fits(waiting) {
                return true;
            }
            if !self.would_fit(waiting, fair) {
                return false;
            }
            let gives_way = |running: &Sequence| fair.gives_way(running, rank);
            let Some(victim) = self.queues.running.iter().rposition(gives_way) else { return false };
            fair.unseat(&self.queues.running[victim]);
            self.preempt(victim);
        }
        false
    }

    /// Whether `waiting` would fit if every sequence that can give way were preempted. Assumes that this
    /// frees all their blocks, including those that other sequences share.
    fn would_fit(&self, waiting: &Sequence, fair: &FairShare) -> bool {
        let (mut seats, mut blocks, mut held) = (0, 0, fair.held.clone());
        for running in
            self.queues.running.iter().rev().filter(|running| fair.gives_way(running, waiting.rank))
        {
            let left = held.entry(running.call).or_default();
            if *left >= fair.share + running.samples.len() {
                *left -= running.samples.len();
                seats += running.samples.len();
                blocks += running.table.blocks().len() as u32 + running.blocks_to_grow(&self.limits);
            }
        }
        let room = self.room();
        waiting.samples.len() <= room.seats + seats
            && self.kv.blocks_for(waiting.len()) <= room.blocks + blocks
    }
}
