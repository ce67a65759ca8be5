//! States of the fake backend: a hash of all tokens in a state, with the draft rows kept behind it.

use super::{Batch, BatchState, MOST_DRAFTED_WITH_STATES, StateCopy};
use crate::TokenId;

/// The slots.
#[derive(Debug)]
pub(super) struct FakeStates(Vec<State>);

#[derive(Debug, Clone, Default)]
struct State {
    position: u32,
    hash: u64,
    /// Draft rows after `position`, each of which may be wrong.
    pending: Vec<TokenId>,
}

impl State {
    fn apply(&mut self, token: TokenId) {
        self.hash = extend(self.hash, token);
        self.position += 1;
    }
}

/// The hash of some tokens and `token` after them; 0 is that of no tokens.
pub(super) fn extend(hash: u64, token: TokenId) -> u64 {
    (hash ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl FakeStates {
    /// Slots without content.
    pub fn new(slots: u32) -> Self {
        Self(vec![State { position: u32::MAX, ..State::default() }; slots as usize])
    }

    /// Does the copies of `batch`, and checks that no slot is used twice.
    pub fn copy(&mut self, batch: &Batch) {
        for &StateCopy { from, to } in &batch.state_copies {
            self.0[to.0 as usize] = self.0[from.0 as usize].clone();
        }
        assert_eq!(batch.states.len(), batch.sequences.len(), "every sequence has a state");
        let saved = |state: &BatchState| state.saves.iter().map(|save| save.to).collect::<Vec<_>>();
        let written = batch.states.iter().flat_map(|state| [vec![state.slot], saved(state)].concat());
        let mut written: Vec<_> = written.collect();
        written.sort_unstable();
        assert!(written.windows(2).all(|pair| pair[0] != pair[1]), "no slot is written twice in a step");
    }

    /// Applies rows with `tokens` from position `start` on. Returns the hash of the tokens before them.
    pub fn run(&mut self, of: &BatchState, start: u32, tokens: &[TokenId]) -> u64 {
        assert!(of.drafts <= MOST_DRAFTED_WITH_STATES && (of.drafts as usize) < tokens.len().max(1));
        let mut state = if start == 0 { State::default() } else { self.0[of.slot.0 as usize].clone() };
        let accepted = start.checked_sub(state.position).filter(|n| *n as usize <= state.pending.len());
        let accepted = accepted.unwrap_or_else(|| panic!("{state:?} does not reach position {start}"));
        let (known, drafts) = tokens.split_at(tokens.len() - of.drafts as usize);
        let (mut saves, mut before) = (of.saves.iter().peekable(), state.hash);
        let pending = std::mem::take(&mut state.pending);
        for (nth, &token) in pending[..accepted as usize].iter().chain(known).enumerate() {
            state.apply(token);
            if nth + 1 == accepted as usize {
                before = state.hash;
            }
            while let Some(save) = saves.next_if(|save| save.position == state.position) {
                self.0[save.to.0 as usize] = state.clone();
            }
        }
        assert!(saves.next().is_none(), "saves are ascending positions of known rows");
        state.pending = drafts.to_vec();
        self.0[of.slot.0 as usize] = state;
        before
    }
}
