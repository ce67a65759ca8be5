//! Runs one layer of a model over calibration text.

use std::collections::HashMap;
use std::ops::Range;

use skein_kernels::collective::Alone;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::attention::SequenceRows;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::kv_cache::{KvCache, KvShape, KvType};
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Layout, Packed};
use skein_model::LoadError;
use skein_model::on_cpu::adapter::AdapterRows;
use skein_model::on_cpu::caches::Caches;
use skein_model::on_cpu::capture::{Capture, Reader};
use skein_model::on_cpu::pack::{Matrix, pack};
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::on_cpu::{Activations, ForwardStep, Located, Model};
use skein_model::shard::Shard;
use skein_model::spec::Spec;
use skein_model::weight_source::WeightSource;
use skein_sys::threads::ThreadPlacement;

use super::original::{Original, Written};

/// Slots of a block of the cache.
const BLOCK: usize = 16;

/// What a layer needs besides its weights.
pub(super) struct Runner {
    pub cpu: Cpu,
    caches: Caches,
    activations: Activations,
    blocks: Vec<u32>,
}

impl Runner {
    /// For windows of up to `longest` tokens, on all threads of the machine.
    pub fn new(spec: &Spec, longest: usize) -> Result<Self, LoadError> {
        let blocks = longest.div_ceil(BLOCK).max(1);
        let shape = KvShape {
            layers: 1,
            kv_heads: spec.attention.kv_heads,
            head_dim: spec.attention.head_dim,
            block_size: BLOCK,
            blocks,
            kind: KvType::F32,
            latent: None,
        };
        let bytes = shape.bytes().unwrap_or(u64::MAX);
        let cache = KvCache::new(shape).map_err(|source| LoadError::KvCache { bytes, source })?;
        let cpu = Cpu::on(&ThreadPlacement::of_this_machine(0));
        let mut activations = Activations::default();
        activations.capture = Capture::on();
        Ok(Self { cpu, caches: cache.into(), activations, blocks: (0..blocks as u32).collect() })
    }

    /// The embeddings alone.
    pub fn embeddings(&mut self, source: &Original) -> Result<Model, LoadError> {
        let shard = Shard::of_embeddings(&source.spec);
        let weights = WeightSource::without_adapter(&source.weights);
        Model::load(&source.spec, shard, weights, false, |_| Ok(Vec::new()))
    }

    /// `layer` as stored.
    pub fn stored(&mut self, source: &Original, layer: usize) -> Result<Model, LoadError> {
        let (shard, weights) = (Shard::of_layers(&source.spec, layer..layer + 1), &source.weights);
        Model::load(&source.spec, shard, WeightSource::without_adapter(weights), false, |matrices| {
            let cache = PackedCache::none();
            pack(&mut self.cpu, matrices, None, weights, &cache, 0, &mut |_, _| {})
        })
    }

    /// `layer` with the stored matrices in `replaced`, by name, in place of its own.
    pub fn replaced(
        &mut self,
        source: &Original,
        layer: usize,
        replaced: &HashMap<String, Box<dyn Fn() -> Vec<f32> + '_>>,
    ) -> Result<Model, LoadError> {
        let (shard, weights) = (Shard::of_layers(&source.spec, layer..layer + 1), &source.weights);
        Model::load(&source.spec, shard, WeightSource::without_adapter(weights), false, |matrices| {
            let mut last: Option<(String, Vec<f32>)> = None; // parts of one stored matrix follow each other
            let pack = |matrix| self.pack(source, matrix, replaced, &mut last);
            matrices.iter().map(pack).collect()
        })
    }

