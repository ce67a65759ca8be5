//! Limits of a constraint. A request that exceeds one is refused or fails alone; other requests are
//! unaffected.

/// Longest JSON schema, in bytes.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Longest regular expression, in bytes.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;
/// Most entries in a list of choices. Each takes one of the [`MAX_ALTERNATIVES`].
pub const MAX_CHOICES: usize = 1900;
/// Longest grammar in Lark's notation, in bytes. Applies to every constraint.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;
/// Most nested objects, arrays and groups in a schema or grammar.
pub const MAX_DEPTH: usize = 64;
/// Most white space between two JSON tokens, in characters. Without a limit, a model that prefers white space
/// writes it until `max_tokens`.
pub const MAX_WHITESPACE: usize = 32;
/// Largest bound of a number in a schema: the library's integers have 63 bits.
pub const LARGEST_BOUND: f64 = 1e18;
/// Bound of a number that is nearest zero, zero apart. Each zero after the point is a state of the lexer.
pub const SMALLEST_BOUND: f64 = 1e-30;
/// Work limit for building a grammar's lexer, in the library's units: about 50,000 per millisecond.
pub const COMPILE_FUEL: u64 = 1_000_000;
/// Most symbols in a compiled grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 100_000;
/// Work limit of the lexer for one mask, in the library's units: about 14,000 per millisecond.
pub const MASK_FUEL: u64 = 200_000;
/// Most parser items for one mask: about 20,000 per millisecond.
pub const MASK_ITEMS: usize = 50_000;
/// Most optional properties at one place of a schema. Each takes four of the [`MAX_ALTERNATIVES`], so that no
/// schema that compiles exceeds those within an answer.
pub const MAX_OPTIONAL_PROPERTIES: usize = 450;
/// Most parser alternatives at one position.
pub const MAX_ALTERNATIVES: usize = 2000;
/// Most lexer states per answer. A state takes 1 to 2 kB, so an answer takes at most 32 MiB.
pub const MAX_LEXER_STATES: usize = 16 * 1024;
/// Total size of cached compiled grammars, in bytes as the library counts them.
pub const MAX_CACHE_BYTES: usize = 64 * 1024 * 1024;
