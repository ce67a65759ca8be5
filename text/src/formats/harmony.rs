//! GPT-OSS's channels: `<|channel|>analysis<|message|>…<|end|>`, `final`, and `commentary to=functions.NAME`.
//! The end of the answer ends a message, because `<|return|>` and `<|call|>` are end-of-sequence tokens.
//!
//! A marker that the tokenizer has as a control token is that token only: a model may write about `<|end|>`
//! in ordinary tokens. With another tokenizer the marker's text is the marker.

use super::out::Out;
use super::scan::Scan;
use super::{Plan, in_name};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const START: &str = "<|start|>";
const IN_HEADER: [&str; 4] = [MESSAGE, CHANNEL, CONSTRAIN, START];
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

/// Markers of the channel format.
pub const MARKERS: [&str; 7] = [CHANNEL, MESSAGE, CONSTRAIN, "<|end|>", "<|call|>", "<|return|>", START];

/// Longest message header, in bytes.
const MAX_HEADER_BYTES: usize = 512;

/// Parser of an answer in channels.
#[derive(Debug, Default)]
pub struct Harmony {
    at: At,
    scan: MarkerScan,
}

#[derive(Debug)]
enum At {
    /// Collects the header, up to the text of the message.
    Header(Header),
    Reasoning,
    Content,
    Call,
    /// In a message of another role, which the model made up.
    Other,
}

impl Default for At {
    fn default() -> Self {
        Self::Header(Header::default())
    }
}

impl Harmony {
    /// Consumes the next character. `is_control`: a control token begins with it.
    pub fn step(&mut self, c: char, is_control: bool, plan: &Plan, out: &mut Out) {
        match &mut self.at {
            At::Header(header) => {
                let found = self.scan.step(c, is_control, &IN_HEADER, plan, |c| header.push(c));
                if found == Some(MESSAGE) {
                    self.at = header.begin(plan, out);
                } else if let Some(marker) = found {
                    header.mark(marker);
                } else if !header.may_be_one() {
                    out.content(&header.text);
                    self.at = At::Content;
                }
            }
            at => {
                let found = self.scan.step(c, is_control, &ENDS, plan, |c| at.write(c, out));
                if let Some(marker) = found {
                    if matches!(at, At::Call) {
                        out.call_end();
                    }
                    let mut header = Header::default();
                    if marker == START {
                        header.mark(START);
                    }
                    *at = At::Header(header);
                }
            }
        }
    }

    /// Whether the message is reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        matches!(self.at, At::Reasoning)
    }

    /// Whether text is held back that may be a marker.
    pub fn holds_back(&self) -> bool {
        !self.scan.scan.is_empty()
    }

    /// Handles the end of the answer.
    pub fn finish(&mut self, out: &mut Out) {
        let held = self.scan.scan.rest();
        match &mut self.at {
            At::Header(header) if !header.is_marked => out.content(&(header.text.clone() + &held)),
            At::Header(_) => {}
            at => held.chars().for_each(|c| at.write(c, out)),
        }
        if matches!(self.at, At::Call) {
            out.call_end();
        }
    }
}

impl At {
    fn write(&self, c: char, out: &mut Out) {
        match self {
            Self::Reasoning => out.reasoning(c.encode_utf8(&mut [0; 4])),
            Self::Content => out.content(c.encode_utf8(&mut [0; 4])),
            Self::Call => out.argument(c),
            Self::Header(_) | Self::Other => {}
        }
    }
}

/// Header of a message: `<|start|>ROLE to=RECIPIENT<|channel|>NAME to=RECIPIENT <|constrain|>json`, where the
/// recipient stands once or not at all.
#[derive(Debug, Default)]
struct Header {
    text: String,
    is_marked: bool,
    /// Where the role begins in `text`, if `<|start|>` names one.
    role: Option<usize>,
    /// Where the channel's name begins in `text`.
    channel: Option<usize>,
}

impl Header {
    fn push(&mut self, c: char) {
        self.text.push(c);
    }

    fn mark(&mut self, marker: &str) {
        self.is_marked = true;
        self.text.push_str(marker);
        match marker {
            START => self.role = Some(self.text.len()),
            CHANNEL => self.channel = Some(self.text.len()),
            _ => {}
        }
    }

    /// Whether the text can still become a header: one begins with a marker, a role or a recipient. Anything
    /// else is plain text from a model that left the format.
    fn may_be_one(&self) -> bool {
        let text = self.text.as_str();
        let begins = |known: &&str| known.starts_with(text) || text.starts_with(*known);
        text.len() <= MAX_HEADER_BYTES && (self.is_marked || ["assistant", " to=", "to="].iter().any(begins))
    }

    /// Begins the message.
    fn begin(&self, plan: &Plan, out: &mut Out) -> At {
        let role = self.role.and_then(|at| self.text[at..].split([' ', '<']).next()).unwrap_or_default();
        if !role.is_empty() && !role.starts_with("assistant") {
            return At::Other;
        }
        if let Some(name) = self.function(plan).filter(|_| plan.calls.is_some()) {
            out.call(name);
            return At::Call;
        }
        let channel = self.channel.map_or("", |at| self.text[at..].trim_start());
        if channel.starts_with("analysis") { At::Reasoning } else { At::Content }
    }

    /// The function that the message calls: `to=functions.NAME`, or `to=NAME` of one of the request's tools.
    fn function(&self, plan: &Plan) -> Option<&str> {
        let name = |rest: &'_ str| rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        if let Some((_, rest)) = self.text.split_once("to=functions.") {
            return Some(&rest[..name(rest)]).filter(|name| !name.is_empty());
        }
        let mut recipients = self.text.split_whitespace().filter_map(|word| word.strip_prefix("to="));
        recipients.find_map(|rest| Some(&rest[..name(rest)]).filter(|name| plan.function(name).is_some()))
    }
}

/// Finds markers, each as its control token or as text.
#[derive(Debug, Default)]
struct MarkerScan {
    scan: Scan,
    /// The text held back begins with a control token.
    in_token: bool,
}

impl MarkerScan {
    fn step(
        &mut self,
        c: char,
        is_control: bool,
        wanted: &[&'static str; 4],
        plan: &Plan,
        mut release: impl FnMut(char),
    ) -> Option<&'static str> {
        if is_control {
            self.scan.rest().chars().for_each(&mut release);
        }
        if self.scan.is_empty() {
            if c != '<' {
                release(c);
                return None;
            }
            self.in_token = is_control;
        }
        let (mut usable, mut count) = ([""; 4], 0);
        for marker in wanted.iter().filter(|marker| plan.token_markers.contains(*marker) == self.in_token) {
            usable[count] = marker;
            count += 1;
        }
        self.scan.step(c, &usable[..count], release).map(|found| usable[found])
    }
}
