//! Attention over the paged KV cache, for any mix of prefill and decode rows.
//!
//! A row attends to positions `0..=its own` through its sequence's block table. Each score is one chain of fused
//! multiply-adds over the head's dimensions, the softmax is summed with position `p` in lane `p % 16`, and each output
//! value is one chain over the positions, ascending. None of that depends on the chunk a row came in, on its
//! neighbours or on the block size, so its bits do not either.

mod task;

use std::ops::Range;

use super::Cpu;
use super::kv_cache::KvCache;
use super::shared::Shared;
use task::{Task, Tile};

/// Queries (rows times query heads of one KV head) a task takes at most, unless a single row has more.
const QUERIES_PER_TASK: usize = 16;
/// Bytes of scores a task keeps: they stay in the second-level cache.
const SCORE_BYTES: usize = 1 << 20;

/// Some consecutive rows of one sequence.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first; the others follow.
    pub position: usize,
    /// The sequence's block table.
    pub blocks: &'a [u32],
}

/// What attention needs besides the rows.
pub struct Attention<'a> {
    /// Where keys and values lie, those of this step included.
    pub cache: &'a KvCache,
    /// Which layer.
    pub layer: usize,
    /// `[rows, stride]`; the query heads start each row.
    pub q: &'a [f32],
    /// Values of a row of `q`.
    pub stride: usize,
    /// Query heads; a multiple of the KV heads.
    pub heads: usize,
    /// Factor of the scores: `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Scratch of [`attend`]: kept between calls.
#[derive(Default)]
pub struct Scratch {
    scores: Vec<Vec<f32>>,
}

/// Attends with all `sequences`; `out` is `[rows, heads * head_dim]`.
///
/// # Panics
/// If the shapes disagree or a block table is too short.
pub fn attend(
    cpu: &mut Cpu,
    a: &Attention<'_>,
    sequences: &[Rows<'_>],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = a.cache.shape();
    let group = a.heads / shape.kv_heads;
    let width = a.heads * shape.head_dim;
    let rows = a.q.len() / a.stride;
    assert!(group * shape.kv_heads == a.heads && width <= a.stride, "query heads share KV heads evenly");
    assert!(a.q.len() == rows * a.stride && out.len() == rows * width, "q and out have the same rows");
    scratch.scores.resize_with(cpu.threads.count(), Vec::new);
    let tiles: Vec<Rows<'_>> = sequences.iter().flat_map(|sequence| split(sequence, group)).collect();
    let (isa, out, scores) = (cpu.isa, Shared::new(out), Shared::new(&mut scratch.scores));
    cpu.threads.run(tiles.len() * shape.kv_heads, |task, participant| {
        let (rows, kv_head) = (&tiles[task / shape.kv_heads], task % shape.kv_heads);
        // SAFETY: participants are distinct among concurrent calls.
        let scores = unsafe { &mut scores.part(participant, 1)[0] };
        isa.run(Task { tile: Tile { a, rows, kv_head, group, out: &out }, scores });
    });
}

/// Cuts a sequence's rows into tiles that share reads of keys and values.
fn split<'a>(sequence: &Rows<'a>, group: usize) -> impl Iterator<Item = Rows<'a>> + use<'a> {
    let context = sequence.position + sequence.rows.len();
    let queries = (SCORE_BYTES / (4 * context)).clamp(1, QUERIES_PER_TASK);
    let (step, sequence) = ((queries / group).max(1), sequence.clone());
    sequence.rows.clone().step_by(step).map(move |start| Rows {
        rows: start..sequence.rows.end.min(start + step),
        position: sequence.position + (start - sequence.rows.start),
        blocks: sequence.blocks,
    })
}

#[cfg(test)]
mod tests;
