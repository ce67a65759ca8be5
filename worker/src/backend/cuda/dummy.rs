//! Random weights generated on the device (`--load-format dummy`). Speed does not depend on their values, and
//! generating 16 GB takes milliseconds.

use std::path::Path;

use serde_json::Value;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{LinearWeight, WeightValues};
use skein_kernels::cuda::ops::random::FillNormal;
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use skein_model::LoadError;
use skein_model::fields::read_object;
use skein_model::on_cuda::weights::{DeviceWeights, NormWeights};
use skein_node::random::SplitMix64;

use super::dummy_packed::{CODE_DEVIATION, PackedFill};
use super::upload::Dtype;

/// Standard deviation, as in freshly initialised models.
const DEVIATION: f32 = 0.02;

/// The type in config.json; bfloat16 if that is single precision, as for a checkpoint.
pub(super) fn dtype(dir: &Path) -> Result<Dtype, LoadError> {
    let config = read_object(&dir.join("config.json"))?;
    let named = config.get("dtype").or_else(|| config.get("torch_dtype")).and_then(Value::as_str);
    Ok(if named == Some("float16") { Dtype::F16 } else { Dtype::Bf16 })
}

/// Queues kernels that fill all weights: matrices normally distributed or of uniform codes, vectors 1, biases
/// 0. `table`: values of the codes that are looked up.
pub(super) fn fill<T: Activation>(
    weights: &DeviceWeights<T>,
    is_tied: bool,
    table: Option<[f32; 16]>,
    kernels: &Kernels,
    stream: &Stream,
) -> Result<(), CudaError> {
    let mut dummy = Dummy {
        values: FillNormal::new(kernels)?,
        codes: FillNormal::new(kernels)?,
        packed: PackedFill::new(kernels, stream, table)?,
        stream,
        seed: 0,
    };
    dummy.matrix(&weights.embedding)?;
    if !is_tied {
        dummy.matrix(&weights.head)?;
    }
    dummy.vector(weights.norm)?;
    for layer in &weights.layers {
        layer.products().iter().try_for_each(|matrix| dummy.matrix(matrix))?;
        layer.vectors().try_for_each(|vector| dummy.vector(vector))?;
        let Some(experts) = &layer.experts else { continue };
        experts.matrices().try_for_each(|matrix| dummy.matrix(matrix))?;
        let (router, bias) = experts.router();
        dummy.seed += 1;
        FillNormal::new(kernels)?.launch(stream, router, dummy.seed, DEVIATION)?;
        dummy.constant(bias, 0.0)?;
    }
    Ok(())
}

struct Dummy<'a, T> {
    values: FillNormal<T>,
    codes: FillNormal<E4m3>,
    packed: PackedFill<'a>,
    stream: &'a Stream,
    /// Incremented for each matrix.
    seed: u64,
}

impl<T: Activation> Dummy<'_, T> {
    fn values(&mut self, to: DeviceSlice<T>) -> Result<(), CudaError> {
        self.seed += 1;
        self.values.launch(self.stream, to, self.seed, DEVIATION)
    }

    fn matrix(&mut self, weight: &LinearWeight<T>) -> Result<(), CudaError> {
        match weight.values {
            WeightValues::Same(values) => self.values(values)?,
            WeightValues::Packed(values) => {
                self.seed += 1;
                // The parts' seeds are 64 random bits, so that none is another matrix's.
                self.packed.fill(weight, values, DEVIATION, &mut SplitMix64::new(self.seed))?;
            }
            WeightValues::E4m3 { values, scales, .. } => {
                self.seed += 1;
                self.codes.launch(self.stream, values, self.seed, CODE_DEVIATION)?;
                self.constant(scales, DEVIATION / CODE_DEVIATION)?;
            }
        }
        if !weight.bias.is_empty() {
            weight.bias.fill_bytes(self.stream, 0)?;
        }
        Ok(())
    }

    fn vector(&self, to: NormWeights) -> Result<(), CudaError> {
        self.constant(to.weight, 1.0)?;
        self.constant(to.bias, 0.0)
    }

    fn constant(&self, to: DeviceSlice<f32>, value: f32) -> Result<(), CudaError> {
        // Other stages have it, or the model lacks it.
        if to.is_empty() { Ok(()) } else { to.write(self.stream, &vec![value; to.len()]) }
    }
}
