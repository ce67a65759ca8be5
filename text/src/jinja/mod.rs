//! What minijinja lacks to render as Jinja2 does in transformers: its source is read ([`lex`]) and rewritten
//! ([`rewrite`]), its names are checked at start ([`names`]), and values, filters, tests ([`predicates`]) and
//! methods behave as Python's. This room knows no messages and no files.

mod arguments;
mod characters;
mod filters;
mod formatted;
mod html;
mod json;
mod lex;
pub mod limits;
mod methods;
mod names;
mod number;
mod operators;
mod predicates;
mod printed;
mod rewrite;
mod sorted;
mod turns;

pub use filters::install;
pub use formatted::{check_formatted, plain};
pub use methods::call as call_method;
pub use names::check as check_names;
pub use printed::{Printed, printed};
pub use rewrite::rewrite;