    fn pack(
        &mut self,
        source: &Original,
        matrix: &Matrix,
        replaced: &HashMap<String, Box<dyn Fn() -> Vec<f32> + '_>>,
        last: &mut Option<(String, Vec<f32>)>,
    ) -> Result<Packed, LoadError> {
        let Matrix { tensor, leaves, .. } = matrix;
        let written = source.written(tensor);
        let found = written.as_ref().and_then(|written| Some((written, replaced.get(&written.name)?)));
        let weights = match found {
            None => tensor.find_stored(&source.weights)?,
            Some((Written { name, first_row, .. }, values)) => {
                if last.as_ref().is_none_or(|(of, _)| of != name) {
                    *last = Some((name.clone(), values()));
                }
                let values = last.as_ref().map_or(&[][..], |(_, values)| values);
                matrix_of(&values[first_row * tensor.cols..][..tensor.len()], tensor.cols)
            }
        };
        let format = *Format::keeping(weights.storage()).last().unwrap_or(&Format::F32);
        let layout = Layout { leaves: *leaves, ..Layout::new(format, tensor.rows, tensor.cols) };
        Packed::in_layout(&mut self.cpu, &tensor.in_order(weights), layout)
            .map_err(|source| LoadError::UnpackedTensor { tensor: tensor.name.clone(), source })
    }

    /// Embeds `tokens` and returns the rows.
    pub fn embed(&mut self, model: &Model, tokens: &[u32]) -> Result<&[f32], LoadError> {
        self.forward(model, tokens)?;
        Ok(self.activations.residual(model.spec(), tokens.len()))
    }

    /// Runs `model` on the rows of a window, in place.
    pub fn run(&mut self, model: &Model, rows: &mut [f32]) -> Result<(), LoadError> {
        let count = rows.len() / model.spec().hidden_size;
        self.activations.residual(model.spec(), count).copy_from_slice(rows);
        self.forward(model, &vec![0; count])?;
        rows.copy_from_slice(self.activations.residual(model.spec(), count));
        Ok(())
    }

    fn forward(&mut self, model: &Model, tokens: &[u32]) -> Result<(), LoadError> {
        let rows = tokens.len();
        let positions: Vec<u32> = (0..rows as u32).collect();
        let all =
            |rows: Range<usize>| SequenceRows { end: rows.end, rows, position: 0, blocks: &self.blocks };
        let sequences = [all(0..rows)];
        let none = AdapterRows::default();
        let step = ForwardStep {
            adapters: [&none; 2],
            tokens,
            positions: &positions,
            token_types: &[],
            located: Located {
                slots: &positions, // the blocks lie in order
                sequences: &sequences,
                wanted_sequences: &sequences,
            },
            located_in_windows: None,
            states: &[],
            wanted: &positions,
        };
        let Self { cpu, caches, activations, .. } = self;
        activations.capture.clear();
        Ok(model.forward(cpu, &step, caches, activations, &mut Alone)?)
    }

    /// Inputs of the products of the last window, by reader and with their width, and the threads to compute
    /// with them.
    pub fn inputs(&mut self) -> (&mut Cpu, impl Iterator<Item = (Reader, &[f32], usize)>) {
        (&mut self.cpu, self.activations.capture.inputs())
    }
}

/// `values` as a matrix of the kernels.
fn matrix_of(values: &[f32], cols: usize) -> WeightMatrix {
    let mut bytes = vec![0; size_of_val(values)];
    bytes.as_chunks_mut::<4>().0.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
    WeightMatrix::new(Storage::F32(bytes.into()), values.len() / cols, cols)
}

/// Adds `a * bᵀ` to `sum` `[rows of a, rows of b]`; both have `cols` columns.
pub(super) fn add_product(cpu: &mut Cpu, a: &[f32], b: &[f32], cols: usize, sum: &mut [f32]) {
    let mut input = Input::default();
    input.set(cpu, Encoding::F32, a, cols);
    let packed = Packed::of(cpu, &matrix_of(b, cols), Format::F32);
    let packed = packed.unwrap_or_else(|_| unreachable!("single precision holds any number"));
    matmul(cpu, &input, &[Linear { weights: &packed, bias: None }], sum, Write::Add);
}
