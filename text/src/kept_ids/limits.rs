//! Limits of the kept ids.

/// Most bytes of texts and ids kept for one model. A token takes about nine, so these are seven million
/// tokens: a hundred conversations of 60,000 tokens that share nothing.
pub const MOST_BYTES: usize = 64 * 1024 * 1024;
/// Number of locks; each guards an equal part of the bytes.
pub const SHARDS: usize = 16;
/// Shortest text that is looked up. Tokenizing a shorter one takes microseconds.
pub const SHORTEST_TEXT: usize = 1024;
/// A part ends at the first cut after so many bytes. Shorter parts cost more look-ups; of longer ones more is
/// tokenized again when a text grows.
pub const PART_BYTES: usize = 2048;
/// Shortest part that is kept: a shorter one costs more memory than time.
pub const SHORTEST_KEPT: usize = 256;
/// Longest part that is kept; a text without cuts is one part.
pub const LONGEST_KEPT: usize = 256 * 1024;
/// Bytes that a kept part takes beside its text and ids: an entry of the table, two allocations, their
/// counts.
pub const ENTRY_BYTES: usize = 192;
/// Most work to find the added tokens at which a text may be cut, in pairs of bytes of one token. A tokenizer
/// with more has no such cuts.
pub const MOST_TOKEN_PAIRS: usize = 4 * 1024 * 1024;
