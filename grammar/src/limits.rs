//! The limits of a constraint. A request over one of them is refused, or fails alone; no other request pays.

/// Longest JSON schema, bytes.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Longest regular expression, bytes.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;
/// Most choices.
pub const MAX_CHOICES: usize = 4096;
/// Longest grammar in Lark's notation, and so of every constraint, bytes.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;
/// Most nested objects, arrays and groups in a schema or grammar.
pub const MAX_DEPTH: usize = 64;
/// Most white space between two JSON tokens, characters. Without a bound a model that prefers white space
/// writes it until `max_tokens`.
pub const MAX_WHITESPACE: usize = 32;
/// Work to build the lexer of a grammar, in the library's units: about 50,000 a millisecond.
pub const COMPILE_FUEL: u64 = 1_000_000;
/// Most symbols in a compiled grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 100_000;
/// Work of the lexer for one mask, in the library's units: about 14,000 a millisecond.
pub const MASK_FUEL: u64 = 200_000;
/// Items of the parser for one mask: about 20,000 a millisecond.
pub const MASK_ITEMS: usize = 50_000;
/// Alternatives of the parser at one position.
pub const MAX_ALTERNATIVES: usize = 2000;
/// States that one answer's lexer may have. A state takes 1 to 2 kB, so an answer takes 32 MiB at most.
pub const MAX_LEXER_STATES: usize = 16 * 1024;
/// Compiled grammars that are kept for reuse, bytes by the library's own count.
pub const MAX_CACHE_BYTES: usize = 64 * 1024 * 1024;
