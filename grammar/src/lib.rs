//! Constrained decoding. A JSON schema, a regular expression, a list of choices or a grammar becomes one
//! [`Source`]. Compiled, it yields after each token the set of tokens allowed next ([`Mask`]).
//!
//! Pure: token bytes in, masks out. No clock, no requests, no model. A router compiles to validate and a
//! worker to run, with the same code. What a matcher allows is a function of the grammar's text and the
//! answer's tokens, so any worker with the same [fingerprint](Grammars::fingerprint) can continue any answer.

mod cache;
mod ebnf;
mod ecma;
mod error;
mod form;
mod formats;
mod grammars;
mod lark;
mod library;
pub mod limits;
mod mask;
mod multiples;
mod numbers;
mod schema;
mod source;
mod structural_tag;
pub mod token_bytes;
mod words;

pub use error::{Refused, Stuck};
pub use form::JsonForm;
pub use grammars::{Grammars, MAX_TOKENIZER_BYTES, tokenizer_fingerprint};
pub use library::{Compiled, Library, Matcher, Next, VERSION};
pub use mask::Mask;
pub use source::Source;
