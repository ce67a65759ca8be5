//! GPT-OSS's channels: `<|channel|>analysis<|message|>…<|end|>`, `final`, and `commentary to=functions.NAME`.
//! The end of the answer ends a message, because `<|return|>` and `<|call|>` are end-of-sequence tokens.

use super::out::Out;
use super::scan::Scan;
use super::{Plan, in_name};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// Markers of the channel format.
pub const MARKERS: [&str; 7] =
    [CHANNEL, MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// Longest message header, in bytes.
const MAX_HEADER_BYTES: usize = 512;

/// Parser of an answer in channels.
#[derive(Debug, Default)]
pub struct Harmony {
    at: At,
    scan: Scan,
}

#[derive(Debug)]
enum At {
    /// Collects the header, up to the text of the message.
    Header(String),
    Reasoning,
    Content,
    Call,
}

impl Default for At {
    fn default() -> Self {
        Self::Header(String::new())
    }
}

impl Harmony {
    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) {
        match &mut self.at {
            At::Header(header) => {
                let found = self.scan.step(c, &[MESSAGE], |c| header.push(c));
                if found.is_some() {
                    self.at = begin(header, plan, out);
                } else if header.len() > MAX_HEADER_BYTES || !may_be_a_header(header) {
                    out.content(header);
                    self.at = At::Content;
                }
            }
            at => {
                let found = self.scan.step(c, &ENDS, |c| match at {
                    At::Reasoning => out.reasoning(c.encode_utf8(&mut [0; 4])),
                    At::Call => out.argument(c),
                    _ => out.content(c.encode_utf8(&mut [0; 4])),
                });
                if found.is_some() {
                    if matches!(self.at, At::Call) {
                        out.call_end();
                    }
                    self.at = At::default();
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
        !self.scan.is_empty()
    }

    /// Handles the end of the answer.
    pub fn finish(&mut self, out: &mut Out) {
        let held = self.scan.rest();
        match &self.at {
            At::Header(header) if !header.contains(CHANNEL) => out.content(&(header.clone() + &held)),
            At::Header(_) => {}
            At::Reasoning => out.reasoning(&held),
            At::Content => out.content(&held),
            At::Call => {
                out.arguments(&held);
                out.call_end();
            }
        }
    }
}

/// Whether `header` can still become one. A header begins with a marker or a role; anything else is plain
/// text from a model that left the format.
fn may_be_a_header(header: &str) -> bool {
    let known = [CHANNEL, "<|start|>", "assistant", "<|constrain|>", " to=", "to="];
    known.iter().any(|known| known.starts_with(header) || header.starts_with(known)) || header.is_empty()
}

fn begin(header: &str, plan: &Plan, out: &mut Out) -> At {
    let channel = header.split_once(CHANNEL).map_or("", |(_, rest)| rest).trim_start();
    let to = header.split_once("to=functions.").map(|(_, rest)| rest);
    let name = to.map(|rest| rest.split(|c| !in_name(c)).next().unwrap_or_default());
    match name.filter(|name| !name.is_empty() && plan.calls.is_some()) {
        Some(name) => {
            out.call(name);
            At::Call
        }
        None if channel.starts_with("analysis") => At::Reasoning,
        None => At::Content,
    }
}
