//! Which states of recurrent layers to keep, so that later prompts can resume from them. A state is kept at
//! the end of a block.
//!
//! - At the end of the prompt, because a conversation's next turn repeats it.
//! - Where the prompt parts from cached ones that have no state there, because others will part there, too.
//! - At the end of the answer so far, because the next turn repeats that, too. It replaces the one before.
//! - At multiples of [`EVERY`] tokens of a prompt, if that evicts no other state.

/// Tokens of a prompt from one kept state to the next, where slots are free.
pub(super) const EVERY: u32 = 1024;

/// Positions of a sequence after which states are worth keeping.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Checkpoints {
    /// Tokens known when it was admitted; what follows is its answer.
    known: u32,
    /// Tokens of the cached blocks that it shares, states or not.
    parted: u32,
}

impl Checkpoints {
    /// Those of a sequence of `known` tokens, of which the first `parted` are in cached blocks.
    pub fn new(known: u32, parted: u32) -> Self {
        Self { known, parted }
    }

    /// Positions in `after + 1..=until`, ascending, multiples of `block_size`.
    pub fn between(self, after: u32, until: u32, block_size: u32) -> Vec<u32> {
        let last = |tokens: u32| tokens / block_size * block_size;
        let mut positions = Vec::new();
        if after < self.known {
            let every = (EVERY / block_size).max(1) * block_size;
            let prompt = until.min(self.known);
            positions.extend((after / every + 1..=prompt / every).map(|nth| nth * every));
            positions.extend([self.parted, last(self.known.saturating_sub(1))]);
        }
        if until > self.known {
            positions.push(last(until));
        }
        positions.retain(|at| (after + 1..=until).contains(at));
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Whether the state after `position` is one of those at regular distances only.
    pub fn is_regular(self, position: u32, block_size: u32) -> bool {
        let last = self.known.saturating_sub(1) / block_size * block_size;
        position <= self.known && position != self.parted && position != last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(checkpoints: Checkpoints, after: u32, until: u32, expected: &[u32]) {
        assert_eq!(checkpoints.between(after, until, 16), expected);
    }

    #[test]
    fn states_are_kept_where_prompts_end_and_part_and_in_the_answer() {
        let prompt = Checkpoints::new(2500, 480);
        check(prompt, 0, 2500, &[480, 1024, 2048, 2496]);
        check(prompt, 0, 512, &[480]);
        check(prompt, 512, 1024, &[1024]);
        check(prompt, 2048, 2500, &[2496]);
        check(prompt, 2500, 2501, &[]);
        check(prompt, 2503, 2520, &[2512]);
        assert!(prompt.is_regular(1024, 16) && !prompt.is_regular(2496, 16) && !prompt.is_regular(480, 16));
        check(prompt, 2500, 2560, &[2560]);
    }

    #[test]
    fn a_prompt_that_ends_with_a_block_is_kept_before_its_last_token() {
        // The last token is always computed, because its logits are needed.
        check(Checkpoints::new(32, 0), 0, 32, &[16]);
        check(Checkpoints::new(33, 0), 0, 33, &[32]);
        check(Checkpoints::new(16, 0), 0, 16, &[]);
    }
}
