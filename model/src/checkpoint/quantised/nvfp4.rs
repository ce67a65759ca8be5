//! NVFP4 of NVIDIA's ModelOpt: 4-bit floats (E2M1) in groups of 16 inputs, whose scales are FP8 numbers, all
//! multiplied by a number for the matrix. compressed-tensors divides by such a number: [`super::compressed`].
//!
//! ```text
//! weight          u8 [N, K / 2], the low half of a byte first
//! weight_scale    e4m3 [N, K / 16]
//! weight_scale_2  f32 [] or [1]
//! ```
//!
//! Activations are not rounded, so their scales (`input_scale`) are ignored.

use safetensors::tensor::Dtype;

use super::matrix::{Grid, Scales, StoredCodes, float};
use super::module::Module;
use super::scheme::Fp8;
use super::{fp8, mxfp4};
use crate::LoadError;

/// Inputs per group.
pub(super) const GROUP: usize = 16;

pub(super) fn find(module: &Module<'_>) -> Result<Option<StoredCodes>, LoadError> {
    // Inputs that must be multiplied before the product.
    if let Some(scale) = module.find("pre_quant_scale") {
        return Err(module.bad(&scale.name, "scales of inputs (NVFP4_AWQ) are not supported".into()));
    }
    let Some(packed) = module.find("weight").filter(|raw| raw.dtype == Dtype::U8) else {
        return fp8::find(module, &Fp8 { block: None });
    };
    let scale = mxfp4::scales_of_floats(module, &packed, GROUP, Dtype::F8_E4M3)?;
    let by = of_matrix(module, "weight_scale_2")?;
    Ok(Some(mxfp4::codes(module, &packed, GROUP, Scales::Multiplied(Grid::by_output(&scale, 1), by))))
}

/// The positive number in tensor `suffix`, which scales the whole matrix.
pub(super) fn of_matrix(module: &Module<'_>, suffix: &str) -> Result<f32, LoadError> {
    let raw = module.find(suffix).ok_or_else(|| module.missing(suffix, "F32 [1]".into()))?;
    if raw.dtype != Dtype::F32 || !matches!(raw.shape[..], [] | [1]) {
        return Err(module.wrong(&raw, "F32 [] or [1]".into()));
    }
    let by = float(&raw.bytes, Dtype::F32, 0);
    if by.is_finite() && by > 0.0 {
        return Ok(by);
    }
    Err(module.bad(&raw.name, format!("it is {by}, expected a positive number")))
}
