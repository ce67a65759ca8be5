//! Before a step: who gets rows, who gets in, and who has to give way.

use std::time::Duration;

use skein_node::clock::Timestamp;

use super::Scheduler;
use super::sequence::{Rank, Sequence};
use super::step_time::Work;
use crate::backend::{Batch, SampleRow, VerifyRows, Want};

/// How long a step should take at most while only prompts wait: who comes meanwhile waits for its end. Shorter ones, down to
/// [`STREAMING_STEP`], where what every step takes, the weights that it reads, is a small part of it.
const PROMPT_STEP: Duration = Duration::from_millis(500);

/// The same while streams wait for their next tokens, and while many do. In between they wait [`STREAMS_WAIT`] for it, all
/// together: the more there are, the more tokens a step less would cost them, and the less it saves, for they need
/// steps anyway. It also brings the first prompts of a burst to their ends before the last ones slow them down.
pub(super) const STREAMING_STEP: Duration = Duration::from_millis(250);
const CROWDED_STEP: Duration = Duration::from_millis(125);
const STREAMS_WAIT: Duration = Duration::from_secs(3);

/// What every step takes is a small part of one that is so many times as long.
const LONG_ENOUGH: u32 = 10;

/// Prompt tokens that a step carries however slow it is, so that prompts get on.
pub(super) const MIN_CHUNK: u32 = 32;

/// A prompt's last rows are a small rest when there is at most one for so many of those before them in the step.
const SMALL_REST: u32 = 8;

/// Tokens of the first step: how long one takes is not known yet, and on a large model a full one takes seconds.
const FIRST_STEP_TOKENS: u32 = 64;

/// One step: what the backend computes, and what [`Scheduler::commit`] wants back.
#[derive(Debug)]
pub struct Plan {
    /// For the backend.
    pub batch: Batch,
    /// For the commit.
    pub step: Step,
}

/// The shape of a planned step.
#[derive(Debug)]
pub struct Step {
    /// Counted from 1.
    pub(super) number: u64,
    /// Rows over prompts (or over tokens computed again).
    pub prefill_tokens: u32,
    /// Rows of sequences that decode.
    pub decode_tokens: u32,
    /// Positions that all rows attend to, summed up.
    attended: u64,
    /// Most rows it may have.
    pub(super) budget: u32,
    pub(super) started: Timestamp,
    /// Whose each of the batch's wants is, among the samples of its request.
    pub(super) sample_indices: Vec<u32>,
}

impl Step {
    /// All rows.
    pub(super) fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decode_tokens
    }

    /// What it computes so far.
    pub(super) fn work(&self) -> Work {
        Work { tokens: self.tokens(), attended: self.attended }
    }

    /// Rows it may still have.
    pub(super) fn left(&self) -> u32 {
        self.budget - self.tokens()
    }
}

impl Scheduler {
    /// Plans one step; `None` when there is nothing to compute, or nothing before the step under way is known.
    ///
    /// One step may be under way, planned and not committed; then the batch may carry tokens over from it, and has to
    /// be launched right after it.
    pub fn plan(&mut self, now: Timestamp) -> Option<Plan> {
        let under_way = self.planned_steps - self.committed_steps;
        assert!(under_way <= 1, "{under_way} steps are under way; commit one before the next is planned");
        let step = Step {
            number: self.planned_steps + 1,
            prefill_tokens: 0,
            decode_tokens: 0,
            attended: 0,
            budget: self.max_num_batched_tokens,
            started: now,
            sample_indices: Vec::new(),
        };
        let mut plan = Plan { batch: Batch::default(), step };
        self.short_of_blocks = false;
        self.make_room_for_higher_priority();
        self.plan_decodes(&mut plan);
        self.plan_prefills(&mut plan);
        if plan.step.tokens() == 0 {
            assert!(under_way > 0 || self.is_idle(), "somebody can always get on");
            return None;
        }
        plan.step.sample_indices = plan.batch.wants.iter().map(sample_index).collect();
        self.planned_steps = plan.step.number;
        Some(plan)
    }

    /// The head of the queue may take the place of sequences of lower priority, but not of its own.
    fn make_room_for_higher_priority(&mut self) {
        while let Some((head, sequence)) = self.waiting.first_key_value() {
            let gives_way = |last: &Sequence| last.rank.priority > head.priority && !last.is_ending();
            let outranked = self.running.last().is_some_and(gives_way);
            if !outranked || self.fits(sequence) {
                break;
            }
            self.preempt(self.running.len() - 1);
        }
        self.short_of_blocks = false;
    }

    fn plan_decodes(&mut self, plan: &mut Plan) {
        let ranks: Vec<Rank> =
            self.running.iter().filter(|seq| seq.is_decoding()).map(|seq| seq.rank).collect();
        for rank in ranks {
            // It may have lost its place to one before it; or there is no block for it now, and it waits a step.
            if let Some(index) = self.index_of(rank) {
                self.plan_sequence(index, plan.step.left(), plan);
            }
        }
    }

