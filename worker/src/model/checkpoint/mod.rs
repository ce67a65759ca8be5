//! A checkpoint: a model's weights in files, safetensors or GGUF. This room knows files, but not what their
//! tensors are for.

mod gguf;
pub mod quantised;
mod safetensors;

use std::ops::Range;
use std::path::Path;

pub use gguf::ModelFile;
pub(in crate::model) use safetensors::Weights as SafetensorsFiles;
use skein_kernels::cpu::matrix::Storage;

use self::quantised::{CodedMatrix, Scheme};
use super::LoadError;

/// The weight files of a model.
pub struct Weights(Files);

enum Files {
    Safetensors(safetensors::Weights),
    Gguf(gguf::Weights),
}

/// Calls a method that both kinds of files have.
macro_rules! on_files {
    ($self:ident, $files:ident => $call:expr) => {
        match &$self.0 {
            Files::Safetensors($files) => $call,
            Files::Gguf($files) => $call,
        }
    };
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
    pub(in crate::model) fn stamp(&self, take: &mut dyn FnMut(&[u8])) {
        on_files!(self, files => files.stamp(take));
    }

    /// Feeds `take` with names, types, shapes and a few bytes of all tensors, sorted by name.
    pub(in crate::model) fn sample(&self, take: &mut dyn FnMut(&[u8])) {
        on_files!(self, files => files.sample(take));
    }

    /// How matrices are quantised by another library, if they are. GGUF's blocks are no such scheme.
    pub fn scheme(&self) -> Option<&Scheme> {
        match &self.0 {
            Files::Safetensors(files) => files.scheme(),
            Files::Gguf(_) => None,
        }
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        on_files!(self, files => files.file_bytes())
    }

    /// Whether a tensor of this name has a type that [`Weights::rows`] reads.
    pub(in crate::model) fn has_numbers(&self, name: &str) -> bool {
        match &self.0 {
            Files::Safetensors(files) => files.has_numbers(name),
            Files::Gguf(files) => files.contains(name),
        }
    }

    /// The matrix of codes of this name and shape; `None` if there is none.
    ///
    /// # Errors
    /// If one of its tensors is missing, or has another type or shape, or a form that is not supported.
    pub(in crate::model) fn codes(
        &self,
        name: &str,
        shape: (usize, usize),
    ) -> Result<Option<CodedMatrix>, LoadError> {
        let Files::Safetensors(files) = &self.0 else { return Ok(None) };
        files.scheme().map_or(Ok(None), |scheme| quantised::find(files, scheme, name, shape))
    }

    /// Whether a tensor has this name.
    pub fn contains(&self, name: &str) -> bool {
        on_files!(self, files => files.contains(name))
    }

    /// Some rows of a tensor of this shape, mapped, not copied. The rows of a tensor of three dimensions are
    /// those of all its matrices.
    ///
    /// # Errors
    /// If it is missing, or has another shape or a type that is not supported.
    pub fn rows(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Storage, LoadError> {
        on_files!(self, files => files.rows(name, shape, rows))
    }
}
