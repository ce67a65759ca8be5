//! Checkpoints quantised by other libraries: their `quantization_config` and their matrices of codes.
//!
//! The files decide which matrices are quantised, not lists of names: a matrix of 16- or 32-bit numbers is
//! used as it is. One file per format interprets the tensors of a module.

mod auto_round;
mod awq;
mod bitsandbytes;
mod compressed;
mod description;
mod device;
mod fp8;
mod gptq;
mod kv_scales;
mod matrix;
mod module;
mod mxfp4;
mod nvfp4;
mod patterns;
mod raw;
mod scheme;

pub use description::Described;
pub use kv_scales::KvScales;
pub(crate) use kv_scales::kv_scales;
pub use matrix::{CodedMatrix, CodedRows};
pub use scheme::Scheme;

use super::SafetensorsFiles as Weights;
use crate::LoadError;
use matrix::StoredCodes;
pub(crate) use matrix::float;
use module::Module;
pub(crate) use raw::Raw;

/// Finds the quantised matrix `name` `[rows, cols]`, which ends in `.weight`; `None` if the module is not in
/// the scheme's form.
///
/// # Errors
/// If one of its tensors is missing, or has the wrong type or shape or an unsupported form.
pub(super) fn find(
    weights: &Weights,
    scheme: &Scheme,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<Option<CodedMatrix>, LoadError> {
    // GPT-OSS names the experts' tensors without an end.
    let base = if *scheme == Scheme::Mxfp4 { Some(name) } else { name.strip_suffix(".weight") };
    let Some(base) = base else { return Ok(None) };
    let module = Module { weights, base, rows, cols };
    let codes: Option<StoredCodes> = match scheme {
        Scheme::Gptq(gptq) => gptq::find(&module, gptq)?,
        Scheme::Awq(awq) => awq::find(&module, awq)?,
        Scheme::Compressed(compressed) => compressed::find(&module, compressed)?,
        Scheme::Fp8(fp8) => fp8::find(&module, fp8)?,
        Scheme::BitsAndBytes => bitsandbytes::find(&module)?,
        Scheme::Mxfp4 => mxfp4::find(&module)?,
        Scheme::Nvfp4 => nvfp4::find(&module)?,
        Scheme::Gguf(_) => unreachable!("a directory with weights in its scheme was refused"),
    };
    Ok(codes.map(|codes| CodedMatrix::whole(codes, name)))
}
