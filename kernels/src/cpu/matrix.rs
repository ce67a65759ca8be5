//! Weight matrices as stored in a checkpoint. Embeddings are looked up in them; for products they are
//! [packed](super::packed).

use skein_sys::mapped::Bytes;

/// A weight matrix `[rows, cols]`, row-major: row `n` holds the weights of output `n`.
#[derive(Debug, Clone)]
pub struct WeightMatrix {
    storage: Storage,
    rows: usize,
    cols: usize,
}

/// Element type and bytes of a matrix.
#[derive(Debug, Clone)]
pub enum Storage {
    /// bfloat16, little-endian; needs no alignment.
    Bf16(Bytes),
    /// IEEE half, little-endian; needs no alignment.
    F16(Bytes),
    /// IEEE single, little-endian; needs no alignment.
    F32(Bytes),
}

impl Storage {
    /// Bytes per value.
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Bf16(_) | Self::F16(_) => 2,
            Self::F32(_) => 4,
        }
    }

    /// All bytes of the matrix.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bf16(bytes) | Self::F16(bytes) | Self::F32(bytes) => bytes,
        }
    }

    /// Widens `bytes`, a part of this storage, to `f32`.
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
        }
    }
}

impl WeightMatrix {
    /// A matrix of `rows * cols` values.
    ///
    /// # Panics
    /// If the storage has a different number of bytes.
    pub fn new(storage: Storage, rows: usize, cols: usize) -> Self {
        let expected = rows.checked_mul(cols).and_then(|values| values.checked_mul(storage.value_bytes()));
        assert_eq!(Some(storage.bytes().len()), expected, "a [{rows}, {cols}] matrix fills its bytes");
        Self { storage, rows, cols }
    }

    /// Number of rows, which are outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, which are inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type and bytes.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.storage.value_bytes()
    }

    /// Widens row `row` into `to`, which has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.cols, "a row has as many values as the matrix has columns");
        let bytes = &self.storage.bytes()[row * self.row_bytes()..][..self.row_bytes()];
        self.storage.widen(bytes, to);
    }
}
