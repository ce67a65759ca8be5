//! One pass over rows of a layer with matrices: queries, keys, values and gates; the recurrence; outputs.

use std::marker::PhantomData;

use super::super::aligned::Aligned;
use super::super::disjoint::DisjointMut;
use super::super::{Cpu, VALUES_PER_TASK, for_each_run};
use super::cache::StateCache;
use super::convolve::{Convolution, Keys, Values};
use super::gates::GateRows;
use super::layer::Layer;
use super::output::Gated;
use super::plan::{Run, Stretch, runs};
use super::recur::{Outputs, Recur};
use super::rows::{BatchRows, KeptRows, RawRows};
use super::rule::{Gates, Rule};
use super::shape::{StateShape, TILE};
use super::stateful_rows::StatefulRows;

/// Buffers of a pass. Heads come first, because a task of the recurrence reads the rows of one head.
#[derive(Default)]
pub(super) struct Buffers {
    stretches: Vec<Stretch>,
    runs: Vec<Run>,
    /// `[key_heads, rows, key_width]` of the rule: queries and keys.
    keys: Aligned<f32>,
    /// `[value_heads, rows, columns]`
    values: Aligned<f32>,
    /// `[value_heads, rows]`
    gates: Vec<Gates>,
    /// The channels of a head before the first position.
    zeros: Vec<f32>,
    /// A tile for each thread.
    spare: Aligned<f32>,
}

/// Rows of one layer, with at most one piece of each sequence.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) layer: &'a Layer<'a>,
    /// `[rows, width]`
    pub(super) projected: &'a [f32],
    pub(super) pieces: &'a [StatefulRows],
}

