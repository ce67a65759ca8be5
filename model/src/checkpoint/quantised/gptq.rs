//! GPTQ (arXiv 2210.17323) as stored by GPTQModel and AutoGPTQ.
//!
//! ```text
//! qweight  i32 [K * bits / 32, N]   codes, filled along the inputs
//! qzeros   i32 [G, N * bits / 32]   zero points, filled along the outputs; in version 1 less one
//! scales   f16 [G, N]
//! g_idx    i32 [K]                  group of each input; optional
//! ```

use safetensors::tensor::Dtype;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros, order};
use super::module::{FLOATS, Module};
use super::scheme::{GPTQ_BITS, Gptq};
use crate::LoadError;

pub(super) fn find(module: &Module<'_>, scheme: &Gptq) -> Result<Option<StoredCodes>, LoadError> {
    let Some(words) = module.find("qweight") else { return Ok(None) };
    let (rows, cols) = (module.rows, module.cols);
    // The configuration may override the width for some modules; it then follows from the shape.
    let allowed = if scheme.has_overrides { &GPTQ_BITS[..] } else { &[scheme.bits][..] };
    let is_of =
        |bits: &&usize| words.shape == [cols * **bits / 32, rows] && (cols * **bits).is_multiple_of(32);
    let Some(&bits) = allowed.iter().find(is_of).filter(|_| words.dtype == Dtype::I32) else {
        let expected = format!("I32 [{cols} * bits / 32, {rows}] with bits of {allowed:?}");
        return Err(module.wrong(&words, expected));
    };
    if !(rows * bits).is_multiple_of(32) {
        return Err(module.wrong(&words, "outputs that fill whole words of zero points".into()));
    }
    let mut group = scheme.group.unwrap_or(cols).min(cols);
    if scheme.has_overrides {
        group = module.group_of_scales().unwrap_or(group);
    }
    let scales = module.get("scales", &FLOATS, &[cols.div_ceil(group), rows])?;
    let zeros = module.get("qzeros", &[Dtype::I32], &[cols.div_ceil(group), rows * bits / 32])?;
    let order = match module.find("g_idx") {
        None => None,
        Some(_) => order(module, &module.get("g_idx", &[Dtype::I32], &[cols])?, group)?,
    };
    Ok(Some(StoredCodes {
        rows,
        cols,
        meaning: if bits == 8 { Meaning::Int8 } else { Meaning::Int4 },
        codes: Codes::DownInputs { words: words.bytes, bits },
        scales: Scales::Grid(Grid::by_group(&scales)),
        zeros: Zeros::AlongOutputs { words: zeros.bytes, bits, is_less_one: !scheme.is_v2 },
        group,
        order,
        table: [0.0; 16],
    }))
}
