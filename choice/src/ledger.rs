//! One worker's current load: its last report plus what this router has placed there since. Pure.
//!
//! A report names the last placement that the worker had seen from this router, so exactly the later ones are
//! added. That avoids polling. Between reports the router also subtracts what it has itself seen prefilled or
//! ended, and adds what the worker admitted from other routers, which every router is told at once: else all
//! of them would send what arrives together to the same idle worker.

use std::collections::VecDeque;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::load::{Load, LoadReport};

use super::backlog::Backlog;

/// The cost of a placement for its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Prompt tokens to prefill.
    pub uncached_tokens: u64,
    /// KV blocks it needs beyond the shared ones.
    pub blocks: u32,
    /// Number of sequences that run at once.
    pub sequences: u32,
}

#[derive(Debug)]
struct Placed {
    sequence: u64,
    cost: Cost,
    at: Timestamp,
    /// Seconds to the first token, as the terms of its prediction add up.
    predicted: f64,
    prefilled: bool,
    /// The last report included it in the sequences.
    reported: bool,
}

/// This router's account of one worker.
#[derive(Debug, Default)]
pub struct Ledger {
    last_report: LoadReport,
    placed: VecDeque<Placed>,
    last_sequence: u64,
    backlog: Backlog,
    /// Sequences in the last report that have ended since.
    ended_sequences: u32,
    /// Sequences and blocks of requests from other routers since.
    others_sequences: u32,
    others_blocks: u32,
}

/// Estimate of the worker's current load.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // as in Load
pub struct CurrentLoad {
    pub queued_uncached_tokens: u64,
    pub sequences: u32,
    pub free_blocks: u32,
    pub prefill_tokens_per_second: f32,
    pub decode_tokens_per_second: f32,
}

impl Ledger {
    /// Records a placement and returns its sequence number, which starts at one.
    ///
    /// The terms of its prediction add up to `predicted` seconds.
    pub fn place(&mut self, now: Timestamp, cost: Cost, predicted: f64) -> u64 {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.placed.push_back(Placed {
            sequence,
            cost,
            at: now,
            predicted,
            prefilled: false,
            reported: false,
        });
        self.backlog.add(now, cost.uncached_tokens);
        sequence
    }

    /// Records a request that the worker admitted from another router.
    pub fn admitted_from_another(&mut self, now: Timestamp, cost: Cost) {
        self.backlog.add(now, cost.uncached_tokens);
        self.others_sequences += cost.sequences;
        self.others_blocks += cost.blocks;
    }

    /// Records a placement's first token: its prompt is no longer queued. Returns what was predicted, in
    /// seconds, and how long it took; `None` if it had a token before.
    pub fn prefilled(&mut self, now: Timestamp, sequence: u64) -> Option<(f64, Duration)> {
        let placed = self.find(sequence).map(|at| &mut self.placed[at])?;
        if std::mem::replace(&mut placed.prefilled, true) {
            return None;
        }
        self.backlog.done(now, placed.cost.uncached_tokens);
        Some((placed.predicted, now.since(placed.at)))
    }

    /// Removes a placement that ended, in whatever way; returns whether it had sent a token.
    pub fn end(&mut self, sequence: u64) -> bool {
        let Some(placed) = self.find(sequence).and_then(|index| self.placed.remove(index)) else {
            return false;
        };
        if !placed.prefilled {
            self.backlog.withdraw(placed.cost.uncached_tokens);
        }
        if placed.reported {
            self.ended_sequences += placed.cost.sequences;
        }
        placed.prefilled
    }

    fn find(&self, sequence: u64) -> Option<usize> {
        self.placed.binary_search_by_key(&sequence, |placed| placed.sequence).ok()
    }

    /// Applies the worker's report.
    pub fn report(&mut self, now: Timestamp, report: LoadReport) {
        (self.ended_sequences, self.others_sequences, self.others_blocks) = (0, 0, 0);
        let mut unseen = 0;
        for placed in &mut self.placed {
            placed.reported = placed.sequence <= report.last_placement_sequence;
            unseen += if placed.reported || placed.prefilled { 0 } else { placed.cost.uncached_tokens };
        }
        let Load { queued_uncached_tokens, prefill_tokens_per_second, .. } = report.load;
        self.backlog.report(now, queued_uncached_tokens, unseen, prefill_tokens_per_second);
        self.last_report = report;
    }

