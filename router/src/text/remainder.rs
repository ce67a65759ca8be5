//! Splits a sample's output into the part that a client received on an earlier connection and the new part. A
//! resumed stream is read from its beginning (kept by a worker, or generated again with the same tokens), and
//! the received part is skipped here: tokens by count, text by bytes. Text is a function of the tokens,
//! however they are split into deltas, so the two counts may end at different positions.

use std::cmp::Ordering;

use super::text_stream::TextDelta;
use crate::refusal::Refusal;

/// How much of one sample a client has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Number of output tokens.
    pub tokens: u32,
    /// Length of the output text in UTF-8 bytes.
    pub text_bytes: u64,
    /// Whether the client received the finish.
    pub finished: bool,
}

impl Received {
    /// Adds `delta` to the counts.
    pub fn add(&mut self, delta: &TextDelta) {
        self.tokens = self.tokens.saturating_add(u32::try_from(delta.tokens.len()).unwrap_or(u32::MAX));
        self.text_bytes = self.text_bytes.saturating_add(delta.text.len() as u64);
        self.finished |= delta.finish.is_some();
    }
}

/// The part of one sample that its client has not received.
#[derive(Debug, Clone, Default)]
pub struct Remainder {
    had: Received,
    seen: Received,
}

impl Remainder {
    /// Remainder of a sample of which the client has `had`.
    pub fn after(had: Received) -> Self {
        Self { had, seen: Received::default() }
    }

    /// What the client has once everything so far is sent.
    pub fn seen(&self) -> Received {
        Received {
            tokens: self.seen.tokens.max(self.had.tokens),
            text_bytes: self.seen.text_bytes.max(self.had.text_bytes),
            finished: self.seen.finished || self.had.finished,
        }
    }

    /// Splits the next delta into the received part and the new part.
    ///
    /// # Errors
    /// [`Refusal::NotContinued`] if the client received something that this output does not contain, so it
    /// belongs to a different request.
    pub fn part(&mut self, mut delta: TextDelta) -> Result<(TextDelta, TextDelta), Refusal> {
        let tokens = self.had.tokens.saturating_sub(self.seen.tokens) as usize;
        let bytes = self.had.text_bytes.saturating_sub(self.seen.text_bytes);
        self.seen.add(&delta);
        let tokens = tokens.min(delta.tokens.len());
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(delta.text.len());
        if !self.is_continued() || !delta.text.is_char_boundary(bytes) {
            return Err(Refusal::NotContinued);
        }
        let cut = delta.control_at.partition_point(|at| *at < bytes);
        let new = TextDelta {
            sample_index: delta.sample_index,
            from_position: delta.from_position.saturating_add(tokens as u32),
            text: delta.text.split_off(bytes),
            control_at: delta.control_at.split_off(cut).into_iter().map(|at| at - bytes).collect(),
            tokens: delta.tokens.split_off(tokens),
            logprobs: delta.logprobs.split_off(tokens.min(delta.logprobs.len())),
            finish: delta.finish.take_if(|_| !self.had.finished),
            stop_logprobs: delta.stop_logprobs.take_if(|_| !self.had.finished),
        };
        Ok((delta, new))
    }

    /// Whether the client can have received a part of the output so far. A number of tokens always completes
    /// the same text, so neither count may pass the client's before the other reaches it.
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

    fn had(tokens: u32, text_bytes: u64, finished: bool) -> Remainder {
        Remainder::after(Received { tokens, text_bytes, finished })
    }

    #[test]
    fn tokens_and_text_are_split_independently() {
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
    fn control_tokens_stay_with_their_text() {
        let mut rest = had(2, 4, false);
        let marked = TextDelta { control_at: vec![0, 3, 4, 9], ..delta("<a>b<c>d e<f>", 4, false) };
        let (old, new) = rest.part(marked).unwrap();
        assert_eq!((old.control_at, new.control_at), (vec![0, 3], vec![0, 5]));
    }

    #[test]
    fn another_answer_is_detected_as_soon_as_it_differs() {
        let refused = |mut rest: Remainder, delta| matches!(rest.part(delta), Err(Refusal::NotContinued));
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
