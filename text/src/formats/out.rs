//! What the parsers of an answer write: its pieces.

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Visible text of the answer.
    Content(String),
    /// Text that the model wrote as reasoning.
    Reasoning(String),
    /// Start of a call. Calls are numbered from 0.
    Call {
        /// Number of the call, from 0.
        index: u32,
        /// Name of the function.
        name: String,
    },
    /// Next fragment of a call's arguments; the fragments concatenate to one JSON value.
    Arguments {
        /// Number of the call, from 0.
        index: u32,
        /// Fragment of JSON text.
        json: String,
    },
    /// End of a call's arguments.
    CallEnd {
        /// Number of the call, from 0.
        index: u32,
    },
}

impl Piece {
    /// Whether it belongs to a call.
    pub fn is_of_call(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::Arguments { .. } | Self::CallEnd { .. })
    }
}

/// Collects pieces, merging adjacent ones of the same kind.
#[derive(Debug, Default)]
pub struct Out {
    pieces: Vec<Piece>,
    calls: u32,
    /// The latest call has not ended.
    in_call: bool,
}

impl Out {
    /// Appends visible text.
    pub fn content(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(all)) => all.push_str(text),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    /// Appends reasoning text.
    pub fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(all)) => all.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    /// Starts a call.
    pub fn call(&mut self, name: &str) {
        self.pieces.push(Piece::Call { index: self.calls, name: name.to_owned() });
        self.calls += 1;
        self.in_call = true;
    }

    /// Appends to the arguments of the latest call.
    pub fn arguments(&mut self, text: &str) {
        let latest = self.calls.saturating_sub(1);
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Arguments { json, .. }) => json.push_str(text),
            _ => self.pieces.push(Piece::Arguments { index: latest, json: text.to_owned() }),
        }
    }

    /// Appends one character to the arguments of the latest call.
    pub fn argument(&mut self, c: char) {
        self.arguments(c.encode_utf8(&mut [0; 4]));
    }

    /// Ends the latest call.
    pub fn call_end(&mut self) {
        self.in_call = false;
        self.pieces.push(Piece::CallEnd { index: self.calls.saturating_sub(1) });
    }

    /// Leaves the latest call without an end.
    pub fn call_breaks_off(&mut self) {
        self.in_call = false;
    }

    /// Whether the latest call has not ended.
    pub fn is_in_call(&self) -> bool {
        self.in_call
    }

    /// Number of calls started so far.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Takes the pieces collected since the last call.
    pub fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }
}

/// Effect of a character on the parser of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumed {
    /// The call continues.
    More,
    /// This character ends the call.
    Done,
    /// This character cannot continue the call.
    Fail,
}
