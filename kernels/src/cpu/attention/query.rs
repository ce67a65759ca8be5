//! What a call of attention is given.

use std::ops::Range;

use super::super::kv_cache::KvCache;

/// Positions per softmax. Changing it changes results, because it is part of the order of arithmetic.
pub(super) const CHUNK: usize = 256;

/// Consecutive rows of one sequence.
#[derive(Debug, Clone)]
pub struct SequenceRows<'a> {
    /// The sequence's rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first row; the others follow it.
    pub position: usize,
    /// Number of the sequence's positions whose keys and values are cached, those of this step included.
    pub end: usize,
    /// The sequence's block table.
    pub blocks: &'a [u32],
}

/// The inputs of attention besides the rows.
pub struct Attention<'a> {
    /// Keys and values, including those of this step.
    pub cache: &'a KvCache,
    /// Layer of the cache to read.
    pub layer: usize,
    /// `[rows, stride]`; a row starts with its query heads.
    pub q: &'a [f32],
    /// Values from one row of `q` to the next.
    pub stride: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Query heads of the first KV head that are on another rank and absent from `q`. The last KV head's
    /// group may also be incomplete.
    pub skipped: usize,
    /// Factor of the scores: `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A row sees its own position and the `window - 1` before it; `None`: all before it.
    pub window: Option<u32>,
    /// Whether windows do not slide: a row sees the positions from the last multiple of the window on.
    pub is_chunked: bool,
    /// A row sees so many positions after its own, too, as far as its sequence has them: 0 in decoders.
    pub ahead: u32,
    /// If set, scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// `[heads]`: a logit that takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Query heads of a KV head, numbered as in `q`.
    pub(super) fn heads_of(&self, kv_head: usize) -> Range<usize> {
        let first = (kv_head * self.group).saturating_sub(self.skipped);
        first..((kv_head + 1) * self.group - self.skipped).min(self.heads)
    }
}

/// End of the positions that the row at `position` sees, in a sequence of `end` positions.
pub(super) fn seen_to(position: usize, ahead: usize, end: usize) -> usize {
    end.min((position + 1).saturating_add(ahead))
}

/// First position that the row at `position` sees.
pub(super) fn seen_from(position: usize, window: usize, is_chunked: bool) -> usize {
    if is_chunked { position / window * window } else { (position + 1).saturating_sub(window) }
}
