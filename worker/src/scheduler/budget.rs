//! How many rows a step should have, so that nobody waits long for its end.

use std::time::Duration;

use super::Scheduler;
use super::step::Step;
use super::step_time::Work;

/// How long a step should take at most while only prompts wait: a request that arrives meanwhile waits for the step to finish.
/// Shorter ones, down to [`STREAMING_STEP`], where the fixed cost of a step, the weights that it reads, is a small part of it.
const PROMPT_STEP: Duration = Duration::from_millis(500);

/// The same while streams wait for their next tokens, and while many do. In between they wait [`STREAMS_WAIT`] for it, all
/// together: the more there are, the more tokens a step less would cost them, and the less it saves, for they need
/// steps anyway. It also brings the first prompts of a burst to their ends before the last ones slow them down.
pub(super) const STREAMING_STEP: Duration = Duration::from_millis(250);
const CROWDED_STEP: Duration = Duration::from_millis(125);
const STREAMS_WAIT: Duration = Duration::from_secs(3);

/// A step in which somebody overtakes need not be shorter than this (nor than [`MIN_CHUNK`] rows): nobody sees the
/// difference, and where a step of few rows takes as long as one of many, as on a GPU, the long prompt gets on meanwhile.
pub(super) const SHORT_STEP: Duration = Duration::from_millis(100);

/// A step this many times its fixed cost amortises it.
const FIXED_COST_AMORTISED_AT: u32 = 10;

/// Prompt tokens that a step carries however slow it is, so that prompts get on.
pub(super) const MIN_CHUNK: u32 = 32;

/// A prompt's remainder of at most one row for this many in the step is folded into the step.
const SMALL_REST: u32 = 8;

/// Tokens of the first step: how long one takes is not known yet, and on a large model a full one takes seconds.
const FIRST_STEP_TOKENS: u32 = 64;

impl Scheduler {
    /// How many of a prompt's `pending` rows this step takes, if it has room for `most` of them. The last prompt in rank takes as
    /// many in each of its steps, since nothing fills them up: a small remainder would read all weights again for itself. If that
    /// saves a whole step and nothing streams, its steps may be slightly longer.
    pub(super) fn part_in_time(&self, pending: u32, most: u32, is_last: bool, step: &Step) -> u32 {
        let (steps, rest) = (pending / most, pending % most);
        if steps == 0 {
            return pending;
        }
        let part = pending.div_ceil(steps);
        let is_small = rest <= most / SMALL_REST && step.streams == 0 && (steps == 1 || is_last);
        if is_small && step.budget + (part - most) <= self.limits.max_num_batched_tokens {
            part
        } else if is_last {
            even_part(pending, most)
        } else {
            most
        }
    }

    /// The token budget, less where so many tokens are known to take too long.
    pub(super) fn budget_in_time(&self, step: &Step) -> u32 {
        let limit = match step.streams {
            0 => (self.pace.step_time.fixed() * FIXED_COST_AMORTISED_AT).clamp(STREAMING_STEP, PROMPT_STEP),
            streams => (STREAMS_WAIT / streams).clamp(CROWDED_STEP, STREAMING_STEP),
        };
        let in_time = self.tokens_within(limit, step).unwrap_or(FIRST_STEP_TOKENS);
        in_time.max(step.stream_rows + MIN_CHUNK).min(self.limits.max_num_batched_tokens)
    }

    /// All that a step with an overtaking prompt's `rows` may carry, streams aside: others as long as those take.
    pub(super) fn rows_beside(&self, rows: u32, step: &Step) -> u32 {
        let short = self.tokens_within(SHORT_STEP, step).unwrap_or(0).saturating_sub(step.stream_rows);
        rows.saturating_add(self.rows_as_long(rows, step)).max(MIN_CHUNK).max(short)
    }

    /// How many tokens `step` may have to end within `limit`, most of them of the prompt that is computed first; `None` while
    /// no step was seen.
    fn tokens_within(&self, limit: Duration, step: &Step) -> Option<u32> {
        let context = self.queues.first_context(step.number);
        self.pace.step_time.tokens_within(limit, step.work(), context)
    }

    /// How many rows of the prompt that is computed first take as long as `rows` of one that begins.
    fn rows_as_long(&self, rows: u32, step: &Step) -> u32 {
        let work = Work { tokens: rows, attended: attended(0, rows) };
        let context = self.queues.first_context(step.number);
        self.pace.step_time.tokens_like(work, context).unwrap_or(rows).min(rows)
    }
}

/// The rows of `left` tokens in one of as few steps of at most `most` as can be, all of about one size: a small remainder
/// would cost a step of its own.
pub(super) fn even_part(left: u32, most: u32) -> u32 {
    left.div_ceil(left.div_ceil(most).max(1))
}

/// Positions that the rows `start..end` of a sequence attend to, each to all before it and itself.
pub(super) fn attended(start: u32, end: u32) -> u64 {
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
