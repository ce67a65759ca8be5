//! Constraints on answers: a JSON schema, a regular expression, a list of choices or a grammar becomes one
//! [`Source`]; compiled, it says after each token which tokens may come next ([`Mask`]).
//!
//! Pure: token bytes in, masks out. No clock, no request, no model. A router compiles to refuse, a worker to
//! run, both with the same code. Whatever a matcher allows is a function of the grammar's text and of the
//! answer's tokens, so that any worker with the same [fingerprint](Grammars::fingerprint) can continue any
//! answer.

mod cache;
mod ebnf;
mod error;
mod grammars;
mod lark;
mod library;
pub mod limits;
mod mask;
mod schema;
mod source;
mod structural_tag;
pub mod token_bytes;

pub use error::{Refused, Stuck};
pub use grammars::Grammars;
pub use library::{Compiled, Library, Matcher, Next, VERSION};
pub use mask::Mask;
pub use source::Source;
