//! MXFP4 (OCP 2023): 4-bit floats in groups of 32 inputs that share a power of two, as in GPT-OSS's experts.
//!
//! ```text
//! NAME_blocks u8 [E, N, K / 32, 16], the low half of a byte first
//! NAME_scales u8 [E, N, K / 32], exponents of two plus 127
//! ```

use safetensors::tensor::Dtype;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros};
use super::module::Module;
use super::raw::Raw;
use crate::LoadError;

/// Inputs per group.
pub(super) const GROUP: usize = 32;
/// Bytes of codes of a group.
const GROUP_BYTES: usize = GROUP / 2;
/// Magnitudes that E2M1 can represent.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The outputs of all experts as one matrix; `None` if the tensor is not in this form.
pub(super) fn find(module: &Module<'_>) -> Result<Option<StoredCodes>, LoadError> {
    let named = |end: &str| module.weights.raw(&format!("{}{end}", module.base));
    let Some(blocks) = named("_blocks") else { return Ok(None) };
    let scales = named("_scales").ok_or_else(|| LoadError::MissingTensor {
        tensor: format!("{}_scales", module.base),
        expected: "the scales of its blocks".into(),
        dir: module.weights.dir().to_owned(),
    })?;
    let (rows, groups) = (module.rows, module.cols / GROUP);
    let scales = of_powers(scales);
    let is_whole = |raw: &Raw, end: &[usize]| {
        let (first, last) = raw.shape.split_at(raw.shape.len().saturating_sub(end.len()));
        let outputs = first.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        raw.dtype == Dtype::U8 && last == end && first.len() == 2 && outputs == Some(rows)
    };
    let fits = module.cols.is_multiple_of(GROUP) && is_whole(&blocks, &[groups, GROUP_BYTES]);
    if !fits {
        let expected =
            format!("U8 [experts, outputs, {} / {GROUP}, {GROUP_BYTES}] of {rows} outputs", module.cols);
        return Err(module.wrong(&blocks, expected));
    }
    if !is_whole(&scales, &[groups]) {
        return Err(module.wrong(&scales, format!("U8 [experts, outputs, {groups}] of {rows} outputs")));
    }
    let scales = Raw { shape: vec![rows, groups], ..scales };
    Ok(Some(codes(module, &blocks, GROUP, Scales::Grid(Grid::by_output(&scales, 1)))))
}

/// Matrix of 4-bit floats (E2M1), `packed`, in groups of `group` inputs.
pub(super) fn codes(module: &Module<'_>, packed: &Raw, group: usize, scales: Scales) -> StoredCodes {
    StoredCodes {
        rows: module.rows,
        cols: module.cols,
        meaning: Meaning::Table,
        codes: Codes::Halves { bytes: packed.bytes.clone(), is_low_first: true },
        scales,
        zeros: Zeros::All(0),
        group,
        order: None,
        table: table(),
    }
}

/// Scales that a file may call powers of two, or bytes.
fn of_powers(raw: Raw) -> Raw {
    let dtype = if raw.dtype == Dtype::F8_E8M0 { Dtype::U8 } else { raw.dtype };
    Raw { dtype, ..raw }
}

/// Values of the sixteen codes.
pub(super) fn table() -> [f32; 16] {
    std::array::from_fn(|code| if code < 8 { E2M1[code] } else { -E2M1[code - 8] })
}

/// Scales of groups of `group` inputs; checks the shape of the codes, too.
pub(super) fn scales_of_floats(
    module: &Module<'_>,
    packed: &Raw,
    group: usize,
    dtype: Dtype,
) -> Result<Raw, LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    if packed.shape != [rows, cols / 2] || !cols.is_multiple_of(group) {
        return Err(module.wrong(packed, format!("U8 [{rows}, {cols} / 2], in groups of {group}")));
    }
    let dtypes = if dtype == Dtype::U8 { &[dtype, Dtype::F8_E8M0][..] } else { &[dtype] };
    module.get("weight_scale", dtypes, &[rows, cols / group]).map(of_powers)
}
