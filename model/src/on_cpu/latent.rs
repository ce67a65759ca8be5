//! Latent attention: queries in terms of the cached latent, and outputs from what they attended to.
//!
//! A head's score `q (K c)` is computed as `(q K) c`, so the cache holds the latent `c` instead of every
//! head's key, and its output is `V (w c)` instead of `w (V c)`. Both products run for all heads together;
//! each row's result depends on that row alone.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::input::Input;
use skein_kernels::cpu::kv_cache::KvCache;
use skein_kernels::cpu::latent::{HeadsAt, queries_of_latent, rotate_parts};
use skein_kernels::cpu::matmul::{Linear, Write, grouped_matmul, matmul};
use skein_kernels::cpu::norm::{rms_norm_heads, rms_norm_part_into};
use skein_kernels::cpu::rows::Rows;

use super::layers::{Latent, Projection};
use super::model::Model;
use crate::spec::{LatentSpec, Spec};

/// Activations of latent attention.
#[derive(Default)]
pub(super) struct LatentValues {
    /// `[rows, heads, plain | rotated]`: queries as projected.
    projected: Aligned<f32>,
    /// Inputs and outputs of the heads' products, `[heads, rows, ...]`.
    input: Input,
    by_head: Aligned<f32>,
    /// `[rows, heads, rank + rotated]`: queries of the cached keys.
    pub queries: Aligned<f32>,
}

/// Projections of a step's rows, as [`LatentSpec::input_width`] says, and how to go on with them.
pub(super) struct LatentInput<'a> {
    pub of: &'a LatentSpec,
    pub weights: &'a Latent,
    pub projected: &'a mut [f32],
    /// Cosines, `[rows, rotated / 2]`.
    pub cos: &'a [f32],
    /// Sines, as `cos`.
    pub sin: &'a [f32],
}

/// What the heads attended to.
pub(super) struct Attended<'a> {
    pub of: &'a LatentSpec,
    pub weights: &'a Latent,
    /// `[rows, heads, rank]`
    pub values: &'a [f32],
}

impl LatentValues {
    /// Values per row: `projected`, `by_head`, `queries`.
    pub fn widths(spec: &Spec) -> [usize; 3] {
        let heads = spec.attention.heads;
        let of = |latent: LatentSpec| {
            let by_head = latent.rank.max(latent.value_dim);
            [heads * latent.query_dim(), heads * by_head, spec.attention.q_width()]
        };
        spec.attention.latent.map_or([0; 3], of)
    }

    pub fn grow(&mut self, spec: &Spec, rows: usize) {
        let [projected, by_head, queries] = Self::widths(spec);
        self.projected.grow(rows * projected);
        self.by_head.grow(rows * by_head);
        self.queries.grow(rows * queries);
    }

    /// Number of allocated values.
    pub fn len(&self) -> usize {
        self.projected.len() + self.by_head.len() + self.queries.len()
    }

    /// Normalises the latents, rotates the rest of the keys, and writes both to the cache.
    pub fn keys(
        &mut self,
        cpu: &mut Cpu,
        cache: &mut KvCache,
        layer: usize,
        slots: &[u32],
        input: LatentInput<'_>,
    ) {
        let LatentInput { of, weights, projected, cos, sin } = input;
        if slots.is_empty() {
            return;
        }
        let stride = projected.len() / slots.len();
        rms_norm_heads(cpu, projected, stride, 0..1, &weights.norm, of.eps);
        let key = HeadsAt { rows: slots.len(), heads: 1, dim: of.rank + of.rotated, first: of.rank };
        rotate_parts(cpu, projected, key, stride, cos, sin);
        cache.write(cpu, layer, projected, stride, 0, slots);
    }

    /// Computes the queries, rotates them, and multiplies the rest by the heads' key matrices.
    pub fn queries(&mut self, model: &Model, cpu: &mut Cpu, from: LatentInput<'_>, input: &mut Input) {
        let LatentInput { of, weights, projected, cos, sin } = from;
        let (rows, heads, dim) = (cos.len() / (of.rotated / 2), weights.keys.len(), of.query_dim());
        if rows == 0 {
            return;
        }
        let (stride, first) = (projected.len() / rows, of.rank + of.rotated);
        let queries = &mut self.projected[..rows * heads * dim];
        if let Some((norm, up)) = &weights.query {
            let stack = [up.linear()];
            let encoding = model.encoding(&stack, input);
            let projected = Rows { values: projected, stride };
            rms_norm_part_into(cpu, projected, first, norm, of.eps, encoding, input);
            matmul(cpu, input, &stack, queries, Write::Set);
        } else {
            for (from, to) in projected.chunks_exact(stride).zip(queries.chunks_exact_mut(heads * dim)) {
                to.copy_from_slice(&from[first..]);
            }
        }
        let heads_at = HeadsAt { rows, heads, dim, first: of.plain };
        rotate_parts(cpu, queries, heads_at, heads * dim, cos, sin);
        let by_head = &mut self.by_head[..rows * heads * of.rank];
        let values = Rows { values: &*queries, stride: dim };
        multiply_by_head(model, cpu, &weights.keys, values, of.plain, &mut self.input, by_head);
        let to = &mut self.queries[..rows * heads * (of.rank + of.rotated)];
        queries_of_latent(cpu, by_head, queries, heads_at, to);
    }

    /// Multiplies what the heads attended to by their value matrices, and sets `input` to the input of the
    /// output projection `o`.
    pub fn outputs(
        &mut self,
        model: &Model,
        cpu: &mut Cpu,
        from: Attended<'_>,
        o: Linear<'_>,
        input: &mut Input,
    ) {
        let Attended { of, weights, values: attended } = from;
        let (heads, dim) = (weights.values.len(), of.value_dim);
        let rows = attended.len() / (heads * of.rank);
        let by_head = &mut self.by_head[..rows * heads * dim];
        let values = Rows { values: attended, stride: of.rank };
        multiply_by_head(model, cpu, &weights.values, values, of.rank, &mut self.input, by_head);
        let encoding = model.encoding(&[o], input);
        input.fill(cpu, encoding, rows, heads * dim, |row, to| {
            for (head, to) in to.chunks_exact_mut(dim).enumerate() {
                to.copy_from_slice(&by_head[(head * rows + row) * dim..][..dim]);
            }
        });
    }
}

/// Multiplies the first `width` values of each head of each row by the head's matrix. `values` is a row for
/// each head, `[rows, heads, stride]`, and `to` becomes `[heads, rows, outputs]`.
fn multiply_by_head(
    model: &Model,
    cpu: &mut Cpu,
    matrices: &[Projection],
    values: Rows<'_>,
    width: usize,
    input: &mut Input,
    to: &mut [f32],
) {
    let Rows { values, stride: dim } = values;
    let (heads, rows) = (matrices.len(), values.len() / (matrices.len() * dim).max(1));
    if rows == 0 {
        return;
    }
    let linears: Vec<Linear<'_>> = matrices.iter().map(Projection::linear).collect();
    let encoding = model.encoding(&linears, input);
    input.fill(cpu, encoding, heads * rows, width, |i, to| {
        let (head, row) = (i / rows, i % rows);
        to.copy_from_slice(&values[(row * heads + head) * dim..][..width]);
    });
    let rows_of = |head: usize| head * rows..(head + 1) * rows;
    let members = linears.into_iter().enumerate().map(|(head, linear)| (rows_of(head), linear));
    grouped_matmul(cpu, input, &members.collect::<Vec<_>>(), to);
}