    /// Resets the account of a restarted worker: no load, all blocks free. Sequence numbers continue, so that
    /// none is reused.
    pub fn restart(&mut self, free_blocks: u32) {
        let load = Load { free_blocks, ..Load::default() };
        let last_report = LoadReport { load, ..LoadReport::default() };
        *self = Self { last_report, last_sequence: self.last_sequence, ..Self::default() };
    }

    /// The worker's last report.
    pub fn last_report(&self) -> &LoadReport {
        &self.last_report
    }

    /// The prompt tokens that wait, for an estimate at a given time.
    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// The estimated load now. Its queue is the longest that it can be: it does not shrink with time.
    pub fn current(&self) -> CurrentLoad {
        let (mut new_sequences, mut new_blocks) = (self.others_sequences, self.others_blocks);
        // Reports follow the order of placements, so unreported ones are at the end.
        for placed in self.placed.iter().rev().take_while(|placed| !placed.reported) {
            new_sequences += placed.cost.sequences;
            new_blocks += placed.cost.blocks;
        }
        let load = &self.last_report.load;
        CurrentLoad {
            queued_uncached_tokens: self.backlog.most_left(),
            sequences: (load.running + load.waiting).saturating_sub(self.ended_sequences) + new_sequences,
            free_blocks: load.free_blocks.saturating_sub(new_blocks),
            prefill_tokens_per_second: load.prefill_tokens_per_second,
            decode_tokens_per_second: load.decode_tokens_per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::ZERO;

    fn cost(uncached_tokens: u64) -> Cost {
        Cost { uncached_tokens, blocks: 4, sequences: 1 }
    }

    fn report(queued_uncached_tokens: u64, running: u32, last_placement_sequence: u64) -> LoadReport {
        let load = Load { queued_uncached_tokens, running, free_blocks: 100, ..Load::default() };
        LoadReport { load, last_placement_sequence, ..LoadReport::default() }
    }

    fn check(ledger: &Ledger, queued: u64, sequences: u32, free_blocks: u32) {
        let now = ledger.current();
        assert_eq!(
            (now.queued_uncached_tokens, now.sequences, now.free_blocks),
            (queued, sequences, free_blocks)
        );
    }

    #[test]
    fn only_what_the_worker_has_not_seen_is_added() {
        let mut ledger = Ledger::default();
        ledger.report(NOW, report(50, 1, 0));
        assert_eq!(ledger.place(NOW, cost(100), 0.0), 1);
        assert_eq!(ledger.place(NOW, cost(30), 0.0), 2);
        check(&ledger, 180, 3, 92);
        ledger.report(NOW, report(150, 2, 1)); // the worker has seen the first
        check(&ledger, 180, 3, 96);
        ledger.prefilled(NOW, 1); // since that report its tokens are done
        check(&ledger, 80, 3, 96);
        ledger.end(1);
        check(&ledger, 80, 2, 96);
        ledger.end(2); // never seen by the worker: withdrawn whole
        check(&ledger, 50, 1, 100);
        ledger.end(2);
        ledger.report(NOW, report(0, 0, 2));
        check(&ledger, 0, 0, 100);
    }

    #[test]
    fn requests_of_other_routers_count_until_the_report_that_has_them() {
        let mut ledger = Ledger::default();
        ledger.report(NOW, report(50, 1, 0));
        ledger.admitted_from_another(NOW, cost(100));
        check(&ledger, 150, 2, 96);
        ledger.report(NOW, report(120, 2, 0));
        check(&ledger, 120, 2, 100);
    }

    #[test]
    fn a_restart_clears_the_account_but_reuses_no_number() {
        let mut ledger = Ledger::default();
        ledger.place(NOW, cost(100), 0.0);
        ledger.restart(10);
        check(&ledger, 0, 0, 10);
        assert_eq!(ledger.place(NOW, cost(7), 0.0), 2);
        ledger.end(1);
        check(&ledger, 7, 1, 6);
    }
}
