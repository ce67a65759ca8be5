//! A matrix as stored, of which a rank has a part, and an adapter's change to it: what is refused on every
//! device. A device only chooses a layout.

use super::LoadError;
use super::adapter::Delta;
use super::tensors::{StoredMatrix, Tensor};
use super::weight_source::WeightSource;
use crate::shard::Part;

/// A matrix of which a rank may have a part.
pub struct RankMatrix {
    /// The whole matrix, its rows in the checkpoint's order.
    pub whole: StoredMatrix,
    /// Change by an adapter, if any.
    pub delta: Option<Delta>,
}

impl RankMatrix {
    /// `tensor` in `source`, of which a rank has `part`.
    ///
    /// # Errors
    /// If it is missing, has the wrong shape, would be cut inside a block, or cannot be changed as the
    /// adapter changes it.
    pub fn find(tensor: &Tensor, part: &Part, source: WeightSource<'_>) -> Result<Self, LoadError> {
        let whole = tensor.find_matrix(source.weights)?;
        if let StoredMatrix::Numbers(numbers) = &whole {
            let (unit, start, end) = (numbers.storage().unit(), part.cols.start, part.cols.end);
            if !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
                return Err(LoadError::CutBlocks { tensor: tensor.name.clone(), unit, start, end });
            }
        }
        let delta = source.adapter.map_or(Ok(None), |adapter| adapter.delta(tensor))?;
        match why_unchangeable(&whole).filter(|_| delta.is_some()) {
            Some(reason) => Err(refused(tensor, reason)),
            None => Ok(Self { whole, delta }),
        }
    }
}

/// Why no adapter can be merged into a matrix, if none can.
fn why_unchangeable(stored: &StoredMatrix) -> Option<&'static str> {
    match stored {
        _ if stored.is_quantised() => {
            Some("it is quantised, and an adapter is merged into 16 or 32 bits only")
        }
        StoredMatrix::Columns(_) => {
            Some("it is stored with its inputs as rows, and an adapter cannot change such matrices")
        }
        StoredMatrix::Numbers(_) | StoredMatrix::Codes(_) => None,
    }
}

fn refused(tensor: &Tensor, reason: &str) -> LoadError {
    LoadError::CodedTensor { tensor: tensor.name.clone(), reason: reason.to_owned() }
}
