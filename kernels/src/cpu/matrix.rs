//! Weight matrices as stored in a checkpoint. Embeddings are looked up in them; for products they are
//! [packed](super::packed).

use std::ops::Range;

use skein_sys::mapped::Bytes;

use super::blocks::BlockType;

/// A weight matrix `[rows, cols]`, row-major: row `n` holds the weights of output `n`. It may be part of a
/// stored matrix; the rest of the storage is then never read.
#[derive(Debug, Clone)]
pub struct WeightMatrix {
    storage: Storage,
    rows: usize,
    cols: usize,
    /// Byte offset of the first value.
    start: usize,
    /// Stride between rows, in bytes.
    stride: usize,
    /// Runs of rows, if rows are not evenly apart.
    runs: Option<Runs>,
}

/// Rows in runs: within a run they are a stride apart.
#[derive(Debug, Clone, Copy)]
struct Runs {
    /// Rows of a run.
    len: usize,
    /// Rows from the start of a run to the next one's, in strides.
    every: usize,
    /// Rows of the first run that are left out.
    skipped: usize,
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
    /// Blocks of quantised values, row by row.
    Blocks(BlockType, Bytes),
}

impl Storage {
    /// Bytes of `values` consecutive values of an output.
    ///
    /// # Panics
    /// If that is not a whole number of blocks.
    pub fn bytes_of(&self, values: usize) -> usize {
        match self {
            Self::Bf16(_) | Self::F16(_) => 2 * values,
            Self::F32(_) => 4 * values,
            Self::Blocks(kind, _) => match kind.row_bytes(values) {
                Some(bytes) => bytes,
                None => panic!("{values} values are not a whole number of {} blocks", kind.name()),
            },
        }
    }

    /// Bits of 256 values, including scales.
    pub fn bits_of_256(&self) -> usize {
        8 * self.bytes_of(256)
    }

    /// Values per storage unit: a block, or a single value.
    pub fn unit(&self) -> usize {
        self.blocks().map_or(1, |kind| kind.form().values)
    }

    /// Block type, if values are stored in blocks.
    pub fn blocks(&self) -> Option<BlockType> {
        match self {
            Self::Blocks(kind, _) => Some(*kind),
            Self::Bf16(_) | Self::F16(_) | Self::F32(_) => None,
        }
    }

    /// Name of the type, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bf16(_) => "BF16",
            Self::F16(_) => "F16",
            Self::F32(_) => "F32",
            Self::Blocks(kind, _) => kind.name(),
        }
    }

    /// All bytes of the matrix.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bf16(bytes) | Self::F16(bytes) | Self::F32(bytes) | Self::Blocks(_, bytes) => bytes,
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
            Self::Blocks(kind, _) => kind.widen(bytes, to),
        }
    }
}

impl WeightMatrix {
    /// A matrix of `rows * cols` values.
    ///
    /// # Panics
    /// If the storage has a different number of bytes.
    pub fn new(storage: Storage, rows: usize, cols: usize) -> Self {
        let stride = storage.bytes_of(cols);
        let expected = rows.checked_mul(stride);
        assert_eq!(Some(storage.bytes().len()), expected, "a [{rows}, {cols}] matrix fills its bytes");
        Self { storage, rows, cols, start: 0, stride, runs: None }
    }