impl Pass<'_> {
    /// Computes the outputs of the pass's rows and moves the slots on.
    pub(super) fn run<R: Rule>(
        &self,
        cpu: &mut Cpu,
        cache: &mut StateCache,
        out: &mut [f32],
        buffers: &mut Buffers,
    ) {
        let rows = self.begin::<R>(cpu, cache, buffers);
        self.prepare::<R>(cpu, cache, rows, buffers);
        self.recur::<R>(cpu, cache, rows, out, buffers);
        self.finish(cpu, cache, out, buffers);
        for stretch in &buffers.stretches {
            cache.set_mark(stretch.part, stretch.mark());
        }
    }

    fn shape(&self) -> &StateShape {
        &self.layer.shape
    }

    fn batch(&self) -> BatchRows<'_> {
        BatchRows::new(*self.shape(), self.projected)
    }

    /// Joins pieces to slots and makes room. Returns the number of rows, pending ones included.
    fn begin<R: Rule>(&self, cpu: &Cpu, cache: &StateCache, buffers: &mut Buffers) -> usize {
        let shape = self.shape();
        let rows = cache.stretches(self.layer.index, self.pieces, &mut buffers.stretches);
        runs(&buffers.stretches, &mut buffers.runs);
        buffers.keys.grow(shape.key_heads * rows * R::key_width(shape.key_dim));
        buffers.values.grow(shape.value_heads * rows * shape.columns());
        buffers.spare.grow(cpu.threads.count() * shape.tile_len());
        grow(&mut buffers.gates, shape.value_heads * rows);
        grow(&mut buffers.zeros, shape.key_dim.max(shape.value_dim));
        rows
    }

    /// Fills keys, values and gates. A unit of work is a run of rows of one head, or the gates of a run.
    fn prepare<R: Rule>(&self, cpu: &mut Cpu, cache: &StateCache, pass_rows: usize, buffers: &mut Buffers) {
        let (layer, shape, isa) = (self.layer, *self.shape(), cpu.isa);
        let Buffers { stretches, runs, keys, values, gates, zeros, .. } = buffers;
        let [windows, pending] = cache.rows();
        let raw = &RawRows { batch: self.batch(), windows, pending, zeros };
        let (keys, values) = (DisjointMut::new(keys), DisjointMut::new(values));
        let gates = &DisjointMut::new(gates);
        let units = shape.key_heads + shape.value_heads + 1;
        let values_per_unit = pass_rows * shape.channels() / (runs.len() * units).max(1);
        let per_task = (VALUES_PER_TASK / values_per_unit.max(1)).max(1);
        for_each_run(cpu, runs.len() * units, per_task, |index, _| {
            let (run, unit) = (&runs[index / units], index % units);
            let (stretch, rows, rule) = (&stretches[run.stretch], run.rows.clone(), PhantomData::<R>);
            let (first, count) = (stretch.first + rows.start, rows.len());
            let Some(unit) = unit.checked_sub(1) else {
                return isa.run(GateRows { layer, raw, stretch, rows, pass_rows, out: gates, rule });
            };
            let convolution = Convolution { raw, stretch, rows, weights: layer.convolution };
            let Some(head) = unit.checked_sub(shape.key_heads) else {
                let width = R::key_width(shape.key_dim);
                // SAFETY: each row of each head is in one unit.
                let out = unsafe { keys.part((unit * pass_rows + first) * width, count * width) };
                return isa.run(Keys { layer, convolution, key_head: unit, out, rule });
            };
            let width = shape.columns();
            // SAFETY: as above.
            let out = unsafe { values.part((head * pass_rows + first) * width, count * width) };
            isa.run(Values { convolution, head, out });
        });
    }

    /// Moves the matrices on and writes what queries read to `out`. A task is a tile of a head of a stretch.
    fn recur<R: Rule>(
        &self,
        cpu: &mut Cpu,
        cache: &mut StateCache,
        pass_rows: usize,
        out: &mut [f32],
        buffers: &mut Buffers,
    ) {
        let (layer, shape, isa) = (self.layer, *self.shape(), cpu.isa);
        let Buffers { stretches, keys, values, gates, spare, .. } = buffers;
        let (out, spare) = (DisjointMut::new(out), DisjointMut::new(spare));
        let matrices = cache.matrices();
        let (tiles, tile_len, columns) = (shape.tiles(), shape.tile_len(), shape.columns());
        let per_stretch = shape.value_heads * tiles;
        let key_width = R::key_width(shape.key_dim);
        cpu.threads.run(stretches.len() * per_stretch, |task, participant| {
            let (stretch, tile_of_all) = (&stretches[task / per_stretch], task % per_stretch);
            let (head, tile) = (tile_of_all / tiles, tile_of_all % tiles);
            let (first, rows) = (stretch.first, stretch.len());
            let key_rows = (head / shape.group() * pass_rows + first) * key_width;
            let value_rows = (head * pass_rows + first) * columns;
            // SAFETY: slots differ, and each of their tiles is in one task. Participants are distinct among
            // concurrent calls.
            let (state, spare) = unsafe {
                (
                    matrices.range(stretch.part, tile_of_all * tile_len, tile_len),
                    spare.part(participant * tile_len, tile_len),
                )
            };
            isa.run(Recur {
                key_dim: shape.key_dim,
                keys: &keys[key_rows..][..rows * key_width],
                values: &values[value_rows..][..rows * columns][tile * TILE..],
                columns,
                gates: &gates[head * pass_rows + first..][..rows],
                state,
                is_new: stretch.position == 0,
                spare,
                kept: stretch.kept(),
                replayed: stretch.replayed,
                skip: layer.skip.get(head).copied().unwrap_or(0.0),
                out: Outputs {
                    all: &out,
                    start: stretch.rows.start * shape.values() + head * shape.value_dim + tile * TILE,
                    stride: shape.values(),
                    columns: TILE.min(shape.value_dim - tile * TILE),
                },
                rule: PhantomData::<R>,
            });
        });
    }

    /// Normalises and gates the outputs, and keeps raw rows for later.
    fn finish(&self, cpu: &mut Cpu, cache: &mut StateCache, out: &mut [f32], buffers: &mut Buffers) {
        let (layer, shape, isa, batch) = (self.layer, *self.shape(), cpu.isa, self.batch());
        let Buffers { stretches, runs, .. } = buffers;
        let [windows, pending] = cache.rows_mut();
        let kept = KeptRows { batch, windows, pending };
        let out = DisjointMut::new(out);
        let rows: usize = stretches.iter().map(Stretch::len).sum();
        let values_per_run = rows * shape.values() / runs.len().max(1);
        let per_task = (VALUES_PER_TASK / values_per_run.max(1)).max(1);
        for_each_run(cpu, runs.len(), per_task, |index, _| {
            let run = &runs[index];
            let stretch = &stretches[run.stretch];
            for row in run.rows.clone().filter_map(|row| stretch.in_batch(row)) {
                // SAFETY: each row is in one run.
                let out = unsafe { out.part(row * shape.values(), shape.values()) };
                let gate = &batch.row(row)[shape.output_gates()];
                isa.run(Gated { normal: layer.output, gate, out });
            }
            if run.rows.end == stretch.len() {
                // SAFETY: slots differ, and one run of each is the last one.
                unsafe { kept.keep(stretch) };
            }
        });
    }
}

/// Makes room for at least `len` values.
pub(super) fn grow<T: Clone + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::default());
    }
}
