//! A tensor as stored in its file.

use safetensors::tensor::Dtype;
use skein_sys::mapped::Bytes;

/// Name, type, shape and bytes of a tensor.
pub(crate) struct Raw {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}
