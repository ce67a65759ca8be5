//! Where the values of a tensor come from that a device has in 16 or 32 bits.

use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::matrix::WeightMatrix;

use crate::LoadError;
use crate::shard::Part;
use crate::tensors::{StoredMatrix, Tensor};

/// Values of a tensor, or of a rank's part of it.
#[derive(Clone)]
pub enum Origin {
    /// Numbers of the file, or values of a vector.
    Numbers(WeightMatrix),
    /// A matrix that is turned or decoded when its rows are read: all copies together would take as much
    /// memory as the matrices.
    Derived(StoredMatrix),
}

impl Origin {
    /// The `part` of a matrix or of a table, which is `stored`.
    ///
    /// # Errors
    /// If codes cannot be divided like this.
    pub(super) fn of_matrix(whole: &Tensor, part: &Part, stored: StoredMatrix) -> Result<Self, LoadError> {
        let (rows, cols) = (part.rows.clone(), part.cols.clone());
        match stored {
            StoredMatrix::Numbers(numbers) if numbers.storage().blocks().is_none() => {
                Ok(Self::Numbers(whole.in_order(numbers).part(rows, cols)))
            }
            stored => {
                assert!(whole.order.is_none(), "{}: such matrices have the checkpoint's order", whole.name);
                stored.part(rows, cols).map(Self::Derived)
            }
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Derived(stored) => stored.rows(),
        }
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.cols(),
            Self::Derived(stored) => stored.cols(),
        }
    }

    /// The numbers of `rows`.
    ///
    /// # Errors
    /// If a code or scale is not a finite number.
    pub fn read(&self, rows: Range<usize>) -> Result<WeightMatrix, LoadError> {
        let cols = 0..self.cols();
        match self {
            Self::Numbers(numbers) => Ok(numbers.part(rows, cols)),
            Self::Derived(stored) => stored.part(rows, cols)?.numbers(&mut Cpu::new(1)),
        }
    }
}
