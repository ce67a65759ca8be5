//! Where a tensor is in a checkpoint, and how it is found there.

use std::ops::Range;

use skein_kernels::cpu::matrix::WeightMatrix;

use super::place::Place;
use super::{Kind, Role, Tensor};
use crate::LoadError;
use crate::checkpoint::Weights;
use crate::checkpoint::quantised::CodedMatrix;
use crate::spec::Spec;

/// A matrix as stored in a checkpoint.
#[derive(Clone)]
pub enum StoredMatrix {
    /// 16- or 32-bit numbers, or GGUF's blocks.
    Numbers(WeightMatrix),
    /// Codes of fewer bits.
    Codes(CodedMatrix),
    /// Outputs that are columns of a stored matrix.
    Columns(Columns),
}

/// A matrix whose outputs are some columns of a stored one. Packing copies them.
#[derive(Clone)]
pub struct Columns {
    /// The stored matrix, `[inputs, columns]`.
    pub stored: ColumnsOf,
    /// Column of the first output.
    pub first: usize,
    /// Columns from one output to the next.
    pub every: usize,
    /// Number of outputs.
    pub count: usize,
}

/// The matrix of [`Columns`].
#[derive(Clone)]
pub enum ColumnsOf {
    /// 16- or 32-bit numbers, or GGUF's blocks, which are decoded as codes are.
    Numbers(WeightMatrix),
    /// Codes, which are decoded to 32-bit numbers, because a group of inputs would be a part of a column.
    Codes(CodedMatrix),
}

impl ColumnsOf {
    /// Number of rows, which are inputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Codes(codes) => codes.rows(),
        }
    }
}

impl StoredMatrix {
    /// Number of outputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Codes(codes) => codes.rows(),
            Self::Columns(columns) => columns.count,
        }
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.cols(),
            Self::Codes(codes) => codes.cols(),
            Self::Columns(columns) => columns.stored.rows(),
        }
    }

    /// Whether weights have fewer than 16 bits.
    pub fn is_quantised(&self) -> bool {
        match self {
            Self::Numbers(numbers) => numbers.storage().blocks().is_some(),
            Self::Codes(_) => true,
            Self::Columns(_) => false,
        }
    }

    /// Size of the weights, in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len_bytes(),
            Self::Codes(codes) => codes.len_bytes(),
            Self::Columns(Columns { stored: ColumnsOf::Numbers(stored), count, .. })
                if stored.storage().blocks().is_none() =>
            {
                stored.storage().bytes_of(stored.rows() * count)
            }
            Self::Columns(Columns { stored: ColumnsOf::Numbers(stored), .. }) => stored.len_bytes(),
            Self::Columns(Columns { stored: ColumnsOf::Codes(stored), .. }) => stored.len_bytes(),
        }
    }

    /// The part with these rows and columns.
    ///
    /// # Errors
    /// If it cannot be split there.
    ///
    /// # Panics
    /// If the matrix has no such rows and columns.
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Result<Self, LoadError> {
        match self {
            Self::Numbers(numbers) => Ok(Self::Numbers(numbers.part(rows, cols))),
            Self::Codes(codes) => codes.part(rows, cols).map(Self::Codes),
            Self::Columns(Columns { stored, first, every, .. }) => {
                let stored = match stored {
                    ColumnsOf::Numbers(numbers) => ColumnsOf::Numbers(numbers.part(cols, 0..numbers.cols())),
                    ColumnsOf::Codes(codes) => ColumnsOf::Codes(codes.part(cols, 0..codes.cols())?),
                };
                let (first, every, count) = (first + rows.start * every, *every, rows.len());
                Ok(Self::Columns(Columns { stored, first, every, count }))
            }
        }
    }
}

/// Location of a tensor in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Name of the stored tensor.
    pub name: String,
    /// Shape of the stored tensor.
    pub shape: Vec<usize>,
    /// First row of the tensor within the stored one, which may have more rows.
    pub first_row: usize,
    /// Which values from that row on are the tensor's outputs.
    pub place: Place,
}

