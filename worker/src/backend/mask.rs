//! Tokens that a sample's grammar allows next. The mask is computed on another thread during the forward
//! pass, and the backend reads it before drawing.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use skein_grammar::{Mask, Matcher, Next, Stuck};
use skein_proto::sampling::SamplingParams;

use crate::TokenId;

/// Result of a grammar for one draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Allowed tokens; at least one.
    Tokens(Mask),
    /// No token: the answer is complete.
    End,
    /// The grammar cannot continue, so the request fails.
    Stuck(Stuck),
}

impl Allowed {
    /// Combines a grammar's `next` with the tokens that end a sample. They are allowed where the answer may
    /// end, but before `min_tokens` only if nothing else is allowed. A stop token that is ordinary text is
    /// allowed wherever the grammar allows it.
    pub fn new(next: Result<Next, Stuck>, params: &SamplingParams, forbid_stop: bool) -> Self {
        let Next { mut mask, may_end } = match next {
            Ok(next) => next,
            Err(stuck) => return Self::Stuck(stuck),
        };
        if mask.is_empty() {
            return Self::End;
        }
        if forbid_stop {
            let mut others = mask.clone();
            params.stop_token_ids.iter().for_each(|stop| others.forbid(*stop));
            if !others.is_empty() {
                return Self::Tokens(others);
            }
        }
        if may_end {
            params.stop_token_ids.iter().for_each(|stop| mask.allow(*stop));
        }
        Self::Tokens(mask)
    }

    /// Copies `logits` to `out`, with -∞ for disallowed tokens. `None` if no token is allowed. If every
    /// allowed token has -∞ itself, the first one gets a finite value.
    pub fn mask_logits<'a>(&self, logits: &[f32], out: &'a mut Vec<f32>) -> Option<&'a [f32]> {
        let Self::Tokens(mask) = self else { return None };
        out.resize(logits.len(), f32::NEG_INFINITY);
        let mut finite = false;
        let groups = logits.chunks(u32::BITS as usize).zip(out.chunks_mut(u32::BITS as usize));
        for ((logits, out), word) in groups.zip(mask.words()) {
            // Most words of a mask allow none of their tokens, or all.
            match *word {
                0 => out.fill(f32::NEG_INFINITY),
                u32::MAX => {
                    out.copy_from_slice(logits);
                    finite |= logits.iter().fold(false, |any, logit| any | (*logit != f32::NEG_INFINITY));
                }
                word => {
                    for (bit, (logit, out)) in logits.iter().zip(out).enumerate() {
                        *out = if word & (1 << bit) != 0 { *logit } else { f32::NEG_INFINITY };
                        finite |= *out != f32::NEG_INFINITY;
                    }
                }
            }
        }
        if !finite {
            let first = mask.tokens().next()? as usize;
            *out.get_mut(first)? = 0.0;
        }
        Some(out)
    }

    /// Number of tokens that may be drawn.
    pub fn count(&self) -> u32 {
        if let Self::Tokens(mask) = self { mask.count() } else { 0 }
    }

    /// Whether `token` may be drawn.
    pub fn allows(&self, token: TokenId) -> bool {
        if let Self::Tokens(mask) = self { mask.allows(token) } else { false }
    }

    /// The allowed token at index `nth`, modulo their number; `None` if there is none.
    pub(super) fn nth(&self, nth: u64) -> Option<TokenId> {
        let Self::Tokens(mask) = self else { return None };
        mask.tokens().nth((nth % u64::from(mask.count().max(1))) as usize)
    }
}

/// Slot for the [`Allowed`] of one draw. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MaskSlot(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    allowed: Option<Arc<Allowed>>,
    /// Matcher to reuse for the next token.
    matcher: Option<Matcher>,
    /// Guessed tokens of the text that must come next; `None` while unknown.
    forced: Option<Vec<TokenId>>,
}

impl MaskSlot {
    /// A slot with `allowed` and without a matcher.
    pub fn filled(allowed: Allowed) -> Self {
        let slot = Self::default();
        slot.fill(allowed, None);
        slot
    }

