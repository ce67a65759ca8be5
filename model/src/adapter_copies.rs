//! The model's own weights in an adapter's file. PEFT stores a copy of the head if it is a target, and loads
//! the copy in the place of the model's. Only a true copy changes nothing.

use std::path::Path;

use safetensors::tensor::Dtype;

use super::LoadError;
use super::adapter::Adapter;
use super::checkpoint::quantised::{Raw, float};
use super::checkpoint::{StoredTensor, Weights};

impl Adapter {
    /// As [`check_copies`](Self::check_copies), for the model in `dir`, if it has weights.
    ///
    /// # Errors
    /// As there.
    pub fn check_copies_in(&self, dir: &Path) -> Result<(), LoadError> {
        if self.copies().next().is_none() {
            return Ok(());
        }
        // Dummy weights have no files, and others have been read before.
        Weights::open(dir).map_or(Ok(()), |weights| self.check_copies(&weights))
    }

    /// Refuses an adapter that brings other weights for the head or the embedding table than `weights` has.
    /// Weights in codes are not compared.
    ///
    /// # Errors
    /// Names the tensor.
    pub fn check_copies(&self, weights: &Weights) -> Result<(), LoadError> {
        let is_float = |dtype| matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32);
        for (module, copy) in self.copies() {
            let Some(own) = weights.stored(&format!("{module}.weight")).filter(|own| is_float(own.dtype))
            else {
                continue;
            };
            if !is_float(copy.dtype) || !is_copy(&own, &copy) {
                let reason = "brings other weights for it than the model's: it was trained on another model, or with new \
                              tokens. Merge it into its model with PEFT, and serve that";
                return Err(self.refused(&copy.name, reason));
            }
        }
        Ok(())
    }
}

/// Whether `copy`, rounded to the model's type, has the model's values.
fn is_copy(own: &StoredTensor<'_>, copy: &Raw) -> bool {
    if own.shape != copy.shape {
        return false;
    }
    if own.dtype == copy.dtype {
        return *own.bytes == *copy.bytes;
    }
    let rounded = |value: f32| match own.dtype {
        Dtype::BF16 => half::bf16::from_f32(value).to_f32(),
        Dtype::F16 => half::f16::from_f32(value).to_f32(),
        _ => value,
    };
    let count: usize = own.shape.iter().product();
    (0..count).all(|i| rounded(float(&copy.bytes, copy.dtype, i)) == float(own.bytes, own.dtype, i))
}
