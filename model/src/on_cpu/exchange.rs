//! Data that ranks exchange during a step: embeddings, partial sums of products, and logits. Everything is
//! gathered from all ranks and then selected or added in a fixed order, so all ranks get the same bits as a
//! single rank.

use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::experts::Choices;
use skein_kernels::cpu::join::join_ranks;
use skein_kernels::cpu::matmul::Write;
use skein_kernels::cpu::rows::RowsMut;
use skein_kernels::leaves;

use crate::shard::Shard;

/// Attention heads, as divided among ranks.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub shard: &'a Shard,
    /// Values per head.
    pub dim: usize,
    /// KV heads of the whole model.
    pub kv_heads: usize,
}

/// Exchange buffers; empty on a single rank.
#[derive(Default)]
pub(super) struct Shared {
    own: Aligned<f32>,
    /// Gathered data, in rank order.
    all: Aligned<f32>,
}

/// The other ranks, and the buffers of what is exchanged with them.
pub(super) struct Exchange<'a> {
    pub shared: &'a mut Shared,
    pub ranks: &'a mut dyn Ranks,
}

impl Shared {
    /// Gathers `len` values that `compute` writes on each rank.
    fn gather(
        &mut self,
        ranks: &mut dyn Ranks,
        len: usize,
        compute: impl FnOnce(&mut [f32]),
    ) -> Result<&mut [f32], Lost> {
        let count = ranks.count();
        self.own.grow(len);
        self.all.grow(count * len);
        compute(&mut self.own[..len]);
        let all = &mut self.all[..count * len];
        ranks.gather_values(&self.own[..len], all)?;
        Ok(all)
    }

    /// Embedding rows, each from the rank that has it: `compute` writes this rank's rows and arbitrary values
    /// for the others.
    pub(super) fn embeddings(
        &mut self,
        ranks: &mut dyn Ranks,
        shard: &Shard,
        tokens: &[u32],
        x: &mut [f32],
        compute: impl FnOnce(&mut [f32]),
    ) -> Result<(), Lost> {
        let (len, width) = (x.len(), x.len() / tokens.len().max(1));
        let all = self.gather(ranks, len, compute)?;
        for (row, (token, to)) in tokens.iter().zip(x.chunks_exact_mut(width.max(1))).enumerate() {
            to.copy_from_slice(&all[shard.owner(*token as usize) * len + row * width..][..width]);
        }
        Ok(())
    }

    /// A product divided among ranks by its inputs: `compute` writes the sum over this rank's leaves. The
    /// ranks' sums are added as a tree, then the bias, then `y`.
    pub(super) fn sum(
        &mut self,
        cpu: &mut Cpu,
        ranks: &mut dyn Ranks,
        bias: Option<&[f32]>,
        y: RowsMut<'_>,
        write: Write,
        compute: impl FnOnce(&mut Cpu, &mut [f32]),
    ) -> Result<(), Lost> {
        let (count, RowsMut { values: y, stride: width }) = (ranks.count(), y);
        let sums = self.gather(ranks, y.len(), |own| compute(cpu, own))?;
        join_ranks(cpu, sums, count, bias, width, y, write);
        Ok(())
    }

    /// Outputs of experts, `[pairs, width]`, each from the rank that has the expert according to `owners`.
    /// All ranks make the same choice, so they know how many pairs each one contributes.
    pub(super) fn expert_outputs(
        &mut self,
        ranks: &mut dyn Ranks,
        owners: &[usize],
        choices: &Choices,
        outputs: &mut [f32],
        width: usize,
    ) -> Result<(), Lost> {
        let (own, mut counts) = (ranks.rank(), [0; leaves::MAX_LEAVES]);
        choices.chosen().for_each(|(expert, pairs)| counts[owners[expert]] += pairs.len());
        let most = counts.into_iter().max().unwrap_or_default() * width;
        let all = self.gather(ranks, most, |mine| {
            let mut at = 0;
            for (_, pairs) in choices.chosen().filter(|(expert, _)| owners[*expert] == own) {
                let from = &outputs[pairs.start * width..pairs.end * width];
                mine[at..at + from.len()].copy_from_slice(from);
                at += from.len();
            }
        })?;
        let mut at = [0; leaves::MAX_LEAVES];
        for (expert, pairs) in choices.chosen() {
            let (owner, to) = (owners[expert], &mut outputs[pairs.start * width..pairs.end * width]);
            to.copy_from_slice(&all[owner * most + at[owner]..][..to.len()]);
            at[owner] += to.len();
        }
        Ok(())
    }

