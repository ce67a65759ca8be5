//! Whole events of a stream. Pure.
//!
//! Bytes are passed on up to the end of an event, so that an error or a continuation never begins in the
//! middle of one.

use bytes::{Bytes, BytesMut};

/// Longest event that is held until it is complete; longer ones are passed on in parts.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Holds the beginning of an event that is not complete.
#[derive(Debug, Default)]
pub struct Events {
    held: BytesMut,
}

impl Events {
    /// Takes bytes of the stream; returns those up to the end of the last complete event.
    pub fn push(&mut self, bytes: Bytes) -> Bytes {
        if self.held.is_empty() && bytes.ends_with(b"\n\n") {
            return bytes; // nearly always
        }
        // The end may begin in what is held.
        let searched = self.held.len().saturating_sub(3);
        self.held.extend_from_slice(&bytes);
        let end = end_of_last(&self.held[searched..]).map(|end| searched + end);
        let end = end.or((self.held.len() > MAX_EVENT_BYTES).then_some(self.held.len()));
        end.map_or_else(Bytes::new, |end| self.held.split_to(end).freeze())
    }

    /// The rest of a stream that has ended.
    pub fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// Forgets an event that will never be complete.
    pub fn drop_rest(&mut self) {
        self.held.clear();
    }
}

/// Position after the last empty line.
fn end_of_last(bytes: &[u8]) -> Option<usize> {
    let is_end = |at: usize| bytes[..at].ends_with(b"\n\n") || bytes[..at].ends_with(b"\n\r\n");
    (2..=bytes.len()).rev().find(|&at| is_end(at))
}

/// The complete events in `bytes`, each with its empty line.
pub fn each(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ends = |at: &usize| rest[..*at].ends_with(b"\n\n") || rest[..*at].ends_with(b"\n\r\n");
        let end = (2..=rest.len()).find(ends).unwrap_or(rest.len());
        let (event, after) = rest.split_at(end);
        rest = after;
        (!event.is_empty()).then_some(event)
    })
}

/// The data of an event with one line of it.
pub fn data(event: &[u8]) -> Option<&[u8]> {
    let lines = event.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter_map(|line| line.strip_prefix(b"data:")).map(<[u8]>::trim_ascii_start).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_events_pass_however_they_are_cut() {
        for stream in ["data: a\n\ndata: b\r\n\r\n: c\n\ndata: rest", "data: a\n\n", "rest", "\n\n\r\n\r\n"] {
            for size in 1..stream.len() + 1 {
                let (mut events, mut out) = (Events::default(), Vec::new());
                for part in stream.as_bytes().chunks(size) {
                    let whole = events.push(Bytes::copy_from_slice(part));
                    assert!(whole.is_empty() || whole.ends_with(b"\n"), "{stream:?} by {size}");
                    out.extend_from_slice(&whole);
                }
                let whole = out.len();
                out.extend_from_slice(&events.rest());
                assert_eq!(out, stream.as_bytes(), "{stream:?} by {size}");
                let rest = &stream[whole..];
                assert!(!rest.contains("\n\n"), "{stream:?} by {size}: held {rest:?}");
            }
        }
    }

    #[test]
    fn an_endless_event_is_not_held() {
        let mut events = Events::default();
        let part = Bytes::from(vec![b'x'; 1 << 16]);
        let passed: usize = (0..64).map(|_| events.push(part.clone()).len()).sum();
        assert!(passed > 0 && events.held.len() <= MAX_EVENT_BYTES);
    }

    #[test]
    fn events_are_found_with_their_data() {
        let found: Vec<&[u8]> =
            each(b"data: a\n\nevent: x\r\ndata:b\r\n\r\n: c\n\n").filter_map(data).collect();
        assert_eq!(found, [b"a", b"b"]);
    }
}
