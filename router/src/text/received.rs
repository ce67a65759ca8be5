//! What a client has of a sample from an earlier connection, and what is new to it. A stream that is taken up again
//! is generated from its beginning (by a worker that still keeps it, or anew: the tokens are the same), and what the
//! client has is left out here, exactly: tokens by their number, text by its bytes. Text is a function of the tokens,
//! however they were cut into deltas, so the two need not end at the same place.

use super::text_stream::TextDelta;
use crate::refusal::Refusal;

/// What a client has of one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Output tokens.
    pub tokens: u32,
    /// Bytes of output text (UTF-8).
    pub text_bytes: u64,
    /// Its finish.
    pub finished: bool,
}

impl Received {
    /// Counts `delta` in.
    pub fn add(&mut self, delta: &TextDelta) {
        self.tokens = self.tokens.saturating_add(u32::try_from(delta.tokens.len()).unwrap_or(u32::MAX));
        self.text_bytes = self.text_bytes.saturating_add(delta.text.len() as u64);
        self.finished |= delta.finish.is_some();
    }
}

/// Leaves out of one sample's deltas what its client has.
#[derive(Debug, Clone, Default)]
pub struct Rest {
    had: Received,
    seen: Received,
}

impl Rest {
    /// Of a sample of which the client has `had`; nothing, for a fresh one.
    pub fn after(had: Received) -> Self {
        Self { had, seen: Received::default() }
    }

    /// What the client has when it has had everything up to here.
    pub fn seen(&self) -> Received {
        Received {
            tokens: self.seen.tokens.max(self.had.tokens),
            text_bytes: self.seen.text_bytes.max(self.had.text_bytes),
            finished: self.seen.finished || self.had.finished,
        }
    }

    /// Parts the next delta into what the client has and what is new to it.
    ///
    /// # Errors
    /// [`Refusal::NotContinued`] when the client has what this answer does not hold: it is not the same request.
    pub fn part(&mut self, mut delta: TextDelta) -> Result<(TextDelta, TextDelta), Refusal> {
        let tokens = self.had.tokens.saturating_sub(self.seen.tokens) as usize;
        let bytes = self.had.text_bytes.saturating_sub(self.seen.text_bytes);
        self.seen.add(&delta);
        let tokens = tokens.min(delta.tokens.len());
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(delta.text.len());
        let short = self.seen.finished && (self.seen.tokens < self.had.tokens || self.seen.text_bytes < self.had.text_bytes);
        let over = self.had.finished && (self.seen.tokens > self.had.tokens || self.seen.text_bytes > self.had.text_bytes);
        if short || over || !delta.text.is_char_boundary(bytes) {
            return Err(Refusal::NotContinued);
        }
        let new = TextDelta {
            sample_index: delta.sample_index,
            from_position: delta.from_position.saturating_add(tokens as u32),
            text: delta.text.split_off(bytes),
            tokens: delta.tokens.split_off(tokens),
            logprobs: delta.logprobs.split_off(tokens.min(delta.logprobs.len())),
            finish: delta.finish.take_if(|_| !self.had.finished),
        };
        Ok((delta, new))
    }
}
