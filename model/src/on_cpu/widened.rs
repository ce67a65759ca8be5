//! Small weights that are kept in f32.

use skein_kernels::cpu::matrix::WeightMatrix;

use crate::LoadError;

/// Values of `stored`, `[rows, cols]`, whose first row is row `first` of the tensor `name`.
///
/// # Errors
/// If one is NaN or infinite.
pub(super) fn widened(stored: &WeightMatrix, name: &str, first: usize) -> Result<Vec<f32>, LoadError> {
    let cols = stored.cols();
    let mut values = vec![0.0; stored.rows() * cols];
    for (row, to) in values.chunks_exact_mut(cols).enumerate() {
        stored.widen_row(row, to);
    }
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => {
            let (row, col) = (first + at / cols, at % cols);
            Err(LoadError::NonFiniteWeight { tensor: name.to_owned(), row, col, value: values[at] })
        }
    }
}
