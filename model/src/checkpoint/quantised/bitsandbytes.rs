//! NF4 and FP4 as stored by bitsandbytes (QLoRA, arXiv 2305.14314): 4-bit indices into a table, and a scale
//! per block of values, which may itself be quantised.
//!
//! ```text
//! weight                                u8 [N * K / 2, 1]   indices, the high half of a byte first
//! weight.quant_map                      f32 [16]
//! weight.absmax                         f32 [N * K / block], or u8 if nested:
//! weight.nested_quant_map               f32 [256]
//! weight.nested_absmax                  f32 [blocks / nested_blocksize]
//! weight.quant_state.bitsandbytes__nf4  u8: a JSON object
//! ```
//!
//! With `bnb_4bit_quant_storage`, the same bytes of `weight` count as bf16, f16 or f32.

use safetensors::tensor::Dtype;
use serde_json::Value;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros, float};
use super::module::Module;
use super::raw::Raw;
use crate::LoadError;

/// Values of NF4's codes.
pub(super) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
/// Values of FP4's codes.
pub(super) const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_5,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    0.0,
    -0.005_208_333_5,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];
/// Tensor with the values of a matrix's codes.
const TABLE: &str = "weight.quant_map";
/// Weights per scale unless a file says otherwise.
pub(super) const BLOCK: usize = 64;

/// Quantisation state in the JSON object.
struct State {
    block: usize,
    nested_block: usize,
    offset: f32,
}

pub(super) fn find(module: &Module<'_>) -> Result<Option<StoredCodes>, LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    // Other weights have no table.
    let is_coded = |raw: &Raw| raw.dtype == Dtype::U8 || module.find(TABLE).is_some();
    let Some(weight) = module.find("weight").filter(is_coded) else { return Ok(None) };
    let bytes = (rows * cols).div_ceil(2);
    if weight.bytes.len() != bytes {
        let expected = format!("{bytes} bytes, as U8 [{bytes}, 1]: two of {rows} x {cols} weights a byte");
        return Err(module.wrong(&weight, expected));
    }
    let state = state(module)?;
    if !cols.is_multiple_of(state.block) {
        let reason = format!("its blocks of {} weights do not divide rows of {cols}", state.block);
        return Err(module.bad(&weight.name, reason));
    }
    let map = module.get(TABLE, &[Dtype::F32], &[16])?;
    Ok(Some(StoredCodes {
        rows,
        cols,
        meaning: Meaning::Table,
        codes: Codes::Halves { bytes: weight.bytes, is_low_first: false },
        scales: scales(module, &state)?,
        zeros: Zeros::All(0),
        group: state.block,
        order: None,
        table: std::array::from_fn(|i| float(&map.bytes, Dtype::F32, i)),
    }))
}

fn state(module: &Module<'_>) -> Result<State, LoadError> {
    let found = ["nf4", "fp4"].map(|kind| module.find(&format!("weight.quant_state.bitsandbytes__{kind}")));
    let raw = found.into_iter().flatten().next();
    let raw = raw.ok_or_else(|| {
        module.missing("weight.quant_state.bitsandbytes__nf4", "a JSON object as U8".into())
    })?;
    let bad = |reason: String| module.bad(&raw.name, reason);
    let object: Value =
        serde_json::from_slice(&raw.bytes).map_err(|error| bad(format!("not a JSON object: {error}")))?;
    let size = |field: &str, default: Option<u64>| {
        let value = object.get(field).map_or(default, Value::as_u64);
        let value = value.filter(|value| (1..=1 << 20).contains(value)).map(|value| value as usize);
        value.ok_or_else(|| bad(format!("{field} is {:?}; allowed: 1 to 1048576", object.get(field))))
    };
    let shape: Option<Vec<u64>> =
        object.get("shape").and_then(Value::as_array).map(|of| of.iter().filter_map(Value::as_u64).collect());
    if shape.as_deref() != Some(&[module.rows as u64, module.cols as u64]) {
        return Err(bad(format!("shape is {shape:?}, expected [{}, {}]", module.rows, module.cols)));
    }
    Ok(State {
        block: size("blocksize", None)?,
        nested_block: size("nested_blocksize", Some(256))?,
        offset: object.get("nested_offset").and_then(Value::as_f64).unwrap_or_default() as f32,
    })
}

fn scales(module: &Module<'_>, state: &State) -> Result<Scales, LoadError> {
    let row_groups = module.cols / state.block;
    let groups = module.rows * row_groups;
    let absmax = module.get("weight.absmax", &[Dtype::F32, Dtype::U8], &[groups])?;
    if absmax.dtype == Dtype::F32 {
        return Ok(Scales::Grid(Grid { row: row_groups, ..Grid::by_output(&absmax, 1) }));
    }
    let floats =
        |raw: Raw| -> Vec<f32> { (0..raw.shape[0]).map(|i| float(&raw.bytes, Dtype::F32, i)).collect() };
    let nested = groups.div_ceil(state.nested_block);
    Ok(Scales::Nested {
        table: floats(module.get("weight.nested_quant_map", &[Dtype::F32], &[256])?),
        scales: floats(module.get("weight.nested_absmax", &[Dtype::F32], &[nested])?),
        codes: absmax.bytes,
        codes_each: state.nested_block,
        offset: state.offset,
        row_groups,
    })
}