impl Tensor {
    /// Finds the tensor in `weights`: a matrix, or a vector as one row. Heads have the checkpoint's order.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find_stored(&self, weights: &Weights) -> Result<WeightMatrix, LoadError> {
        match (self.find_numbers(weights)?, self.kind) {
            (
                StoredMatrix::Columns(Columns { stored: ColumnsOf::Numbers(stored), first, every, count }),
                _,
            ) => {
                let columns = stored.columns(first, every, count);
                let is_vector = !matches!(self.kind, Kind::Table | Kind::Matrix(..));
                let (rows, cols) = if is_vector { (1, count) } else { (count, columns.cols()) };
                Ok(WeightMatrix::new(columns.storage().clone(), rows, cols))
            }
            (StoredMatrix::Numbers(numbers), Kind::Table | Kind::Matrix(..)) => Ok(numbers),
            (StoredMatrix::Numbers(numbers), _) if numbers.is_in_runs() => Ok(numbers.columns(0, 1, 1)),
            (StoredMatrix::Numbers(numbers), _) => {
                Ok(WeightMatrix::new(numbers.storage().clone(), 1, self.rows))
            }
            (StoredMatrix::Codes(_) | StoredMatrix::Columns(_), _) => {
                unreachable!("only numbers are looked for")
            }
        }
    }

    /// Finds the tensor's numbers in `weights`: a matrix, or a vector as one column.
    fn find_numbers(&self, weights: &Weights) -> Result<StoredMatrix, LoadError> {
        // Of those with the right shape the first, or else the first that exists, for the error's sake.
        let fits = self.stored.iter().find(|stored| weights.has_shape(&stored.name, &stored.shape));
        let exists = || self.stored.iter().find(|stored| weights.contains(&stored.name));
        let Stored { name, shape, first_row, place } = fits.or_else(exists).unwrap_or(&self.stored[0]);
        let read = |rows: usize| weights.rows(name, shape, *first_row..*first_row + rows);
        Ok(match *place {
            Place::Rows => {
                // A vector may be stored as several rows.
                let is_vector = !matches!(self.kind, Kind::Table | Kind::Matrix(..));
                let each = if is_vector && shape.len() > 1 { shape[shape.len() - 1] } else { 1 };
                let stored = read(self.rows / each)?;
                StoredMatrix::Numbers(WeightMatrix::new(stored, self.rows, self.cols))
            }
            Place::EveryRow(every) => {
                let rows = place.row(self.rows - 1) + 1;
                StoredMatrix::Numbers(WeightMatrix::new(read(rows)?, rows, self.cols).every_row(every))
            }
            Place::Runs { len, every } => {
                let rows = place.row(self.rows - 1) + 1;
                StoredMatrix::Numbers(WeightMatrix::new(read(rows)?, rows, self.cols).runs(len, every))
            }
            Place::Columns { first, every } => {
                let columns = shape[shape.len() - 1];
                let stored = ColumnsOf::Numbers(WeightMatrix::new(read(self.cols)?, self.cols, columns));
                StoredMatrix::Columns(Columns { stored, first, every, count: self.rows })
            }
        })
    }

    /// Finds a matrix in `weights`, as numbers or as codes. Heads have the checkpoint's order.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find_matrix(&self, weights: &Weights) -> Result<StoredMatrix, LoadError> {
        if weights.scheme().is_some() && !self.stored.iter().any(|stored| weights.has_numbers(&stored.name)) {
            for stored in &self.stored {
                if let Some(codes) = self.find_codes(weights, stored)? {
                    return Ok(codes);
                }
            }
        }
        self.find_numbers(weights)
    }

    /// Finds the matrix in `weights` as codes stored there.
    fn find_codes(&self, weights: &Weights, stored: &Stored) -> Result<Option<StoredMatrix>, LoadError> {
        let Stored { name, shape, first_row, place } = stored;
        let (last, outer) = shape.split_last().unwrap_or_else(|| unreachable!("a shape has sizes"));
        let codes = |outer: &[usize]| weights.codes(name, outer.iter().product(), *last);
        Ok(match *place {
            Place::Rows | Place::EveryRow(_) | Place::Runs { .. } => {
                codes(outer)?.map(|codes| StoredMatrix::Codes(codes.outputs(*first_row, *place, self.rows)))
            }
            // Formats of codes have outputs as rows: a matrix that is turned, not a tensor of experts.
            Place::Columns { first, every } if outer.len() == 1 => codes(outer)?.map(|codes| {
                let stored = ColumnsOf::Codes(codes.outputs(*first_row, Place::Rows, self.cols));
                StoredMatrix::Columns(Columns { stored, first, every, count: self.rows })
            }),
            Place::Columns { .. } => None,
        })
    }

    /// Row in the checkpoint of row `row` of a matrix.
    pub fn stored_row(&self, row: usize) -> usize {
        let Some(order) = &self.order else { return row };
        row / order.len() * order.len() + order[row % order.len()]
    }

    /// Like [`Tensor::find_stored`], with heads in the device's order; reordering copies them.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find(&self, weights: &Weights) -> Result<WeightMatrix, LoadError> {
        self.find_stored(weights).map(|stored| self.in_order(stored))
    }

    /// `stored` with heads in the device's order.
    pub fn in_order(&self, stored: WeightMatrix) -> WeightMatrix {
        if self.order.is_none() {
            return stored;
        }
        let from = |row| self.stored_row(row);
        if matches!(self.kind, Kind::Matrix(..)) { stored.with_rows(from) } else { stored.with_columns(from) }
    }

    /// Values of a vector as applied: norms include their offset, and the last one the logits' factor.
    ///
    /// # Errors
    /// As for [`Tensor::find`].
    pub fn read(&self, spec: &Spec, weights: &Weights) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0.0; self.rows];
        self.find(weights)?.widen_row(0, &mut values);
        // Other values may be without a bound: a corrected score, the logit of a sink.
        let is_bad = |value: &f32| value.is_nan() || value.is_infinite() && self.kind != Kind::Values;
        if let Some(col) = values.iter().position(is_bad) {
            let (tensor, value) = (self.name.clone(), values[col]);
            return Err(LoadError::NonFiniteWeight { tensor, row: 0, col, value });
        }
        let offset = self.norm_offset(spec);
        if offset != 0.0 {
            values.iter_mut().for_each(|value| *value += offset);
        }
        if self.role == Role::LastNorm && spec.logits_scale != 1.0 {
            values.iter_mut().for_each(|value| *value *= spec.logits_scale);
        }
        Ok(values)
    }
}
