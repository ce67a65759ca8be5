//! Checkpoints quantised by other libraries: their `quantization_config` and their matrices of codes.
//!
//! The files decide which matrices are quantised, not lists of names: a matrix of 16- or 32-bit numbers is
//! used as it is. One file per format interprets the tensors of a module.

mod awq;
mod bitsandbytes;
mod compressed;
mod described;
mod device;
mod fp8;
mod gptq;
mod kv_scales;
mod matrix;
mod mxfp4;
mod nvfp4;
mod patterns;
mod scheme;

pub use described::Described;
pub use kv_scales::KvScales;
pub(in crate::model) use kv_scales::kv_scales;
pub use matrix::{CodedMatrix, CodedRows};
pub use scheme::Scheme;

use safetensors::tensor::Dtype;
use skein_sys::mapped::Bytes;

use super::SafetensorsFiles;
use super::SafetensorsFiles as Weights;
use crate::model::LoadError;
use matrix::StoredCodes;
pub(in crate::model) use matrix::float;

/// A tensor as stored in its file.
pub(in crate::model) struct Raw {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// Tensors of one module, named `base.suffix`.
struct Module<'a> {
    weights: &'a Weights,
    base: &'a str,
    /// Outputs and inputs according to the configuration.
    rows: usize,
    cols: usize,
}

impl Module<'_> {
    fn find(&self, suffix: &str) -> Option<Raw> {
        self.weights.raw(&format!("{}.{suffix}", self.base))
    }

    /// Tensor `suffix` with this shape and one of these types.
    fn get(&self, suffix: &str, dtypes: &[Dtype], shape: &[usize]) -> Result<Raw, LoadError> {
        let raw = self.find(suffix).ok_or_else(|| self.missing(suffix, format!("{dtypes:?} {shape:?}")))?;
        let fits = dtypes.contains(&raw.dtype) && raw.shape == shape;
        if fits { Ok(raw) } else { Err(self.wrong(&raw, format!("{dtypes:?} {shape:?}"))) }
    }

    fn missing(&self, suffix: &str, expected: String) -> LoadError {
        let (tensor, dir) = (format!("{}.{suffix}", self.base), self.weights.dir().to_owned());
        LoadError::MissingTensor { tensor, expected, dir }
    }

    fn wrong(&self, raw: &Raw, expected: String) -> LoadError {
        self.bad(&raw.name, format!("it is {:?} {:?}, expected {expected}", raw.dtype, raw.shape))
    }

    /// Error about one of the module's tensors.
    fn bad(&self, tensor: &str, reason: String) -> LoadError {
        LoadError::CodedTensor { tensor: tensor.to_owned(), reason }
    }
}

/// Finds the quantised matrix `name` `[rows, cols]`, which ends in `.weight`; `None` if the module is not in
/// the scheme's form.
///
/// # Errors
/// If one of its tensors is missing, or has the wrong type or shape or an unsupported form.
pub(super) fn find(
    weights: &Weights,
    scheme: &Scheme,
    name: &str,
    (rows, cols): (usize, usize),
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

/// Number types of scales.
const FLOATS: [Dtype; 3] = [Dtype::F16, Dtype::BF16, Dtype::F32];
