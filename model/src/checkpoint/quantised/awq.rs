//! AWQ (arXiv 2306.00978) in AutoAWQ's layout `gemm`.
//!
//! ```text
//! qweight  i32 [K, N / 8]   codes of 4 bits; output 8c + [0, 2, 4, 6, 1, 3, 5, 7][i] is place i of word c
//! qzeros   i32 [G, N / 8]   likewise
//! scales   f16 [G, N]
//! ```

use safetensors::tensor::Dtype;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros};
use super::module::{FLOATS, Module};
use super::scheme::Awq;
use crate::LoadError;

pub(super) fn find(module: &Module<'_>, scheme: &Awq) -> Result<Option<StoredCodes>, LoadError> {
    let Some(words) = module.find("qweight") else { return Ok(None) };
    let (rows, cols) = (module.rows, module.cols);
    if !rows.is_multiple_of(8) {
        return Err(module.wrong(&words, format!("a multiple of 8 outputs, not {rows}")));
    }
    let words = module.get("qweight", &[Dtype::I32], &[cols, rows / 8])?;
    let mut group = scheme.group.unwrap_or(cols).min(cols);
    if scheme.has_overrides {
        group = module.group_of_scales().unwrap_or(group);
    }
    let scales = module.get("scales", &FLOATS, &[cols.div_ceil(group), rows])?;
    let zeros = module.get("qzeros", &[Dtype::I32], &[cols.div_ceil(group), rows / 8])?;
    Ok(Some(StoredCodes {
        rows,
        cols,
        meaning: Meaning::Int4,
        codes: Codes::Awq { words: words.bytes },
        scales: Scales::Grid(Grid::by_group(&scales)),
        zeros: Zeros::Awq { words: zeros.bytes },
        group,
        order: None,
        table: [0.0; 16],
    }))
}
