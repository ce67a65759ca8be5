//! How model families write reasoning and tool calls. A family is a value: a [`Format`] or a [`Reasoning`].
//! The grammar that constrains an answer ([`grammar`]) and the splitter that parses it ([`splitter`]) are
//! both derived from that value, so they agree on every boundary.
//!
//! Pure: text in, pieces out. Knows no requests, no transport, and no tokens except the ids of control
//! tokens and where in a text they begin.

mod braced_call;
mod braced_grammar;
mod detect;
mod envelope;
mod formed;
pub mod grammar;
pub mod harmony;
mod keyed_call;
mod keyed_grammar;
mod lark;
mod named_call;
mod out;
mod python_literal;
mod pythonic;
mod pythonic_grammar;
mod scan;
mod skim;
pub mod splitter;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub mod tools;

pub use detect::{Formats, Opening, UnknownParser};
pub use out::Piece;
pub use splitter::Splitter;

/// Tool-call format of a model family.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// Names of the format in vLLM's `--tool-call-parser`.
    pub names: &'static [&'static str],
    /// Precedes the first call; a model may omit it.
    pub section_begin: &'static str,
    /// Starts a call. If empty, calls have no marker and must be the whole answer.
    pub begin: &'static str,
    /// Other markers that start a call; a constrained answer has `begin`.
    pub also_begin: &'static [&'static str],
    /// Syntax between the markers.
    pub body: Body,
    /// Markers after a call, in this order; a model may omit them.
    pub ends: &'static [&'static str],
    /// Follows the last call.
    pub section_end: &'static str,
    /// Separates two calls.
    pub between: &'static str,
    /// Format of call ids.
    pub ids: Ids,
}

/// Syntax of a call.
#[derive(Debug, PartialEq)]
pub enum Body {
    /// A JSON object with `name` and the arguments under the key `arguments`.
    Envelope {
        /// Key of the arguments: `arguments` or `parameters`.
        arguments: &'static str,
        /// Line break before and after the object, or empty.
        pad: &'static str,
    },
    /// A JSON list that holds all calls of the answer as such objects.
    List(Keys),
    /// The name in plain text, then a JSON object.
    Named {
        /// Text before the name.
        before: &'static str,
        /// Marker between the name and the arguments.
        after: &'static str,
        /// `:` and the call's number follow the name.
        numbered: bool,
    },
    /// The name and each argument between tags.
    Keyed(Keyed),
    /// A Python list of calls with keyword arguments: all calls of the answer.
    Pythonic,
    /// The same calls without brackets, each on a line.
    PythonicLines,
    /// `call:`, the name, and arguments in braces.
    Braced {
        /// Before and after a string.
        quote: &'static str,
    },
    /// GPT-OSS's channels, which also carry reasoning.
    Harmony,
}

/// Keys of a call in a JSON list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// `name` and `arguments`.
    Name,
    /// `tool_call_id`, `tool_name` and `parameters`.
    ToolName,
}

/// Tags of a call whose arguments are plain text; the function's schema decides their types.
#[derive(Debug, PartialEq)]
pub struct Keyed {
    /// Before the function's name.
    pub name_open: &'static str,
    /// After the function's name. If empty, the name ends at the first character that cannot be part of it.
    pub name_close: &'static str,
    /// Before an argument's name.
    pub key_open: &'static str,
    /// After an argument's name.
    pub key_close: &'static str,
    /// Before an argument's value.
    pub value_open: &'static str,
    /// After an argument's value.
    pub value_close: &'static str,
    /// Line breaks around a value that are not part of it.
    pub value_pad: &'static str,
    /// After the last argument.
    pub close: &'static str,
    /// The tag of an argument's name has `string="true"` if the value is plain text, and `string="false"` if
    /// it is JSON, so the schema decides nothing.
    pub typed: bool,
}

/// Format of call ids; some chat templates validate it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ids {
    /// `call_` and 24 hexadecimal digits.
    #[default]
    Long,
    /// Nine letters and digits.
    Nine,
    /// The form `functions.NAME:NUMBER`.
    Kimi,
}

impl Ids {
    /// Derives a call's id from the stream and the call's index, so that a resumed stream repeats it.
    pub fn id(self, stream: &[u8], sample: u32, index: u32, name: &str) -> String {
        let key = [stream, &sample.to_le_bytes(), &index.to_le_bytes()].concat();
        let hash = xxhash_rust::xxh3::xxh3_128(&key);
        match self {
            Self::Long => format!("call_{:024x}", hash >> 32),
            Self::Nine => format!("{hash:032x}")[..9].to_owned(),
            Self::Kimi => format!("functions.{name}:{index}"),
        }
    }
}

/// Reasoning format of a model family.
#[derive(Debug, PartialEq)]
pub struct Reasoning {
    /// Names of the format in vLLM's `--reasoning-parser`.
    pub names: &'static [&'static str],
    /// Marker that starts reasoning.
    pub open: &'static str,
    /// Marker that ends reasoning.
    pub close: &'static str,
    /// An answer starts with reasoning even if neither the prompt nor the answer contains `open`.
    pub implicit: bool,
    /// Markers before the content that are no part of it.
    pub answer_open: &'static [&'static str],
    /// Markers after that content, at the end of the answer.
    pub answer_close: &'static [&'static str],
}

/// What the splitter looks for in one answer.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Tool-call format; `None` leaves calls in the content.
    pub calls: Option<&'static Format>,
    /// Reasoning format; `None` leaves reasoning in the content.
    pub reasoning: Option<&'static Reasoning>,
    /// State in which the prompt leaves the model.
    pub opening: Opening,
    /// The answer uses GPT-OSS's channels.
    pub harmony: bool,
    /// Markers of GPT-OSS's channels that only a control token is, not its spelling in other tokens.
    pub token_markers: std::sync::Arc<[&'static str]>,
    /// A grammar holds the calls to their place, so text elsewhere that resembles one is none.
    pub held: bool,
    /// Functions that the model may call.
    pub functions: std::sync::Arc<[tools::Function]>,
}

impl Plan {
    /// Format of call ids in this answer.
    pub fn ids(&self) -> Ids {
        self.calls.map_or(Ids::Long, |format| format.ids)
    }

    /// Whether answers may have reasoning that is split off.
    pub fn has_reasoning(&self) -> bool {
        self.harmony || self.reasoning.is_some()
    }

    /// Tags of a call, if models leave out the marker before it.
    fn bare_tags(&self) -> Option<&'static Keyed> {
        match self.calls.map(|format| &format.body) {
            Some(Body::Keyed(tags)) if !tags.name_open.is_empty() && !self.held => Some(tags),
            _ => None,
        }
    }

    /// Looks up a function by name.
    pub fn function(&self, name: &str) -> Option<&tools::Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// Longest function name, in bytes; OpenAI allows 64.
pub const MAX_NAME_BYTES: usize = 128;

/// Whether `found` is the marker `marker`; white space around markers is no part of them.
fn is_marker(found: &str, marker: &str) -> bool {
    !marker.is_empty() && found == marker.trim_matches(skim::is_space)
}

/// Whether `c` can be part of a function's name.
fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}
