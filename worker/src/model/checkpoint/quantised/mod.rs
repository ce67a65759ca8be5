//! Checkpoints that others have quantised: their `quantization_config`, and their matrices as codes.
//!
//! Which matrices are quantised is read from the files, not from lists of names: a matrix that is stored as
//! numbers of 16 or 32 bits is used as such. What a module's tensors mean is in one file a format.

mod awq;
mod bitsandbytes;
mod compressed;
mod fp8;
mod gptq;
mod matrix;
mod scheme;

pub use matrix::{CodedMatrix, CodedRows};
pub use scheme::{Scheme, refused};

use safetensors::tensor::Dtype;
use skein_sys::mapped::Bytes;

use super::SafetensorsFiles as Weights;
use crate::model::LoadError;
use matrix::StoredCodes;
pub(in crate::model) use matrix::float;

/// A tensor as it is in its file.
pub(in crate::model) struct Raw {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// The tensors of one module, `base.suffix`.
struct Module<'a> {
    weights: &'a Weights,
    base: &'a str,
    /// Outputs and inputs that the configuration says.
    rows: usize,
    cols: usize,
}

impl Module<'_> {
    fn find(&self, suffix: &str) -> Option<Raw> {
        self.weights.raw(&format!("{}.{suffix}", self.base))
    }

    /// The tensor of this shape and one of these types.
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

    /// An error of one of the module's tensors.
    fn bad(&self, tensor: &str, reason: String) -> LoadError {
        LoadError::CodedTensor { tensor: tensor.to_owned(), reason }
    }
}

/// Finds the quantised matrix `name` `[rows, cols]`, which ends in `.weight`; `None` if there is no such
/// module in the scheme's form.
///
/// # Errors
/// If a tensor of it is missing, or has another type or shape, or a form that is not supported.
pub(super) fn find(
    weights: &Weights,
    scheme: &Scheme,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<Option<CodedMatrix>, LoadError> {
    let Some(base) = name.strip_suffix(".weight") else { return Ok(None) };
    let module = Module { weights, base, rows, cols };
    let codes: Option<StoredCodes> = match scheme {
        Scheme::Gptq(gptq) => gptq::find(&module, gptq)?,
        Scheme::Awq(awq) => awq::find(&module, awq)?,
        Scheme::Compressed(compressed) => compressed::find(&module, compressed)?,
        Scheme::Fp8(fp8) => fp8::find(&module, fp8)?,
        Scheme::BitsAndBytes => bitsandbytes::find(&module)?,
    };
    Ok(codes.map(|codes| CodedMatrix::whole(codes, name)))
}

/// Types of scales.
const FLOATS: [Dtype; 3] = [Dtype::F16, Dtype::BF16, Dtype::F32];
