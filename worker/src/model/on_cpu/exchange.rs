//! What ranks exchange during a step: embeddings, partial sums of products, and logits. Everything is
//! gathered from all ranks and then chosen or added in one order, so all ranks have the bits of a single one.

use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::join::join_ranks;
use skein_kernels::cpu::matmul::Write;

use crate::shard::Shard;

/// Buffers of exchanges; empty on a single rank.
#[derive(Default)]
pub(super) struct Shared {
    own: Aligned<f32>,
    /// What all ranks gave, in the order of ranks.
    all: Aligned<f32>,
}

impl Shared {
    /// Gathers `len` values that `compute` writes.
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

    /// Rows of the embedding table, each from the rank that has it: `compute` writes this rank's, and
    /// anything for the others.
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

    /// A product that ranks share by its inputs: `compute` writes the sum over this rank's leaves. The ranks'
    /// sums are joined as a tree; then comes the bias, then `y`.
    pub(super) fn sum(
        &mut self,
        cpu: &mut Cpu,
        ranks: &mut dyn Ranks,
        bias: Option<&[f32]>,
        (y, width, write): (&mut [f32], usize, Write),
        compute: impl FnOnce(&mut Cpu, &mut [f32]),
    ) -> Result<(), Lost> {
        let count = ranks.count();
        let sums = self.gather(ranks, y.len(), |own| compute(cpu, own))?;
        join_ranks(cpu, sums, count, bias, width, y, write);
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
        // All ranks give equally many values; those with fewer rows of the vocabulary leave the end unused.
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
