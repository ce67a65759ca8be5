//! A low-rank adapter (LoRA, arXiv 2106.09685) in PEFT's directory format. It is merged into the weights at
//! load, `W + scale * B * A`, computed in `f32` and rounded to the weights' type; or kept beside them.

use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;
use skein_kernels::cpu::low_rank::{LowRank, LowRankShape};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_proto::adapter::AdapterId;
use xxhash_rust::xxh3::Xxh3Default;

use super::LoadError;
use super::adapter_config::AdapterConfig;
use super::adapter_modules::{Modules, PREFIX};
use super::checkpoint::SafetensorsFiles as Weights;
use super::checkpoint::quantised::{Raw, float};
use super::fields::{Fields, read_json, read_object};
use super::tensors::{Kind, Place, Tensor};
use crate::shard::Part;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// Largest supported rank of an adapter.
const MAX_RANK: usize = 1 << 14;
/// Highest rank of an adapter that is served beside the model.
pub const MAX_SERVED_RANK: usize = skein_kernels::cpu::low_rank::MAX_RANK;
/// An adapter's mapped tensors and configuration.
pub struct Adapter {
    dir: PathBuf,
    tensors: Weights,
    modules: Modules,
    config: AdapterConfig,
}

/// Matrices among `tensors` that adapters may name: those of products, and the head unless it is tied,
/// because changing that would also change the embedding.
pub fn changeable(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().filter(|tensor| matches!(tensor.kind, Kind::Matrix(..))).collect()
}

/// Change to one matrix: `scale * b * a`.
pub struct Delta {
    /// The matrix A, `[rank, inputs]`.
    a: Raw,
    /// The matrix B, `[outputs, rank]`.
    b: Raw,
    scale: f32,
    /// Row of `b` that holds the matrix's first output.
    first_row: usize,
    /// Which rows of `b` from that on are its outputs.
    place: Place,
}

