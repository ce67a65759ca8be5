//! How many rows a step may have, so that requests do not wait long for it to finish.

use std::time::Duration;

use super::Scheduler;
use super::limits::attended;
use super::step::Step;
use super::step_time::Work;

/// Target duration of a step while only prompts wait: a request that arrives meanwhile waits for the
/// step to finish. Shorter, down to [`STREAMING_STEP`], if the step's fixed cost (reading the weights)
/// is amortised earlier.
const PROMPT_STEP: Duration = Duration::from_millis(500);

/// Target duration of a step while streams wait for their next tokens, down to [`CROWDED_STEP`] when many do.
/// In between, a step may make all streams together wait [`STREAMS_WAIT`]: with more streams, a long step
/// delays more tokens and saves less, because they need steps anyway. This also completes the first prompts
/// of a burst before the last ones slow them down.
pub(super) const STREAMING_STEP: Duration = Duration::from_millis(250);
const CROWDED_STEP: Duration = Duration::from_millis(125);
const STREAMS_WAIT: Duration = Duration::from_secs(3);

/// A step with an overtaking prompt need not be shorter than this (nor than [`MIN_CHUNK`] rows). Nobody
/// notices the difference, and if a small step takes as long as a large one, as on a GPU, the long prompt
/// uses the rows.
pub(super) const SHORT_STEP: Duration = Duration::from_millis(100);

/// A step this many times its fixed cost amortises it.
const FIXED_COST_AMORTISED_AT: u32 = 10;

/// Prompt rows that every step may have, however slow it is, so that prompts make progress.
pub(super) const MIN_CHUNK: u32 = 32;

/// A prompt's remainder is folded into the step if it is at most the step's rows divided by this.
const FOLDED_REMAINDER: u32 = 8;

/// Rows of the first step. Its duration is not known yet, and on a large model a full step takes seconds.
const FIRST_STEP_TOKENS: u32 = 64;

impl Scheduler {
    /// Rows for a prompt with `pending` tokens left if the step has room for `most` of them. The last
    /// prompt in rank is cut evenly, because nothing would fill its last step: a small remainder would
    /// read all weights again for itself. If that saves a whole step and nothing streams, its steps may
    /// be slightly longer.
    pub(super) fn chunk_rows(&self, pending: u32, most: u32, is_last: bool, step: &Step) -> u32 {
        let (steps, rest) = (pending / most, pending % most);
        if steps == 0 {
            return pending;
        }
        let part = pending.div_ceil(steps);
        let is_small = rest <= most / FOLDED_REMAINDER && step.streams == 0 && (steps == 1 || is_last);
        if is_small && step.budget + (part - most) <= self.limits.max_num_batched_tokens {
            part
        } else if is_last {
            even_chunk(pending, most)
        } else {
            most
        }
    }

    /// The token budget, reduced if a full step is known to take too long.
    pub(super) fn budget_in_time(&self, step: &Step) -> u32 {
        let limit = match step.streams {
            0 => (self.pace.step_time.fixed() * FIXED_COST_AMORTISED_AT).clamp(STREAMING_STEP, PROMPT_STEP),
            streams => (STREAMS_WAIT / streams).clamp(CROWDED_STEP, STREAMING_STEP),
        };
        let in_time = self.tokens_within(limit, step).unwrap_or(FIRST_STEP_TOKENS);
        in_time.max(step.stream_rows + MIN_CHUNK).min(self.limits.max_num_batched_tokens)
    }

    /// Prompt rows of a step in which an overtaking prompt has `rows`: those, and as many others as
    /// take equally long.
    pub(super) fn overtaking_step_rows(&self, rows: u32, step: &Step) -> u32 {
        let short = self.tokens_within(SHORT_STEP, step).unwrap_or(0).saturating_sub(step.stream_rows);
        rows.saturating_add(self.equivalent_rows(rows, step)).max(MIN_CHUNK).max(short)
    }

    /// Most tokens for `step` to end within `limit`, if the additional ones belong to the first prompt;
    /// `None` before the first step.
    fn tokens_within(&self, limit: Duration, step: &Step) -> Option<u32> {
        let context = self.queues.first_context(step.number);
        self.pace.step_time.tokens_within(limit, step.work(), context)
    }

    /// Rows of the first prompt that take as long as `rows` at the start of another.
    fn equivalent_rows(&self, rows: u32, step: &Step) -> u32 {
        let work = Work { tokens: rows, attended: attended(0, rows) };
        let context = self.queues.first_context(step.number);
        self.pace.step_time.equivalent_tokens(work, context).unwrap_or(rows).min(rows)
    }
}

/// Size of one chunk when `left` tokens are split evenly into as few steps of at most `most` as possible: a
/// small remainder would cost a step of its own.
pub(super) fn even_chunk(left: u32, most: u32) -> u32 {
    left.div_ceil(left.div_ceil(most).max(1))
}

#[cfg(test)]
mod tests {
    use super::even_chunk;

    #[test]
    fn a_prompt_is_cut_into_even_parts() {
        let parts = [(64, 100), (100, 100), (105, 100), (1000, 256), (7, 1), (0, 5)];
        assert_eq!(parts.map(|(left, most)| even_chunk(left, most)), [64, 100, 53, 250, 1, 0]);
    }
}