    /// Prompts in rank order, those that run and those that wait alike; each takes all it can of the budget, but for the
    /// rows that are kept for those that overtake.
    fn plan_prefills(&mut self, plan: &mut Plan) {
        plan.step.budget = self.budget_in_time(&plan.step);
        let overtaking = self.let_overtake(plan);
        let mut admitting = true;
        loop {
            let open = plan.step.left() - self.rows_kept(&overtaking, plan.step.number);
            let most = |sequence: &Sequence| open + overtaking.rows(sequence.rank);
            let wants = |sequence: &Sequence| {
                !sequence.is_in(plan.step.number) && sequence.pending() > 0 && most(sequence) > 0
            };
            let next = self.running.iter().position(wants);
            let may_enter = admitting && !self.short_of_blocks && open > 0;
            let head = self.waiting.keys().next().copied().filter(|_| may_enter);
            let head = head.filter(|head| next.is_none_or(|next| *head < self.running[next].rank));
            if let Some(head) = head {
                admitting = self.admit(head);
                continue;
            }
            let Some(next) = next else { break };
            let mut most = most(&self.running[next]);
            if overtaking.is_empty() {
                let is_last = self.waiting.is_empty() && !self.running[next + 1..].iter().any(wants);
                let rows = self.part_in_time(self.running[next].pending(), most, is_last, &plan.step);
                plan.step.budget += rows.saturating_sub(most);
                most = rows;
            }
            if !self.plan_sequence(next, most, plan) {
                break;
            }
        }
    }

    /// How many of a prompt's `pending` rows this step takes, if it has room for `most` of them. The last prompt in rank, whose
    /// steps nobody fills up, takes as many in each of its steps: a small rest would read all weights again for itself. Where so a
    /// step less will do, and nobody waits for a token, these may be a little longer.
    fn part_in_time(&self, pending: u32, most: u32, is_last: bool, step: &Step) -> u32 {
        let (steps, rest) = (pending / most, pending % most);
        if steps == 0 {
            return pending;
        }
        let part = pending.div_ceil(steps);
        let is_small = rest <= most / SMALL_REST && step.decode_tokens == 0 && (steps == 1 || is_last);
        match is_small && step.budget + (part - most) <= self.max_num_batched_tokens {
            true => part,
            false if is_last => even_part(pending, most),
            false => most,
        }
    }

    /// The token budget, less where so many tokens are known to take too long.
    fn budget_in_time(&self, step: &Step) -> u32 {
        let limit = match step.decode_tokens {
            0 => (self.step_time.fixed() * LONG_ENOUGH).clamp(STREAMING_STEP, PROMPT_STEP),
            streams => (STREAMS_WAIT / streams).clamp(CROWDED_STEP, STREAMING_STEP),
        };
        let in_time = self.tokens_within(limit, step).unwrap_or(FIRST_STEP_TOKENS);
        in_time.max(step.decode_tokens + MIN_CHUNK).min(self.max_num_batched_tokens)
    }

    /// How many tokens `step` may have to end within `limit`, most of them of the prompt that is computed first; `None` while
    /// no step was seen.
    pub(super) fn tokens_within(&self, limit: Duration, step: &Step) -> Option<u32> {
        self.step_time.tokens_within(limit, step.work(), self.first_context(step))
    }

    /// How many rows of the prompt that is computed first take as long as `rows` of one that begins.
    pub(super) fn rows_as_long(&self, rows: u32, step: &Step) -> u32 {
        let work = Work { tokens: rows, attended: attended(0, rows) };
        self.step_time.tokens_like(work, self.first_context(step)).unwrap_or(rows).min(rows)
    }

    /// The position from which the prompt goes on that is computed first in `step`.
    fn first_context(&self, step: &Step) -> u32 {
        let is_prompt = |sequence: &&Sequence| {
            !sequence.is_decoding() && sequence.pending() > 0 && !sequence.is_in(step.number)
        };
        self.running.iter().find(is_prompt).map_or(0, Sequence::next_row)
    }

