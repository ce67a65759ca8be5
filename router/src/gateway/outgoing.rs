//! The events of one stream on their way out: each gets the id from which its client can go on, and what the client
//! has from an earlier connection is left out.

use serde_json::Value;

use super::progress::Progress;
use crate::refusal::Refusal;
use crate::text::received::{Received, Rest};
use crate::text::text_stream::TextDelta;

/// An object to send, and its id.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// JSON.
    pub object: Value,
    /// `None` for calls with too many choices.
    pub id: Option<String>,
}

/// What has been sent of one stream, on this connection and those before it.
#[derive(Debug)]
pub struct Outgoing {
    request_id: String,
    progress: Progress,
    rests: Vec<Rest>,
}

impl Outgoing {
    /// Of the stream of `request_id`, of which the client has `had`.
    pub fn new(request_id: &str, choices: usize, had: Option<Progress>) -> Self {
        let progress = had.unwrap_or_else(|| Progress::none(choices));
        let rests = progress.choices.iter().map(|had| Rest::after(had.unwrap_or_default())).collect();
        Self { request_id: request_id.to_owned(), progress, rests }
    }

    /// Whether the client has an event of this choice.
    pub fn has_begun(&self, choice: usize) -> bool {
        self.progress.choices.get(choice).is_some_and(Option::is_some)
    }

    /// Whether the client has the usage chunk.
    pub fn has_usage(&self) -> bool {
        self.progress.usage
    }

    /// Parts a choice's next delta into what the client has and what is new.
    pub fn part(&mut self, choice: usize, delta: TextDelta) -> Result<(TextDelta, TextDelta), Refusal> {
        self.rests.get_mut(choice).ok_or(Refusal::Internal)?.part(delta)
    }

    /// An event that brings all that was parted of a choice so far, its finish only if `finished`.
    pub fn event(&mut self, choice: usize, finished: bool, object: Value) -> Event {
        let seen = self.rests.get(choice).map(Rest::seen).unwrap_or_default();
        if let Some(sent) = self.progress.choices.get_mut(choice) {
            *sent = Some(Received { finished, ..seen });
        }
        self.named(object)
    }

    /// The event that brings the usage.
    pub fn usage(&mut self, object: Value) -> Event {
        self.progress.usage = true;
        self.named(object)
    }

    fn named(&self, object: Value) -> Event {
        Event { object, id: self.progress.event_id(&self.request_id) }
    }
}
