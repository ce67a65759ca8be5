//! What minijinja lacks to render as Jinja2 does in transformers: its source is read ([`lex`]) and rewritten
//! ([`rewrite`]), its names are checked at start ([`names`]), and values, filters, tests ([`predicates`]) and
//! methods behave as Python's. This room knows no messages and no files.

mod arguments;
mod bounded_filters;
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

pub use names::check as check_names;
pub use rewrite::rewrite;

/// Replaces and adds filters, functions, tests and methods of `env`.
pub fn install(env: &mut minijinja::Environment<'_>) {
    bounded_filters::install(env);
    filters::install(env);
}