    /// Gives the running sequence at `index` rows of this step, as many as `most` and the blocks allow.
    fn plan_sequence(&mut self, index: usize, most: u32, plan: &mut Plan) -> bool {
        let sequence = &mut self.running[index];
        let (start, decoding) = (sequence.next_row(), sequence.is_decoding());
        let wanted = start + sequence.pending().min(most);
        if wanted == start {
            return false;
        }
        let end = loop {
            let sequence = &mut self.running[index];
            let end = self.kv.grow(&mut sequence.table, start, wanted, &mut plan.batch.copies);
            if end == wanted {
                break end;
            }
            // Only those after it in rank, and not those whose rows are in this step already, nor those that end with
            // the step under way: theirs come back without computing anything again.
            let may_go = |sequence: &Sequence| !sequence.is_in(plan.step.number) && !sequence.is_ending();
            match self.running.iter().rposition(may_go) {
                Some(victim) if victim > index => self.preempt(victim),
                _ => break end,
            }
        };
        if end == start {
            return false;
        }
        let rows = end - start;
        self.running[index].plan_rows(plan.step.number, rows, self.kv.block_size(), &mut plan.batch);
        plan.step.attended += attended(start, end);
        *if decoding { &mut plan.step.decode_tokens } else { &mut plan.step.prefill_tokens } += rows;
        true
    }

    /// Moves one that waits to the running sequences if it fits, with what the cache has of it.
    pub(super) fn admit(&mut self, rank: Rank) -> bool {
        if !self.waiting.get(&rank).is_some_and(|sequence| self.fits(sequence)) {
            return false;
        }
        let Some(mut sequence) = self.waiting.remove(&rank) else { return false };
        sequence.table = self.kv.adopt_prefix(sequence.cacheable_prefix());
        sequence.computed = sequence.table.positions(self.kv.block_size());
        if std::mem::take(&mut sequence.reports_hit) {
            sequence.unreported_hit = Some(sequence.computed.min(sequence.prompt_len));
        }
        let place = self.running.partition_point(|other| other.rank < rank);
        self.running.insert(place, sequence);
        true
    }

    /// Whether there are seats for its samples and blocks for all its tokens, beside what the running ones still
    /// need for theirs and one block each to grow.
    fn fits(&self, sequence: &Sequence) -> bool {
        let held = self.kv.match_prefix(sequence.cacheable_prefix()).held;
        let needed = self.kv.blocks_for(sequence.len()) - held;
        self.seats_taken() + sequence.samples.len() <= self.max_num_seqs as usize
            && needed + self.blocks_reserved() <= self.kv.available()
    }

    /// Samples that run in the step being planned.
    pub(super) fn seats_taken(&self) -> usize {
        let leaves = |running: &Sequence| running.is_ending() && !running.is_in(self.planned_steps + 1);
        let staying = self.running.iter().filter(|running| !leaves(running));
        staying.map(|running| running.samples.len()).sum()
    }

    /// Blocks that the running sequences still need for their tokens, and one each to grow.
    pub(super) fn blocks_reserved(&self) -> u32 {
        self.running.iter().map(|running| self.blocks_to_grow(running)).sum()
    }

    pub(super) fn blocks_to_grow(&self, sequence: &Sequence) -> u32 {
        if sequence.is_ending() {
            return 0;
        }
        let longest = (sequence.len_ahead() + self.kv.block_size()).min(self.max_model_len);
        // Samples that are still one sequence will each copy the partly filled block they share.
        let needed = self.kv.blocks_for(longest) + sequence.samples.len() as u32 - 1;
        needed.saturating_sub(sequence.table.blocks().len() as u32)
    }

    /// Takes back all blocks of the running sequence at `index`; it is computed again when its turn comes. What the
    /// step under way draws for it is dropped, since nobody has seen it, and drawn again.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        assert!(!sequence.is_in(self.planned_steps + 1), "blocks of this step's rows stay where they are");
        self.kv.release(std::mem::take(&mut sequence.table));
        sequence.computed = 0;
        sequence.shares.clear();
        sequence.reports_hit |= sequence.unreported_hit.take().is_some();
        sequence.extend_hashes(self.kv.block_size());
        self.short_of_blocks = true;
        self.enqueue(sequence);
    }
}

fn sample_index(want: &Want) -> u32 {
    match want {
        Want::Sample(SampleRow { sample_index, .. }) | Want::Verify(VerifyRows { sample_index, .. }) => {
            *sample_index
        }
        Want::Score(_) | Want::Pool(_) => 0,
    }
}

/// The rows of `left` tokens in one of as few steps of at most `most` as can be, all of about one size: a small rest
/// would cost a step of its own.
pub(super) fn even_part(left: u32, most: u32) -> u32 {
    left.div_ceil(left.div_ceil(most).max(1))
}

/// Positions that the rows `start..end` of a sequence attend to, each to all before it and itself.
fn attended(start: u32, end: u32) -> u64 {
    (u64::from(start) + 1 + u64::from(end)) * u64::from(end - start) / 2
}

#[cfg(test)]
mod tests {
    use super::even_part;

    #[test]
    fn a_prompt_is_cut_into_even_parts() {
        let parts = [(64, 100), (100, 100), (105, 100), (1000, 256), (7, 1), (0, 5)];
        assert_eq!(parts.map(|(left, most)| even_part(left, most)), [64, 100, 53, 250, 1, 0]);
    }
}