impl Adapter {
    /// Reads the configuration and maps the tensors of the adapter in `dir`.
    ///
    /// # Errors
    /// If it is not an adapter, or uses features that cannot be merged.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let object = read_object(&dir.join(CONFIG))?;
        let fields = Fields { file: CONFIG, object: &object };
        let config = AdapterConfig::read(&fields)?;
        let tensors = Weights::open_file(dir, TENSORS)?;
        let modules = Modules::of(tensors.names());
        Ok(Self { dir: dir.to_owned(), tensors, modules, config })
    }

    /// Hash of the adapter's content, by samples like a model's.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn fingerprint(&self) -> Result<u64, LoadError> {
        let mut hash = Xxh3Default::new();
        hash.update(&read_json(&self.dir.join(CONFIG))?);
        self.tensors.sample(&mut |bytes| hash.update(bytes));
        self.tensors.stamp(&mut |bytes| hash.update(bytes));
        Ok(hash.digest())
    }

    /// Hash of everything in its two files.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn id(&self) -> Result<AdapterId, LoadError> {
        let mut hash = Xxh3Default::new();
        for file in [CONFIG, TENSORS] {
            let path = self.dir.join(file);
            let failed = |source| LoadError::Read { path: path.clone(), source };
            let mut from = skein_sys::regular_file::open(&path).map_err(failed)?;
            hash.update(&from.metadata().map_err(failed)?.len().to_le_bytes());
            let mut part = vec![0; 1 << 20];
            loop {
                let count = std::io::Read::read(&mut from, &mut part).map_err(failed)?;
                if count == 0 {
                    break;
                }
                hash.update(&part[..count]);
            }
        }
        Ok(AdapterId(hash.digest().max(1)))
    }

    /// Refuses matrix `name` because of `reason`.
    pub(super) fn refused(&self, name: &str, reason: &str) -> LoadError {
        let reason = format!("the adapter in {} {reason}", self.dir.display());
        LoadError::CodedTensor { tensor: name.to_owned(), reason }
    }

    /// Change to `tensor`, if the adapter has one.
    ///
    /// # Errors
    /// If one of the two matrices is missing or has the wrong shape.
    pub fn delta(&self, tensor: &Tensor) -> Result<Option<Delta>, LoadError> {
        for stored in &tensor.stored {
            let Some(module) = stored.name.strip_suffix(".weight") else { continue };
            let Some(own) = self.modules.pairs.get(module) else { continue };
            let [a, b] = ["lora_A", "lora_B"].map(|kind| {
                let name = format!("{PREFIX}{own}.{kind}.weight");
                self.tensors.raw(&name).ok_or_else(|| LoadError::MissingTensor {
                    tensor: name,
                    expected: "the second matrix of the pair".into(),
                    dir: self.dir.clone(),
                })
            });
            let (a, b) = (a?, b?);
            let rank = a.shape.first().copied().unwrap_or_default();
            check(&a, &[rank, tensor.cols], rank)?;
            check(&b, &[stored.shape.first().copied().unwrap_or_default(), rank], rank)?;
            let scale = self.config.scale(own, rank);
            return Ok(Some(Delta { a, b, scale, first_row: stored.first_row, place: stored.place }));
        }
        Ok(None)
    }

    /// Refuses an adapter for modules that are not among `tensors`, the model's matrices.
    ///
    /// # Errors
    /// Names the first such tensor.
    pub fn check_is_used(&self, tensors: &[&Tensor]) -> Result<(), LoadError> {
        let modules: std::collections::HashSet<&str> = tensors
            .iter()
            .flat_map(|tensor| tensor.stored.iter().filter_map(|it| it.name.strip_suffix(".weight")))
            .collect();
        let foreign = self.modules.pairs.iter().find(|(module, _)| !modules.contains(module.as_str()));
        let foreign = foreign.map(|(_, own)| format!("{PREFIX}{own}.lora_A.weight"));
        match self.modules.unknown.clone().or(foreign) {
            None if self.modules.pairs.is_empty() => Err(self.refused(TENSORS, "changes nothing that text passes")),
            None => Ok(()),
            Some(name) => Err(self.refused(
                &name,
                "changes a module that this model's layers do not have; is the adapter for a different model?",
            )),
        }
    }

    /// Modules of which the file has the model's own weights, and those.
    pub(super) fn copies(&self) -> impl Iterator<Item = (&str, Raw)> {
        let copies = self.modules.copies.iter();
        copies.filter_map(|(module, name)| Some((module.as_str(), self.tensors.raw(name)?)))
    }
}

fn check(raw: &Raw, shape: &[usize], rank: usize) -> Result<(), LoadError> {
    let is_float = matches!(raw.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32);
    if raw.shape == shape && is_float && (1..=MAX_RANK).contains(&rank) {
        return Ok(());
    }
    Err(LoadError::CodedTensor {
        tensor: raw.name.clone(),
        reason: format!(
            "it is {:?} {:?}, expected F16, BF16 or F32 {shape:?} with a rank of 1 to {MAX_RANK}",
            raw.dtype, raw.shape
        ),
    })
}

impl Delta {
    /// Number of components.
    pub fn rank(&self) -> usize {
        self.a.shape[0]
    }

    /// Factor of the product of the two matrices.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// A weight of the matrix A.
    pub(super) fn a(&self, component: usize, input: usize) -> f32 {
        float(&self.a.bytes, self.a.dtype, component * self.a.shape[1] + input)
    }

    /// A weight of the matrix B, for an output of `tensor` in the device's order.
    pub(super) fn b(&self, tensor: &Tensor, output: usize, component: usize) -> f32 {
        let row = self.first_row + self.place.row(tensor.stored_row(output));
        float(&self.b.bytes, self.b.dtype, row * self.rank() + component)
    }

