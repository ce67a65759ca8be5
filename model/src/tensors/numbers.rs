//! Numbers of matrices that are stored in codes, in blocks, or turned.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Layout, Packed, pack_rows};

use super::{Columns, ColumnsOf, StoredMatrix};
use crate::LoadError;
use crate::checkpoint::quantised::CodedMatrix;

impl StoredMatrix {
    /// Numbers of the matrix, an output a row: as stored, or in 32 bits if they are in codes or blocks.
    /// Columns are copied.
    ///
    /// # Errors
    /// If a code or scale is not a finite number, or its groups have a size that no packed format has.
    pub fn numbers(&self, cpu: &mut Cpu) -> Result<WeightMatrix, LoadError> {
        match self {
            Self::Numbers(numbers) => Ok(without_blocks(numbers)),
            Self::Codes(codes) => decoded(cpu, codes),
            Self::Columns(Columns { stored, first, every, count }) => {
                let numbers = match stored {
                    ColumnsOf::Numbers(numbers) => without_blocks(numbers),
                    ColumnsOf::Codes(codes) => decoded(cpu, codes)?,
                };
                Ok(numbers.columns(*first, *every, *count))
            }
        }
    }
}

fn without_blocks(numbers: &WeightMatrix) -> WeightMatrix {
    if numbers.storage().blocks().is_some() { numbers.widened() } else { numbers.clone() }
}

/// The numbers that `codes` stand for, with inputs in the checkpoint's order.
fn decoded(cpu: &mut Cpu, codes: &CodedMatrix) -> Result<WeightMatrix, LoadError> {
    let (rows, cols) = (codes.rows(), codes.cols());
    let failed = |source| LoadError::UnpackedTensor { tensor: codes.name().to_owned(), source };
    let layout = Layout::new(codes.format(1)?, rows, cols);
    let mut bytes = vec![0; layout.bytes()];
    pack_rows(cpu, &codes.in_order(|row| row), layout, &mut bytes).map_err(failed)?;
    let packed = Packed::new(layout, bytes.into());
    let (mut values, mut row_values) = (vec![0u8; rows * cols * size_of::<f32>()], vec![0.0; cols]);
    for (row, to) in values.chunks_exact_mut((cols * size_of::<f32>()).max(1)).enumerate() {
        packed.widen_row(row, &mut row_values);
        for (i, value) in row_values.iter().enumerate() {
            let col = codes.order().map_or(i, |order| order[i] as usize);
            to[size_of::<f32>() * col..][..size_of::<f32>()].copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(WeightMatrix::new(Storage::F32(values.into()), rows, cols))
}
