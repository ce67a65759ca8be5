//! What a client has of a sample from an earlier connection, and what is new to it. A stream that is taken up again
//! is generated from its beginning (by a worker that still keeps it, or anew: the tokens are the same), and what the
//! client has is left out here, exactly: tokens by their number, text by its bytes. Text is a function of the tokens,
//! however they were cut into deltas, so the two need not end at the same place.

use std::cmp::Ordering;

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
        if !self.is_continued() || !delta.text.is_char_boundary(bytes) {
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
    /// Whether what was seen can be the answer that the client has a part of. The text that so many tokens make certain
    /// is always the same, so neither count passes what the client has before the other one has reached it.
    fn is_continued(&self) -> bool {
        let Self { had, seen } = self;
        let counts = (seen.tokens.cmp(&had.tokens), seen.text_bytes.cmp(&had.text_bytes));
        match counts {
            (Ordering::Less, Ordering::Greater) | (Ordering::Greater, Ordering::Less) => false,
            (tokens, bytes) if had.finished => {
                tokens.is_le() && bytes.is_le() && (!seen.finished || tokens.is_eq() && bytes.is_eq())
            }
            (tokens, bytes) => !seen.finished || tokens.is_ge() && bytes.is_ge(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::text_stream::TextFinish;

    fn delta(text: &str, tokens: u32, finished: bool) -> TextDelta {
        let finish = finished.then_some(TextFinish::Length);
        TextDelta { text: text.to_owned(), tokens: (0..tokens).collect(), finish, ..TextDelta::default() }
    }

    fn had(tokens: u32, text_bytes: u64, finished: bool) -> Rest {
        Rest::after(Received { tokens, text_bytes, finished })
    }

    #[test]
    fn tokens_and_text_are_parted_each_at_its_own_place() {
        let mut rest = had(3, 2, false);
        let (old, new) = rest.part(delta("a", 2, false)).unwrap();
        assert_eq!(
            (old.text.as_str(), old.tokens.len(), new.text.as_str(), new.tokens.len()),
            ("a", 2, "", 0)
        );
        assert_eq!(rest.seen(), Received { tokens: 3, text_bytes: 2, finished: false });
        let (old, new) = rest.part(delta("bé", 3, true)).unwrap();
        assert_eq!(
            (old.text.as_str(), old.tokens.len(), new.text.as_str(), new.tokens.len()),
            ("b", 1, "é", 2)
        );
        assert_eq!((old.finish, new.finish, new.from_position), (None, Some(TextFinish::Length), 1));
        assert_eq!(rest.seen(), Received { tokens: 5, text_bytes: 4, finished: true });
    }

    #[test]
    fn another_answer_is_told_as_soon_as_it_shows() {
        let refused = |mut rest: Rest, delta| matches!(rest.part(delta), Err(Refusal::NotContinued));
        assert!(refused(had(3, 2, false), delta("abc", 2, false)), "more text of fewer tokens");
        assert!(refused(had(3, 2, false), delta("a", 4, false)), "less text of more tokens");
        assert!(refused(had(3, 2, false), delta("ab", 2, true)), "an end before what the client has");
        assert!(
            refused(had(3, 2, true), delta("ab", 4, false)),
            "more than the client has of a whole sample"
        );
        assert!(refused(had(1, 1, false), delta("é", 2, false)), "a cut within a scalar");
        assert!(!refused(had(3, 2, true), delta("ab", 3, true)));
        assert!(!refused(had(3, 2, false), delta("abc", 3, true)), "text held back comes with the finish");
    }
}
