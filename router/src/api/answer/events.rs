//! Events of a stream that can resume: assigns each the id from which its client can resume, and skips what
//! the client received on an earlier connection.

use serde_json::{Map, Value};
use skein_proto::version::Version;

use super::progress::{Progress, Resuming};
use crate::refusal::Refusal;
use crate::text::remainder::{Received, Remainder};
use crate::text::text_stream::TextDelta;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    /// The JSON to send as `data`.
    pub object: SseData,
    /// `None` if the client cannot return to the stream, or the call has more than
    /// [`MAX_CHOICES`](super::progress::MAX_CHOICES) choices.
    pub id: Option<String>,
}

/// JSON object of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum SseData {
    /// A JSON tree, not yet serialised.
    Object(Value),
    /// JSON text, written from a template.
    Written(String),
}

impl From<Value> for SseData {
    fn from(object: Value) -> Self {
        Self::Object(object)
    }
}

impl From<Map<String, Value>> for SseData {
    fn from(object: Map<String, Value>) -> Self {
        Self::Object(object.into())
    }
}

impl SseData {
    /// Appends its JSON text to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            // A tree has text for keys, so writing it to memory cannot fail.
            Self::Object(object) => serde_json::to_writer(out, object).unwrap_or_default(),
            Self::Written(text) => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// How much of a stream has been sent, on this and earlier connections.
#[derive(Debug, Clone)]
pub struct ResumableEvents {
    /// `None` if the events have no ids.
    request_id: Option<String>,
    progress: Progress,
    rests: Vec<Remainder>,
    is_resumed: bool,
}

impl ResumableEvents {
    /// Stream of `request_id` with `choices`, for a client that is `resuming` it or may.
    pub fn new(request_id: &str, resuming: Resuming, choices: usize) -> Self {
        let Resuming { had, wants_ids } = resuming;
        let is_resumed = had.is_some();
        let progress = had.unwrap_or_else(|| Progress::none(choices));
        let rests = progress.choices.iter().map(|had| Remainder::after(had.unwrap_or_default())).collect();
        let request_id = wants_ids.then(|| request_id.to_owned());
        Self { request_id, progress, rests, is_resumed }
    }

    /// Whether the client has received an event of this choice.
    pub fn has_begun(&self, choice: usize) -> bool {
        self.progress.choices.get(choice).is_some_and(Option::is_some)
    }

    /// Records the version of the model that a choice is from.
    pub fn is_from(&mut self, choice: usize, version: Version) {
        if let Some(own) = self.progress.versions.get_mut(choice) {
            *own = own.or(version);
        }
    }

    /// Whether the client has received the usage chunk.
    pub fn has_usage(&self) -> bool {
        self.progress.usage
    }

    /// Splits a choice's next delta into the part that the client has and the new part.
    pub fn part(&mut self, choice: usize, delta: TextDelta) -> Result<(TextDelta, TextDelta), Refusal> {
        self.rests.get_mut(choice).ok_or(Refusal::Internal)?.part(delta)
    }

    /// Whether a choice's next delta has anything that the client does not have, or is the first of a new
    /// stream.
    pub fn is_new(&mut self, choice: usize, delta: &TextDelta) -> Result<bool, Refusal> {
        if !self.is_resumed {
            return Ok(true);
        }
        let (_, new) = self.part(choice, delta.clone())?;
        Ok(!new.text.is_empty() || !new.tokens.is_empty() || new.finish.is_some())
    }

    /// Event with everything split off for a choice so far. It includes the finish only if `finished`.
    pub fn event(&mut self, choice: usize, finished: bool, object: impl Into<SseData>) -> SseEvent {
        let seen = self.rests.get(choice).map(Remainder::seen).unwrap_or_default();
        if let Some(sent) = self.progress.choices.get_mut(choice) {
            *sent = Some(Received { finished, ..seen });
        }
        self.named(object.into())
    }

    /// Event that carries the usage.
    pub fn usage(&mut self, object: Value) -> SseEvent {
        self.progress.usage = true;
        self.named(object.into())
    }

    /// Event that is not part of the answer and has no id.
    pub fn aside(&self, object: Map<String, Value>) -> SseEvent {
        SseEvent { object: object.into(), id: None }
    }

    fn named(&self, object: SseData) -> SseEvent {
        let id = self.request_id.as_ref().and_then(|request| self.progress.event_id(request));
        SseEvent { object, id }
    }
}