    /// Stores the result, and the matcher if this slot keeps it.
    pub fn fill(&self, allowed: Allowed, matcher: Option<Matcher>) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.allowed, state.matcher) = (Some(Arc::new(allowed)), matcher);
        drop(state);
        self.0.filled.notify_all();
    }

    /// Waits for the result; the library's limits bound the wait.
    pub fn wait(&self) -> Arc<Allowed> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(allowed) = &state.allowed {
                return allowed.clone();
            }
            state = self.0.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A copy of the matcher, if the slot has it.
    pub fn fork_matcher(&self) -> Option<Matcher> {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.matcher.as_ref().map(Matcher::fork)
    }

    /// Stores guessed tokens of the text that must come next.
    pub fn set_forced(&self, tokens: Vec<TokenId>) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).forced = Some(tokens);
        self.0.filled.notify_all();
    }

    /// The guessed tokens, waiting at most `wait`; `None` if they are not known by then.
    pub fn forced_within(&self, wait: Duration) -> Option<Vec<TokenId>> {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.filled.wait_timeout_while(state, wait, |state| state.forced.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.forced.clone()
    }

    /// The result, if available.
    pub fn peek(&self) -> Option<Arc<Allowed>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).allowed.clone()
    }

    /// Takes the matcher after [`wait`](Self::wait); `None` if already taken.
    pub fn take_matcher(&self) -> Option<Matcher> {
        self.wait();
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).matcher.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(tokens: &[TokenId], may_end: bool) -> Result<Next, Stuck> {
        let mut mask = Mask::none(40);
        tokens.iter().for_each(|token| mask.allow(*token));
        Ok(Next { mask, may_end })
    }

    #[test]
    fn stop_tokens_may_be_drawn_where_the_answer_may_end() {
        let params = SamplingParams { stop_token_ids: vec![1, 39], ..SamplingParams::default() };
        let check = |tokens: &[TokenId], may_end, forbid_stop, expected: &[TokenId]| match Allowed::new(
            next(tokens, may_end),
            &params,
            forbid_stop,
        ) {
            Allowed::Tokens(mask) => assert_eq!(mask.tokens().collect::<Vec<_>>(), expected),
            other => panic!("{other:?}"),
        };
        check(&[5, 7], false, false, &[5, 7]);
        check(&[5, 7], true, false, &[1, 5, 7, 39]);
        check(&[5, 7], true, true, &[5, 7]);
        check(&[1, 5], false, true, &[5]);
        check(&[1], false, true, &[1]);
        check(&[1], true, true, &[1, 39]);
        assert_eq!(Allowed::new(next(&[], true), &params, true), Allowed::End);
    }

    #[test]
    fn logits_of_other_tokens_are_minus_infinity() {
        let mut out = Vec::new();
        let logits: Vec<f32> = (0..40).map(|at| at as f32).collect();
        let allowed = Allowed::new(next(&[3, 35], false), &SamplingParams::default(), false);
        let masked = allowed.mask_logits(&logits, &mut out).unwrap();
        let left: Vec<usize> = (0..40).filter(|at| masked[*at].is_finite()).collect();
        assert_eq!((left, masked.len()), (vec![3, 35], 40));
        let every: Vec<TokenId> = (0..40).collect();
        let all = Allowed::new(next(&every, false), &SamplingParams::default(), false);
        assert_eq!(all.mask_logits(&logits, &mut out), Some(&*logits));
        let none = all.mask_logits(&[f32::NEG_INFINITY; 40], &mut out).unwrap();
        assert_eq!(none.iter().position(|logit| logit.is_finite()), Some(0));
        let none = allowed.mask_logits(&[f32::NEG_INFINITY; 40], &mut out).unwrap();
        assert_eq!(none.iter().position(|logit| logit.is_finite()), Some(3));
        assert_eq!(Allowed::End.mask_logits(&logits, &mut out), None);
    }
}
