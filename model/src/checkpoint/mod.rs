//! Checkpoint files with a model's weights, in safetensors or GGUF. This module knows the files but not the
//! role of their tensors.

mod gguf;
pub mod quantised;
mod safetensors;

use std::ops::Range;
use std::path::Path;

use ::safetensors::tensor::Dtype;
pub use gguf::ModelFile;
pub use safetensors::Weights as SafetensorsFiles;
use skein_kernels::cpu::matrix::Storage;

use self::quantised::{CodedMatrix, KvScales, Scheme};
use super::LoadError;

/// The weight files of a model.
pub struct Weights(Files);

enum Files {
    Safetensors(safetensors::Weights),
    Gguf(gguf::Weights),
}

/// Calls a method common to both kinds of files.
macro_rules! on_files {
    ($self:ident, $files:ident => $call:expr) => {
        match &$self.0 {
            Files::Safetensors($files) => $call,
            Files::Gguf($files) => $call,
        }
    };
}

/// A tensor of a safetensors file.
pub(crate) struct StoredTensor<'a> {
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

impl Weights {
    /// Maps the weight files of `model`, a directory or a GGUF file, and reads their headers.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn open(model: &Path) -> Result<Self, LoadError> {
        Ok(Self(match ModelFile::open(model)? {
            Some(file) => Files::Gguf(gguf::Weights::new(file)),
            None => Files::Safetensors(safetensors::Weights::open(model)?),
        }))
    }

    /// Asks the system to read all files ahead; does not wait.
    pub fn will_need(&self) {
        on_files!(self, files => files.will_need());
    }

    /// Releases the memory of pages read so far; they are read again when needed.
    pub fn release(&self) {
        on_files!(self, files => files.release());
    }

    /// Feeds `take` with lengths and modification times, which identify these files on this machine. Notices
    /// far more changes than [`Weights::sample`].
    pub(crate) fn stamp(&self, take: &mut dyn FnMut(&[u8])) {
        on_files!(self, files => files.stamp(take));
    }

    /// Feeds `take` with names, types, shapes and a few bytes of all tensors, sorted by name.
    pub(crate) fn sample(&self, take: &mut dyn FnMut(&[u8])) {
        on_files!(self, files => files.sample(take));
    }

    /// Quantisation scheme of the matrices, if another library quantised them. GGUF's blocks do not count as
    /// one.
    pub fn scheme(&self) -> Option<&Scheme> {
        match &self.0 {
            Files::Safetensors(files) => files.scheme(),
            Files::Gguf(_) => None,
        }
    }

    /// Total size of the files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        on_files!(self, files => files.file_bytes())
    }

    /// Whether [`Weights::rows`] can read the type of the tensor `name`.
    pub(crate) fn has_numbers(&self, name: &str) -> bool {
        match &self.0 {
            Files::Safetensors(files) => files.has_numbers(name),
            Files::Gguf(files) => files.contains(name),
        }
    }

    /// Matrix of codes with this name and shape; `None` if there is none.
    ///
    /// # Errors
    /// If one of its tensors is missing, or has the wrong type or shape or an unsupported form.
    pub(crate) fn codes(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<CodedMatrix>, LoadError> {
        let Files::Safetensors(files) = &self.0 else { return Ok(None) };
        files.scheme().map_or(Ok(None), |scheme| quantised::find(files, scheme, name, rows, cols))
    }

    /// Scales for these layers' KV cache in FP8.
    ///
    /// # Errors
    /// If one is not a positive number, or differs from head to head.
    pub fn kv_scales(&self, layers: Range<usize>) -> Result<Vec<KvScales>, LoadError> {
        match &self.0 {
            Files::Safetensors(files) => quantised::kv_scales(files, layers),
            Files::Gguf(_) => Ok(vec![KvScales::NONE; layers.len()]),
        }
    }

    /// The tensor `name` of any type, as stored; `None` in GGUF files.
    pub(crate) fn stored(&self, name: &str) -> Option<StoredTensor<'_>> {
        let Files::Safetensors(files) = &self.0 else { return None };
        let (dtype, shape, bytes) = files.slice(name)?;
        Some(StoredTensor { dtype, shape, bytes })
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        on_files!(self, files => files.contains(name))
    }

    /// Names in the files of tensors that layers have beside those named `used`, sorted. None if another
    /// library quantised them: a matrix has several tensors then.
    pub(crate) fn others_of_layers<'a>(&self, used: impl Iterator<Item = &'a str>) -> Vec<&str> {
        match &self.0 {
            Files::Safetensors(files) if files.scheme().is_none() => files.others_of_layers(used),
            Files::Safetensors(_) => Vec::new(),
            Files::Gguf(files) => files.others_of_layers(used),
        }
    }

    /// Whether the weights are in GGUF files.
    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.0, Files::Gguf(_))
    }

    /// Whether there is a tensor `name` of this shape and a type of numbers.
    pub fn has_shape(&self, name: &str, shape: &[usize]) -> bool {
        self.rows(name, shape, 0..0).is_ok()
    }

    /// A range of a tensor's rows, mapped without a copy. In a three-dimensional tensor, the rows of all its
    /// matrices count.
    ///
    /// # Errors
    /// If the tensor is missing, or has the wrong shape or an unsupported type.
    pub fn rows(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Storage, LoadError> {
        on_files!(self, files => files.rows(name, shape, rows))
    }
}
