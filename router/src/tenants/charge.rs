//! What one request takes from the limits of its key: tokens are taken when it begins, by what is expected,
//! and corrected when it ends, by what was computed.

use std::sync::Arc;

use skein_choice::policy::EXPECTED_OUTPUT_TOKENS;
use skein_node::clock::Timestamp;

use super::key::Key;
use super::meter::Ask;
use crate::refusal::Refusal;
use crate::request::TokenRequest;

/// A request's share of the limits. One that is dropped before it is settled gives all of it back: the
/// request was not served.
#[derive(Debug)]
pub struct Charge {
    key: Option<Arc<Key>>,
    taken: Ask,
}

impl Charge {
    /// Takes what `request` needs.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`] if a limit has no room.
    pub fn begin(request: &TokenRequest, now: Timestamp) -> Result<Self, Refusal> {
        let Some(key) = request.tenant.key() else { return Ok(Self { key: None, taken: NOTHING }) };
        let output = u64::from(request.sampling.max_tokens.min(EXPECTED_OUTPUT_TOKENS));
        let tokens = request.prompt.len() as u64 + u64::from(request.n) * output;
        Self::take(key.clone(), Ask { requests: u64::from(request.part == 0), tokens }, now)
    }

    /// Takes one request and `tokens` by estimate.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn estimated(key: Option<&Arc<Key>>, tokens: u64, now: Timestamp) -> Result<Self, Refusal> {
        let Some(key) = key else { return Ok(Self { key: None, taken: NOTHING }) };
        Self::take(key.clone(), Ask { requests: 1, tokens }, now)
    }

    fn take(key: Arc<Key>, taken: Ask, now: Timestamp) -> Result<Self, Refusal> {
        key.take(taken, now)?;
        Ok(Self { key: Some(key), taken })
    }

    /// The key that pays; `None` = nobody does.
    pub fn key(&self) -> Option<&Arc<Key>> {
        self.key.as_ref()
    }

    /// Tokens that were taken at the beginning.
    pub fn tokens(&self) -> u64 {
        self.taken.tokens
    }

    /// Ends the request, which cost this many `tokens`.
    pub fn settle(&mut self, tokens: u64, now: Timestamp) {
        if let Some(key) = self.key.take() {
            let taken = self.taken.tokens;
            key.give(Ask { requests: 0, tokens: taken.saturating_sub(tokens) });
            key.take_more(tokens.saturating_sub(taken), now);
        }
    }
}

const NOTHING: Ask = Ask { requests: 0, tokens: 0 };

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            key.give(self.taken);
        }
    }
}
