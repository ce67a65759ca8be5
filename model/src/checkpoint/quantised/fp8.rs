//! FP8 (E4M3) with a scale for the whole matrix, for each output, or for each block, in the checkpoints of
//! DeepSeek, Qwen, ModelOpt and compressed-tensors. Weights are multiplied by the scale under any of its
//! names.
//!
//! ```text
//! weight            e4m3 [N, K]
//! weight_scale_inv  or weight_scale: [], [1], [N, 1] or [blocks of N, blocks of K]; floats or e8m0
//! ```
//!
//! Activations stay `f32`, so their scales (`input_scale`) are ignored.

use safetensors::tensor::Dtype;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros};
use super::module::{FLOATS, Module};
use super::raw::Raw;
use super::scheme::Fp8;
use crate::LoadError;

pub(super) fn find(module: &Module<'_>, scheme: &Fp8) -> Result<Option<StoredCodes>, LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    let Some(weight) = module.find("weight").filter(|raw| raw.dtype == Dtype::F8_E4M3) else {
        return Ok(None);
    };
    let weight = module.get("weight", &[weight.dtype], &[rows, cols])?;
    let scale = module.find("weight_scale_inv").or_else(|| module.find("weight_scale"));
    let scale =
        scale.ok_or_else(|| module.missing("weight_scale", "a scale, or one for each block".into()))?;
    let (scales, group) = scales(module, scheme, &scale)?;
    Ok(Some(StoredCodes {
        rows,
        cols,
        meaning: Meaning::Fp8,
        codes: Codes::Bytes { bytes: weight.bytes, flip: 0 },
        scales: Scales::Grid(scales),
        zeros: Zeros::All(0),
        group,
        order: None,
        table: [0.0; 16],
    }))
}

/// Scales, and the number of inputs that share one.
fn scales(module: &Module<'_>, scheme: &Fp8, scale: &Raw) -> Result<(Grid, usize), LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    let wrong = || {
        let blocks = scheme.block.map_or(String::new(), |[of_rows, of_cols]| {
            format!(" or [{}, {}]", rows.div_ceil(of_rows), cols.div_ceil(of_cols))
        });
        module.wrong(scale, format!("F16, BF16, F32 or F8_E8M0 [], [1], [{rows}, 1]{blocks}"))
    };
    if !FLOATS.contains(&scale.dtype) && scale.dtype != Dtype::F8_E8M0 {
        return Err(wrong());
    }
    match (scale.shape.as_slice(), scheme.block) {
        ([] | [1] | [1, 1], None) => Ok((Grid::single(scale), cols)),
        ([outputs] | [outputs, 1], None) if *outputs == rows => {
            let grid = Grid { row: 1, ..Grid::by_output(scale, 1) };
            Ok((grid, cols))
        }
        ([down, along], Some([of_rows, of_cols]))
            if [*down, *along] == [rows.div_ceil(of_rows), cols.div_ceil(of_cols)] =>
        {
            Ok((Grid::by_output(scale, of_rows), of_cols))
        }
        _ => Err(wrong()),
    }
}
