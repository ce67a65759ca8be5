//! A weight matrix, in the format it was stored in, or packed.

use super::input::Form;
use super::packed::Packed;
use crate::mapped::Bytes;

/// A weight matrix `[rows, cols]`, row-major: row `n` holds the weights of output `n`.
#[derive(Debug, Clone)]
pub struct WeightMatrix {
    storage: Storage,
    rows: usize,
    cols: usize,
}

/// How the numbers lie.
#[derive(Debug, Clone)]
pub enum Storage {
    /// bfloat16, little-endian; needs no alignment.
    Bf16(Bytes),
    /// IEEE half, little-endian; needs no alignment.
    F16(Bytes),
    /// IEEE single, little-endian; needs no alignment.
    F32(Bytes),
    /// Small integers and their scales.
    Packed(Packed),
}

impl Storage {
    /// Bits of a value, scales left out.
    pub fn value_bits(&self) -> usize {
        match self {
            Self::Bf16(_) | Self::F16(_) => 16,
            Self::F32(_) => 32,
            Self::Packed(packed) => packed.layout().format.bits() as usize,
        }
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bf16(bytes) | Self::F16(bytes) | Self::F32(bytes) => bytes,
            Self::Packed(packed) => packed.bytes(),
        }
    }

    /// The form that activations have when they are multiplied with these weights: where weights are bfloat16, `bf16` says
    /// whether activations are rounded to it too.
    pub fn form(&self, bf16: bool) -> Form {
        match self {
            Self::Bf16(_) if bf16 => Form::Bf16,
            Self::Bf16(_) | Self::F16(_) | Self::F32(_) => Form::F32,
            Self::Packed(_) => Form::Int8,
        }
    }

    /// Widens the values in `bytes`, a part of this storage, into `to`.
    fn widen(&self, bytes: &[u8], to: &mut [f32]) {
        match self {
            Self::Bf16(_) => {
                for (to, word) in to.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *to = half::bf16::from_le_bytes(*word).to_f32();
                }
            }
            Self::F16(_) => {
                for (to, word) in to.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *to = half::f16::from_le_bytes(*word).to_f32();
                }
            }
            Self::F32(_) => {
                for (to, word) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *to = f32::from_le_bytes(*word);
                }
            }
            Self::Packed(_) => unreachable!("packed rows do not lie in one piece"),
        }
    }
}

impl WeightMatrix {
    /// A matrix of `rows * cols` values.
    ///
    /// # Panics
    /// If the storage holds another number of bytes.
    pub fn new(storage: Storage, rows: usize, cols: usize) -> Self {
        let expected = match &storage {
            Storage::Packed(packed) => {
                assert_eq!(
                    (packed.layout().rows, packed.layout().cols),
                    (rows, cols),
                    "the layout is the matrix's"
                );
                Some(packed.layout().bytes())
            }
            _ => rows.checked_mul(cols).and_then(|values| values.checked_mul(storage.value_bits() / 8)),
        };
        assert_eq!(Some(storage.bytes().len()), expected, "a [{rows}, {cols}] matrix fills its bytes");
        Self { storage, rows, cols }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Where and how the numbers lie.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Bytes of a row, scales left out.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.storage.value_bits() / 8
    }

    /// Widens row `row` into `to`, which has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.cols, "a row has as many values as the matrix has columns");
        if let Storage::Packed(packed) = &self.storage {
            return packed.widen_row(row, to);
        }
        let bytes = &self.storage.bytes()[row * self.row_bytes()..][..self.row_bytes()];
        self.storage.widen(bytes, to);
    }
}
