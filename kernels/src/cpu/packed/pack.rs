//! Packs a matrix to any format.

use super::super::Cpu;
use super::super::matrix::{Storage, WeightMatrix};
use super::error::PackError;
use super::format::Format;
use super::formats;
use super::layout::Layout;
use super::matrix::Packed;

/// Packs `from` to `to` in `layout`, with all threads. Integer formats quantise the weights; blocks keep
/// their codes.
///
/// # Errors
/// If a weight to be quantised is NaN or infinite, or if there are too many different exponents to fold. `to`
/// is then unusable.
///
/// # Panics
/// If the shapes disagree, or the layout's format has a different floating-point type.
pub fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert_eq!((from.rows(), from.cols()), (layout.rows, layout.cols), "the layout has the matrix's shape");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    layout.check();
    if let Storage::Blocks(kind, _) = from.storage() {
        return formats::blocks::pack(cpu, from, *kind, layout, to);
    }
    (layout.format.0.pack)(cpu, from, layout, to)
}

impl Packed {
    /// Packs `from` to `format`, in memory.
    ///
    /// # Errors
    /// See [`pack`].
    pub fn of(cpu: &mut Cpu, from: &WeightMatrix, format: Format) -> Result<Self, PackError> {
        Self::in_layout(cpu, from, Layout::new(format, from.rows(), from.cols()))
    }

    /// Packs `from` in `layout`, in memory.
    ///
    /// # Errors
    /// As for [`pack`].
    ///
    /// # Panics
    /// As for [`pack`].
    pub fn in_layout(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout) -> Result<Self, PackError> {
        let mut bytes = vec![0; layout.bytes()];
        pack(cpu, from, layout, &mut bytes)?;
        Ok(Self::new(layout, bytes.into()))
    }
}