    /// The change to `part` of `tensor`, arranged for products beside the model's.
    ///
    /// # Panics
    /// If it has more components than products support.
    pub(super) fn low_rank(&self, tensor: &Tensor, part: &Part) -> LowRank {
        let shape = LowRankShape { rank: self.rank(), inputs: part.cols.len(), outputs: part.rows.len() };
        let is_bf16 = self.a.dtype == Dtype::BF16 && self.b.dtype == Dtype::BF16;
        let a = |component, input| self.a(component, part.cols.start + input);
        let b = |output, component| self.b(tensor, part.rows.start + output, component);
        LowRank::new(shape, part.leaves, self.scale, is_bf16, a, b)
    }

    /// `weights` with the change applied: rows `rows_from..` and columns `cols_from..` of the whole tensor,
    /// as stored.
    pub fn merged(&self, weights: &WeightMatrix, rows_from: usize, cols_from: usize) -> WeightMatrix {
        self.merged_rows(weights, &|row| rows_from + row, cols_from)
    }

    /// As [`merged`](Self::merged); `stored_row` gives the row of the whole tensor of each row of `weights`.
    pub(super) fn merged_rows(
        &self,
        weights: &WeightMatrix,
        stored_row: &(impl Fn(usize) -> usize + Sync),
        cols_from: usize,
    ) -> WeightMatrix {
        let (rows, cols) = (weights.rows(), weights.cols());
        let (rank, inputs) = (self.a.shape[0], self.a.shape[1]);
        let value_bytes = weights.storage().bytes_of(1);
        let mut bytes = vec![0; rows * cols * value_bytes];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows_each = rows.div_ceil(threads).max(1);
        let a: Vec<f32> = (0..rank * cols)
            .map(|i| float(&self.a.bytes, self.a.dtype, i / cols * inputs + cols_from + i % cols))
            .collect();
        std::thread::scope(|scope| {
            for (part, to) in bytes.chunks_mut((rows_each * cols * value_bytes).max(1)).enumerate() {
                let a = &a;
                scope.spawn(move || {
                    let mut row_values = vec![0.0; cols];
                    for (i, to) in to.chunks_mut(cols * value_bytes).enumerate() {
                        let row = part * rows_each + i;
                        let output = self.first_row + self.place.row(stored_row(row));
                        self.row(weights, row, output, a, &mut row_values);
                        store(weights.storage(), &row_values, to);
                    }
                });
            }
        });
        let storage = match weights.storage() {
            Storage::Bf16(_) => Storage::Bf16(bytes.into()),
            Storage::F16(_) => Storage::F16(bytes.into()),
            Storage::F32(_) => Storage::F32(bytes.into()),
            Storage::Blocks(..) => unreachable!("blocks with a change are refused"),
        };
        WeightMatrix::new(storage, rows, cols)
    }

    /// Computes row `row` of the changed matrix, which is output `output` of `b`.
    fn row(&self, weights: &WeightMatrix, row: usize, output: usize, a: &[f32], to: &mut [f32]) {
        let (rank, cols) = (self.a.shape[0], to.len());
        let mut change = vec![0f32; cols];
        for (component, a) in a.chunks_exact(cols).enumerate() {
            let b = float(&self.b.bytes, self.b.dtype, output * rank + component);
            change.iter_mut().zip(a).for_each(|(change, a)| *change += b * a);
        }
        weights.widen_row(row, to);
        to.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change * self.scale);
    }
}

/// Writes `values` in the type of `storage`.
fn store(storage: &Storage, values: &[f32], to: &mut [u8]) {
    for (value, to) in values.iter().zip(to.chunks_exact_mut(storage.bytes_of(1))) {
        match storage {
            Storage::Bf16(_) => to.copy_from_slice(&half::bf16::from_f32(*value).to_le_bytes()),
            Storage::F16(_) => to.copy_from_slice(&half::f16::from_f32(*value).to_le_bytes()),
            Storage::F32(_) => to.copy_from_slice(&value.to_le_bytes()),
            Storage::Blocks(..) => unreachable!("blocks with a change are refused"),
        }
    }
}
