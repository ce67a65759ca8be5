//! Attention over the paged KV cache, for any mix of prefill and decode rows.
//!
//! A row attends to positions `0..=its own` through its sequence's block table, in chunks of [`CHUNK`] positions. In a
//! chunk each score is one chain of multiply-adds over the head's dimensions, the softmax is taken against the chunk's
//! highest score and summed with position `p` in lane `p % 16`, and each output value is one chain over the positions,
//! ascending. Chunks are then joined one after the other, ascending ([`state`]). None of that depends on the rows a row
//! came in with, on the block size or on who computes which chunk, so its bits do not either. ([`element`] says what a
//! chain is for each type of cached numbers.)
//!
//! With a window a row leaves out the positions before it; its chunks are cut at the same places. With a softcap the scores
//! of a chunk are capped before its softmax. A sink joins the sum of weights last, after all chunks.
//!
//! A [`plan`] cuts the rows into tiles, so that several queries share what is read, and the contexts of tiles that are long
//! into runs of chunks, so that all threads have work.

mod element;
mod plan;
mod state;
mod task;
mod tile;

use std::ops::Range;

use super::Cpu;
use super::kv_cache::{KvCache, KvType};
use super::shared::Shared;
use plan::{Plan, Shape};
use state::States;
use task::{PairTask, Room, Task};

/// Positions whose softmax is taken at once. Fixed: it is part of the arithmetic.
const CHUNK: usize = 256;

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
    /// Factor of the scores: `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A row sees its position and the `window - 1` before it; `None`: all before it.
    pub window: Option<u32>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// `[heads]`: a logit that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// Scratch of [`attend`]: kept between calls, grows to the largest.
#[derive(Default)]
pub struct Scratch {
    /// Without a window and with one: layers of both kinds alternate.
    plans: [Plan; 2],
    /// One for each thread.
    rooms: Vec<Room>,
    /// Results of chunks that several threads compute.
    states: Vec<f32>,
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
    for sequence in sequences {
        let context = sequence.position + sequence.rows.len();
        assert!(sequence.blocks.len() * shape.block_size >= context, "a block table covers its context");
    }
    assert!(a.window != Some(0), "a window holds at least the row's own position");
    assert!(a.sinks.is_none_or(|sinks| sinks.len() == a.heads), "a sink for each head");
    let longest = sequences.iter().map(|s| s.position + s.rows.len()).max().unwrap_or(0);
    let window = a.window.map(|window| window as usize).filter(|window| *window < longest);
    let state = States::stride(a.cache.layout());
    let Scratch { plans, rooms, states } = scratch;
    let threads = cpu.threads.count();
    let plan = &mut plans[usize::from(window.is_some())];
    let window = window.unwrap_or(usize::MAX);
    plan.make(Shape { threads, group, kv_heads: shape.kv_heads, window, state }, sequences);
    rooms.resize_with(threads, Room::default);
    if states.len() < plan.states() * state {
        states.resize(plan.states() * state, 0.0);
    }
    let (isa, out, rooms, states) = (cpu.isa, Shared::new(out), Shared::new(rooms), Shared::new(states));
    cpu.threads.run(plan.pieces().len(), |task, participant| {
        let piece = &plan.pieces()[task];
        // SAFETY: participants are distinct among concurrent calls.
        let room = unsafe { &mut rooms.part(participant, 1)[0] };
        // Unless this thread's part of the tasks ends here.
        let next = plan.pieces().get(task + 1);
        let task = Task { a, sequences, piece, next, plan, group, window, out: &out, states: &states, room };
        if shape.kind == KvType::Bf16 { isa.run(PairTask(task)) } else { isa.run(task) }
    });
}

#[cfg(test)]
mod tests;