    /// Queries and keys of all heads, for a norm over whole rows. `normalise` gets `[rows, q | k]` of the
    /// whole model, and this rank's part of the result replaces that of `qkv`, `[rows, q | k | v]` of its own
    /// heads.
    pub(super) fn whole_rows(
        &mut self,
        ranks: &mut dyn Ranks,
        heads: &Heads<'_>,
        qkv: &mut [f32],
        rows: &mut Aligned<f32>,
        normalise: impl FnOnce(&mut [f32]),
    ) -> Result<(), Lost> {
        let Heads { shard, dim, kv_heads } = *heads;
        let count = shard.ranks;
        let of = |rank: usize| shard.heads_of(rank, kv_heads * shard.group);
        let width = |rank: usize| of(rank).iter().map(|heads| heads.len() * dim).sum::<usize>();
        let widest = (0..count).map(width).max().unwrap_or_default();
        let (own, stride) = (width(shard.rank), width(shard.rank) + shard.kv_heads.len() * dim);
        let all = self.gather(ranks, qkv.len() / stride * widest, |mine| {
            for (from, to) in qkv.chunks_exact(stride).zip(mine.chunks_exact_mut(widest)) {
                to[..own].copy_from_slice(&from[..own]);
            }
        })?;
        // Queries are `group` times as wide as the keys that follow them.
        let (q_width, whole) = (kv_heads * shard.group * dim, kv_heads * (shard.group + 1) * dim);
        let count_rows = qkv.len() / stride;
        rows.grow(count_rows * whole);
        let rows = &mut rows[..count_rows * whole];
        for (rank, from) in all.chunks_exact(count_rows * widest).enumerate() {
            let [queries, keys] = of(rank);
            for (from, to) in from.chunks_exact(widest).zip(rows.chunks_exact_mut(whole)) {
                let (from, rest) = from.split_at(queries.len() * dim);
                to[queries.start * dim..queries.end * dim].copy_from_slice(from);
                let to = &mut to[q_width + keys.start * dim..q_width + keys.end * dim];
                to.copy_from_slice(&rest[..to.len()]);
            }
        }
        normalise(rows);
        let [queries, keys] = of(shard.rank);
        for (from, to) in rows.chunks_exact(whole).zip(qkv.chunks_exact_mut(stride)) {
            let (to_queries, to) = to.split_at_mut(queries.len() * dim);
            to_queries.copy_from_slice(&from[queries.start * dim..queries.end * dim]);
            to[..keys.len() * dim]
                .copy_from_slice(&from[q_width + keys.start * dim..q_width + keys.end * dim]);
        }
        Ok(())
    }

    /// Logits `[rows, vocab]` of all ranks' parts of the vocabulary; `compute` writes `[rows, own part]`.
    pub(super) fn logits(
        &mut self,
        ranks: &mut dyn Ranks,
        shard: &Shard,
        logits: &mut [f32],
        compute: impl FnOnce(&mut [f32]),
    ) -> Result<(), Lost> {
        let vocab = shard.vocabulary_of(shard.ranks - 1).end;
        // All ranks contribute equally many values; ranks with a smaller part of the vocabulary leave the end
        // unused.
        let (rows, widest) = (logits.len() / vocab, shard.widest_vocabulary());
        let own = rows * shard.vocabulary.len();
        let all = self.gather(ranks, rows * widest, |values| compute(&mut values[..own]))?;
        for (rank, from) in all.chunks_exact(rows * widest).enumerate() {
            let columns = shard.vocabulary_of(rank);
            for (row, to) in logits.chunks_exact_mut(vocab).enumerate() {
                to[columns.clone()].copy_from_slice(&from[row * columns.len()..][..columns.len()]);
            }
        }
        Ok(())
    }
}
