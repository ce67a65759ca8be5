//! Codes that dummy weights have in the place of a checkpoint's.

use std::path::Path;

use skein_kernels::cpu::blocks::BlockType;
use skein_kernels::cpu::packed::Format;
use skein_kernels::cuda::ops::Activation;

use super::packed::{Coded, FindCoded, refused, table_of_blocks};
use super::rank_tensor::RankTensor;
use crate::LoadError;
use crate::checkpoint::quantised::Described;

/// Codes of weights without files.
pub enum DummyCodes {
    /// None: 16 bits, or FP8.
    Plain,
    /// Those to which a flag quantises the layers' weights.
    Rounded(Format),
    /// Those that the directory describes.
    Described(Described),
}

impl DummyCodes {
    /// Codes of the model in `dir`, whose layers' weights are quantised to `rounded` if the directory
    /// describes no codes. `is_f16`: whether the others are in half precision.
    ///
    /// # Errors
    /// If the directory describes codes that are not supported.
    pub fn of(dir: &Path, is_f16: bool, rounded: Option<Format>) -> Result<Self, LoadError> {
        Ok(match (Described::of(dir, is_f16)?, rounded) {
            (Some(described), _) => Self::Described(described),
            (None, Some(format)) => Self::Rounded(format),
            (None, None) => Self::Plain,
        })
    }

    /// Values of the codes of those matrices whose codes are looked up.
    pub fn table(&self) -> Option<[f32; 16]> {
        match self {
            Self::Plain | Self::Rounded(_) => None,
            Self::Described(described) => match described.blocks() {
                Some(kind) => table_of_blocks(kind),
                None => described.table(),
            },
        }
    }
}

impl FindCoded for DummyCodes {
    fn coded<T: Activation>(&self, held: &RankTensor) -> Result<Option<Coded>, LoadError> {
        let RankTensor { whole, part, leaf, .. } = held;
        let described = match self {
            Self::Plain => return Ok(None),
            Self::Rounded(format) => {
                return Ok(whole.layer.map(|_| Coded::of_rounded(*format)));
            }
            Self::Described(described) => described,
        };
        if let Some(kind) = described.blocks() {
            check_blocks(kind, held)?;
            return Ok(Some(Coded::of_blocks(kind, *leaf)));
        }
        let Some(codes) = described.codes(whole)? else { return Ok(None) };
        let codes = codes.part(0..codes.rows(), part.cols.clone())?;
        Coded::of_codes::<T>(&codes, *leaf).map(Some)
    }

    /// Formats keep what chooses experts in 16 or 32 bits.
    fn has_coded_router(&self, _: &RankTensor) -> Result<bool, LoadError> {
        Ok(false)
    }
}

/// Refuses matrices whose rows, or a rank's parts of them, are not whole blocks.
fn check_blocks(kind: BlockType, RankTensor { whole, part, .. }: &RankTensor) -> Result<(), LoadError> {
    let unit = kind.form().values;
    if !whole.cols.is_multiple_of(unit) {
        let (name, cols) = (kind.name(), whole.cols);
        let reason = format!(
            "its rows of {cols} inputs are not whole blocks of {unit}, as {name} has them; choose a type with blocks of 32 (q4_0 \
             to q8_0, iq4_nl)"
        );
        return Err(refused(&whole.name, reason));
    }
    if part.cols.start.is_multiple_of(unit) && part.cols.end.is_multiple_of(unit) {
        return Ok(());
    }
    let (tensor, start, end) = (whole.name.clone(), part.cols.start, part.cols.end);
    Err(LoadError::CutBlocks { tensor, unit, start, end })
}
