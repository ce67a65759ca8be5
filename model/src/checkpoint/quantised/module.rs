//! The tensors of one module of a quantised checkpoint.

use safetensors::tensor::Dtype;

use super::raw::Raw;
use crate::LoadError;
use crate::checkpoint::SafetensorsFiles;

/// Tensors of one module, named `base.suffix`.
pub(super) struct Module<'a> {
    pub weights: &'a SafetensorsFiles,
    pub base: &'a str,
    /// Outputs and inputs according to the configuration.
    pub rows: usize,
    pub cols: usize,
}

impl Module<'_> {
    pub fn find(&self, suffix: &str) -> Option<Raw> {
        self.weights.raw(&format!("{}.{suffix}", self.base))
    }

    /// Tensor `suffix` with this shape and one of these types.
    pub fn get(&self, suffix: &str, dtypes: &[Dtype], shape: &[usize]) -> Result<Raw, LoadError> {
        let raw = self.find(suffix).ok_or_else(|| self.missing(suffix, format!("{dtypes:?} {shape:?}")))?;
        let fits = dtypes.contains(&raw.dtype) && raw.shape == shape;
        if fits { Ok(raw) } else { Err(self.wrong(&raw, format!("{dtypes:?} {shape:?}"))) }
    }

    /// Inputs per scale if `scales` are `[groups, outputs]`.
    pub fn group_of_scales(&self) -> Option<usize> {
        let groups = self.find("scales")?.shape.first().copied()?;
        (1..=self.cols).contains(&groups).then(|| self.cols.div_ceil(groups))
    }

    pub fn missing(&self, suffix: &str, expected: String) -> LoadError {
        let (tensor, dir) = (format!("{}.{suffix}", self.base), self.weights.dir().to_owned());
        LoadError::MissingTensor { tensor, expected, dir }
    }

    pub fn wrong(&self, raw: &Raw, expected: String) -> LoadError {
        self.bad(&raw.name, format!("it is {:?} {:?}, expected {expected}", raw.dtype, raw.shape))
    }

    /// Error about one of the module's tensors.
    pub fn bad(&self, tensor: &str, reason: String) -> LoadError {
        LoadError::CodedTensor { tensor: tensor.to_owned(), reason }
    }
}

/// Number types of scales.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F16, Dtype::BF16, Dtype::F32];
