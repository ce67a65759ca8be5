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

use std::time::Duration;

use super::Scheduler;
use super::plan::{MIN_CHUNK, Plan, Step, even_part};
use super::sequence::{Rank, Sequence};

/// A step in which somebody overtakes need not be shorter than this (nor than [`MIN_CHUNK`] rows): nobody sees the
/// difference, and where a step of few rows takes as long as one of many, as on a GPU, the long prompt gets on meanwhile.
pub(super) const SHORT_STEP: Duration = Duration::from_millis(100);

/// Rows of the step being planned that are kept for those that overtake.
#[derive(Debug, Default)]
pub(super) struct Overtaking(Vec<(Rank, u32)>);

impl Overtaking {
    /// Whether nobody overtakes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Rows kept for this one; 0 for who does not overtake.
    pub fn rows(&self, rank: Rank) -> u32 {
        self.0.iter().find(|(other, _)| *other == rank).map_or(0, |&(_, rows)| rows)
    }
}

/// A prompt that could have rows in the step being planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Tokens to compute before its first draw; of one that waits, by what was cached when it came.
    left: u32,
    rank: Rank,
}

impl Scheduler {
    /// Lets in those that overtake, keeps rows for them, and shortens the step to be worth their while.
    pub(super) fn let_overtake(&mut self, plan: &mut Plan) -> Overtaking {
        let prompt_rows = plan.step.budget - plan.step.tokens();
        let mut overtaking = Overtaking::default();
        let mut half = prompt_rows / 2;
        let candidates = self.candidates(plan.step.number);
        let Some(first) = candidates.iter().min_by_key(|candidate| candidate.rank).copied() else {
            return overtaking;
        };
        let overtakes = |other: &Candidate| {
            other.left < first.left && other.rank.priority == first.rank.priority && other.rank != first.rank
        };
        let mut shorter: Vec<Candidate> = candidates.into_iter().filter(overtakes).collect();
        shorter.sort_unstable();
        for candidate in shorter {
            let whole_fits = candidate.left <= half;
            // The shortest gets what there is; others come along where they end in this step, too.
            if half == 0 || !(whole_fits || overtaking.0.is_empty()) {
                break;
            }
            let Some(left) = self.let_in(candidate.rank).filter(|&left| left < first.left) else { continue };
            let rows = even_part(left, half);
            if overtaking.0.is_empty() {
                let rows = self.rows_beside(rows, &plan.step).min(prompt_rows);
                plan.step.budget = plan.step.tokens() + rows;
                half = rows / 2;
            }
            half = half.saturating_sub(rows);
            overtaking.0.push((candidate.rank, rows));
        }
        overtaking
    }

    /// Rows kept for those that overtake and have none in this step yet. Who lost its place keeps none.
    pub(super) fn rows_kept(&self, overtaking: &Overtaking, step: u64) -> u32 {
        let waits = |rank: Rank| self.index_of(rank).is_some_and(|index| !self.running[index].is_in(step));
        overtaking.0.iter().filter(|&&(rank, _)| waits(rank)).map(|&(_, rows)| rows).sum()
    }

    /// All that a step with an overtaking prompt's `rows` may carry, decodes aside: others as long as those take.
    fn rows_beside(&self, rows: u32, step: &Step) -> u32 {
        let short = self.tokens_within(SHORT_STEP, step).unwrap_or(0).saturating_sub(step.decode_tokens);
        rows.saturating_add(self.rows_as_long(rows, step)).max(MIN_CHUNK).max(short)
    }

    /// Prompts that run, and those at the head of the queue for which there is room all together.
    fn candidates(&self, step: u64) -> Vec<Candidate> {
        let wants =
            |sequence: &&Sequence| !sequence.is_in(step) && !sequence.is_decoding() && sequence.pending() > 0;
        let running = self.running.iter().filter(wants);
        let running = running.map(|sequence| Candidate { left: sequence.pending(), rank: sequence.rank });
        let mut seats = (self.max_num_seqs as usize).saturating_sub(self.seats_taken());
        let mut blocks = self.kv.available().saturating_sub(self.blocks_reserved());
        let admissible = self.waiting.values().take_while(|sequence| {
            // What it shares with others is not subtracted: nothing is looked up for so many in every step.
            let needed = self.blocks_to_grow(sequence);
            let fits = !self.short_of_blocks && sequence.samples.len() <= seats && needed <= blocks;
            if fits {
                seats -= sequence.samples.len();
                blocks -= needed;
            }
            fits
        });
        let waiting = admissible.map(|sequence| Candidate { left: sequence.uncached, rank: sequence.rank });
        running.chain(waiting).collect()
    }

    /// Tokens that this one has left to compute, now that it runs; `None` where it could not be let in.
    fn let_in(&mut self, rank: Rank) -> Option<u32> {
        if self.waiting.contains_key(&rank) && !self.admit(rank) {
            return None;
        }
        self.index_of(rank).map(|index| self.running[index].pending())
    }
}