    /// The part with these rows and columns, without a copy.
    ///
    /// # Panics
    /// If the matrix has no such rows and columns, or they start or end inside a block.
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "{rows:?} of {} rows", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "{cols:?} of {} columns", self.cols);
        let skipped = |runs: Runs| Runs { skipped: runs.skipped + rows.start, ..runs };
        let before = if self.runs.is_some() { 0 } else { rows.start * self.stride };
        let (start, runs) = (self.start + before + self.storage.bytes_of(cols.start), self.runs.map(skipped));
        Self { storage: self.storage.clone(), rows: rows.len(), cols: cols.len(), start, runs, ..*self }
    }

    /// Every `every`-th row, from the first, without a copy.
    ///
    /// # Panics
    /// If `every` is 0, or rows are in runs.
    pub fn every_row(&self, every: usize) -> Self {
        assert!(self.runs.is_none(), "rows are evenly apart");
        let (rows, stride) = (self.rows.div_ceil(every), self.stride * every);
        Self { storage: self.storage.clone(), rows, stride, ..*self }
    }

    /// The first `len` of every `every` rows, without a copy.
    ///
    /// # Panics
    /// If `len` is 0 or more than `every`, or rows are in runs already.
    pub fn runs(&self, len: usize, every: usize) -> Self {
        assert!((1..=every).contains(&len) && self.runs.is_none(), "runs of {len} of {every} rows");
        let rows = self.rows / every * len + (self.rows % every).min(len);
        let runs = Some(Runs { len, every, skipped: 0 });
        Self { storage: self.storage.clone(), rows, runs, ..*self }
    }

    /// Whether its rows are not evenly apart.
    pub fn is_in_runs(&self) -> bool {
        self.runs.is_some()
    }

    /// Copy of `count` columns as rows: row `i` is column `first + i * every`.
    ///
    /// # Panics
    /// If there are no such columns, or values are stored in blocks.
    pub fn columns(&self, first: usize, every: usize, count: usize) -> Self {
        assert!(count == 0 || first + (count - 1) * every < self.cols, "columns of {}", self.cols);
        /// Rows that are copied together, so that each line of memory is read a few times only.
        const ROWS: usize = 64;
        let size = self.storage.bytes_of(1);
        let mut bytes = vec![0; count * self.rows * size];
        for start in (0..self.rows).step_by(ROWS) {
            for (i, to) in bytes.chunks_exact_mut((self.rows * size).max(1)).enumerate() {
                for row in start..self.rows.min(start + ROWS) {
                    let from = &self.row(row)[(first + i * every) * size..][..size];
                    to[row * size..][..size].copy_from_slice(from);
                }
            }
        }
        let storage = self.stored_as(bytes);
        Self::new(storage, count, self.rows)
    }

    /// Copy in `f32`.
    pub fn widened(&self) -> Self {
        let mut values = vec![0.0; self.cols];
        let mut bytes = Vec::with_capacity(self.rows * self.cols * size_of::<f32>());
        for row in 0..self.rows {
            self.widen_row(row, &mut values);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Self::new(Storage::F32(bytes.into()), self.rows, self.cols)
    }

    /// Copy with reordered rows; row `i` is row `from(i)` of this matrix.
    pub fn with_rows(&self, from: impl Fn(usize) -> usize) -> Self {
        let bytes = (0..self.rows).flat_map(|row| self.row(from(row))).copied().collect();
        self.copied(bytes)
    }

    /// Copy with reordered columns; column `i` is column `from(i)` of this matrix.
    ///
    /// # Panics
    /// If values are stored in blocks.
    pub fn with_columns(&self, from: impl Fn(usize) -> usize) -> Self {
        let size = self.storage.bytes_of(1);
        let value = |row, column| &self.row(row)[column * size..][..size];
        let columns = |row| (0..self.cols).map(move |column| (row, column));
        let bytes = (0..self.rows).flat_map(columns).flat_map(|(row, column)| value(row, from(column)));
        self.copied(bytes.copied().collect())
    }

    /// Matrix of the same shape and type with different bytes.
    fn copied(&self, bytes: Vec<u8>) -> Self {
        Self::new(self.stored_as(bytes), self.rows, self.cols)
    }

    /// `bytes` of this matrix's type.
    fn stored_as(&self, bytes: Vec<u8>) -> Storage {
        match self.storage {
            Storage::Bf16(_) => Storage::Bf16(bytes.into()),
            Storage::F16(_) => Storage::F16(bytes.into()),
            Storage::F32(_) => Storage::F32(bytes.into()),
            Storage::Blocks(kind, _) => Storage::Blocks(kind, bytes.into()),
        }
    }

    /// Number of rows, which are outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, which are inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Type and bytes. A part of a matrix uses only some of the bytes.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.storage.bytes_of(self.cols)
    }

    /// Size of all rows, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Bytes of row `row`.
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let stored = self.runs.map_or(row, |Runs { len, every, skipped }| {
            let row = row + skipped;
            row / len * every + row % len
        });
        &self.storage.bytes()[self.start + stored * self.stride..][..self.row_bytes()]
    }

    /// Widens row `row` into `to`, which has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.cols, "a row has as many values as the matrix has columns");
        self.storage.widen(self.row(row), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_has_its_rows_and_columns() {
        let bytes: Vec<u8> = (0..60).flat_map(|i| half::f16::from_f32(i as f32).to_le_bytes()).collect();
        let whole = WeightMatrix::new(Storage::F16(bytes.into()), 6, 10);
        let part = whole.part(1..5, 2..9).part(1..3, 3..6);
        let mut row = [0.0; 3];
        part.widen_row(0, &mut row);
        assert_eq!((part.rows(), part.cols(), row), (2, 3, [25.0, 26.0, 27.0]));
        part.widen_row(1, &mut row);
        assert_eq!((row, part.len_bytes()), ([35.0, 36.0, 37.0], 12));
        let turned = part.with_rows(|row| 1 - row).with_columns(|column| [2, 0, 1][column]);
        turned.widen_row(1, &mut row);
        assert_eq!((turned.rows(), row), (2, [27.0, 25.0, 26.0]));
        let columns = whole.part(1..4, 0..10).columns(1, 4, 3);
        columns.widen_row(2, &mut row);
        assert_eq!((columns.rows(), columns.cols(), row), (3, 3, [19.0, 29.0, 39.0]));
        let mut wide = [0.0; 10];
        whole.every_row(4).widen_row(1, &mut wide);
        assert_eq!((whole.every_row(4).rows(), wide[9]), (2, 49.0));
        let firsts = |matrix: WeightMatrix| {
            let first = |row| {
                matrix.widen_row(row, &mut wide[..matrix.cols()]);
                wide[0]
            };
            (0..matrix.rows()).map(first).collect::<Vec<_>>()
        };
        let mut firsts = firsts;
        assert_eq!(firsts(whole.runs(2, 3)), [0.0, 10.0, 30.0, 40.0]);
        assert_eq!(firsts(whole.part(1..6, 0..10).runs(2, 3).part(1..4, 4..7)), [24.0, 44.0, 54.0]);
    }
}
