//! How model families write reasoning and tool calls. A family is a value ([`Format`], [`Reasoning`]). From
//! it
//! come the grammar that holds an answer to it ([`grammar`]) and the splitter that takes an answer apart
//! ([`splitter`]), so that the two agree on every boundary.
//!
//! Pure: text in, pieces out. No request, no transport, no tokens beyond the ids of control tokens.

mod detect;
mod envelope;
pub mod grammar;
mod harmony;
mod keyed;
mod named;
mod pythonic;
mod scan;
mod skim;
pub mod splitter;
mod table;
#[cfg(test)]
mod tests;
pub mod tools;

pub use detect::{Formats, Opening, UnknownParser};
pub use splitter::{Piece, Splitter};

/// How a family writes calls.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// The names that vLLM's `--tool-call-parser` has for it.
    pub names: &'static [&'static str],
    /// Written before the first call; a model may leave it out.
    pub section_begin: &'static str,
    /// Begins a call. Empty: a call has no marker and can only be the whole answer.
    pub begin: &'static str,
    /// What lies between the markers.
    pub body: Body,
    /// Ends a call, in this order; a model may leave them out.
    pub ends: &'static [&'static str],
    /// Written after the last call.
    pub section_end: &'static str,
    /// Written between two calls.
    pub between: &'static str,
    /// The form of call ids.
    pub ids: Ids,
}

/// What a call consists of.
#[derive(Debug, PartialEq)]
pub enum Body {
    /// A JSON object with `name` and the arguments under this key, between line breaks or not.
    Envelope {
        /// `arguments` or `parameters`.
        arguments: &'static str,
        /// Written before and after the object.
        pad: &'static str,
    },
    /// A JSON list of such objects: all calls of the answer.
    List,
    /// The name in plain text, then a JSON object.
    Named {
        /// Before the name.
        before: &'static str,
        /// Before the arguments.
        after: &'static str,
        /// The name is followed by `:` and the call's number.
        numbered: bool,
    },
    /// The name and each argument between tags.
    Keyed(Keyed),
    /// A Python list of calls with keyword arguments: all calls of the answer.
    Pythonic,
    /// The channels of GPT-OSS; reasoning is one of them.
    Harmony,
}

/// Tags of a call whose arguments are text, typed by the function's schema.
#[derive(Debug, PartialEq)]
pub struct Keyed {
    /// Before the function's name.
    pub name_open: &'static str,
    /// After the function's name; if empty, the name ends where a name can go no further.
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
}

/// The form of call ids, which some templates check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ids {
    /// `call_` and 24 hexadecimal digits.
    #[default]
    Long,
    /// Nine letters and digits.
    Nine,
    /// `functions.NAME:NUMBER`.
    Kimi,
}

impl Ids {
    /// The id of a call: a function of the stream and the call's place in it, so that it survives a move.
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

/// How a family writes reasoning.
#[derive(Debug, PartialEq)]
pub struct Reasoning {
    /// The names that vLLM's `--reasoning-parser` has for it.
    pub names: &'static [&'static str],
    /// Begins it.
    pub open: &'static str,
    /// Ends it.
    pub close: &'static str,
    /// An answer begins with reasoning even if neither prompt nor answer has `open`.
    pub implicit: bool,
}

/// What a splitter looks for in one answer.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The format of calls; `None` = calls stay content.
    pub calls: Option<&'static Format>,
    /// The format of reasoning; `None` = it stays content.
    pub reasoning: Option<&'static Reasoning>,
    /// Where the prompt leaves the model.
    pub opening: Opening,
    /// The answer is in GPT-OSS's channels.
    pub harmony: bool,
    /// What may be called.
    pub functions: std::sync::Arc<[tools::Function]>,
}

impl Plan {
    /// The form of call ids.
    pub fn ids(&self) -> Ids {
        self.calls.map_or(Ids::Long, |format| format.ids)
    }

    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<&tools::Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// Longest name of a function, bytes; OpenAI allows 64.
pub const MAX_NAME_BYTES: usize = 128;

/// Whether `c` can be part of a function's name.
fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}
