//! Attention over the paged KV cache, for any mix of prefill and decode rows.
//!
//! A row attends to positions `0..=its own` through its sequence's block table, in chunks of
//! [`CHUNK`](query::CHUNK) positions. Within a chunk, each score is one chain of multiply-adds over the
//! head's dimensions, the softmax is relative to the chunk's highest score and summed with position `p` in
//! lane `p % 16`, and each output value is one chain over ascending positions. The chunks are then joined one
//! by one, ascending ([`state`]). Nothing in this order depends on the other rows of the batch, the block
//! size or the assignment of chunks to threads, so neither do the bits of the result. ([`element`] defines
//! the chain for each type of cached numbers.)
//!
//! In a bidirectional model a row also sees positions after its own, up to its sequence's end or its
//! window's; the step has all rows of the sequence then. A sliding window excludes the positions before it;
//! chunk boundaries stay where they are. A softcap is applied to a chunk's scores before its softmax. A sink
//! is added to the sum of weights after all chunks.
//!
//! In a latent cache (DeepSeek-AI 2024) a value is the start of its key and is read from there. Lane `i` of
//! sixteen then is one chain over the positions `p` with `p % 16 == i`, and the lanes are added in ascending
//! order.
//!
//! A [`plan`] divides the rows into tiles, so that several queries share each read, and divides the chunks of
//! long contexts into runs, so that all threads have work.

mod element;
mod plan;
mod query;
mod state;
mod task;
mod tile;

use super::Cpu;
use super::disjoint::DisjointMut;
use super::kv_cache::KvType;
use plan::{Plan, PlanShape};
pub use query::{Attention, SequenceRows};
use state::States;
use task::{PairTask, Task, ThreadScratch};

/// Buffers of [`attend`], reused between calls. They grow to the largest size seen.
#[derive(Default)]
pub struct Scratch {
    /// Plans without and with a window: models alternate layers of both kinds.
    plans: [Plan; 2],
    /// Buffers of each thread.
    threads: Vec<ThreadScratch>,
    /// Partial results of tiles that several threads compute.
    states: Vec<f32>,
}

/// Computes attention for all `sequences`; `out` is `[rows, heads * value_dim]`.
///
/// # Panics
/// If the shapes disagree or a block table is too short.
pub fn attend(
    cpu: &mut Cpu,
    a: &Attention<'_>,
    sequences: &[SequenceRows<'_>],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = a.cache.shape();
    let group = a.group;
    let width = a.heads * shape.value_dim();
    let rows = a.q.len() / a.stride;
    let end = a.skipped + a.heads;
    let is_covered = a.skipped < group && end.div_ceil(group.max(1)) == shape.kv_heads;
    assert!(
        is_covered && a.heads * shape.head_dim <= a.stride,
        "every KV head has query heads, and every query head a KV head"
    );
    assert!(a.q.len() == rows * a.stride && out.len() == rows * width, "q and out have the same rows");
    for sequence in sequences {
        let end = sequence.position + sequence.rows.len();
        assert!(sequence.end >= end, "a sequence's rows are among its positions");
        assert!(sequence.blocks.len() * shape.block_size >= sequence.end, "a block table covers its context");
    }
    assert!(a.window != Some(0), "a window holds at least the row's own position");
    assert!(a.sinks.is_none_or(|sinks| sinks.len() == a.heads), "a sink for each head");
    let longest = sequences.iter().map(|s| s.end).max().unwrap_or(0);
    let window = a.window.map(|window| window as usize).filter(|window| *window < longest);
    let state = States::stride(a.cache.layout());
    let Scratch { plans, threads: buffers, states } = scratch;
    let threads = cpu.threads.count();
    let plan = &mut plans[usize::from(window.is_some())];
    let window = window.unwrap_or(usize::MAX);
    let (kv_heads, is_chunked, ahead) = (shape.kv_heads, a.is_chunked, a.ahead as usize);
    plan.make(PlanShape { threads, group, kv_heads, window, is_chunked, ahead, state }, sequences);
    buffers.resize_with(threads, ThreadScratch::default);
    if states.len() < plan.states() * state {
        states.resize(plan.states() * state, 0.0);
    }
    let (isa, out, buffers, states) =
        (cpu.isa, DisjointMut::new(out), DisjointMut::new(buffers), DisjointMut::new(states));
    cpu.threads.run(plan.pieces().len(), |task, participant| {
        let piece = &plan.pieces()[task];
        // SAFETY: participants are distinct among concurrent calls.
        let scratch = unsafe { &mut buffers.part(participant, 1)[0] };
        // Only a guess: another thread's part of the tasks may begin here.
        let next = plan.pieces().get(task + 1);
        let heads = a.heads_of(piece.kv_head);
        let task =
            Task { a, sequences, piece, next, plan, heads, window, out: &out, states: &states, scratch };
        if shape.kind == KvType::Bf16 { isa.run(PairTask(task)) } else { isa.run(task) }
    });
}

#[cfg(test)]
mod tests;
