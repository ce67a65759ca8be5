//! compressed-tensors, the format of llm-compressor.
//!
//! ```text
//! pack-quantized   weight_packed i32 [N, K * bits / 32], filled along the inputs with code + 2^(bits - 1),
//!                  weight_zero_point i32 [N * bits / 32, G] likewise, filled along the outputs,
//!                  weight_scale [N, G], weight_g_idx i32 [K]
//! int-quantized    weight i8 [N, K], weight_scale [N, G] or [1], weight_zero_point i8 [N, G]
//! float-quantized  weight e4m3 [N, K], weight_scale: see `fp8`
//! mxfp4-pack-...   weight_packed u8 [N, K / 2], the low half of a byte first; weight_scale u8 [N, K / 32],
//!                  exponents of two plus 127
//! nvfp4-pack-...   weight_packed likewise; weight_scale e4m3 [N, K / 16], which are divided by
//!                  weight_global_scale f32 [1]
//! ```

use safetensors::tensor::Dtype;

use super::matrix::{Codes, Grid, Meaning, Scales, StoredCodes, Zeros, order};
use super::module::{FLOATS, Module};
use super::raw::Raw;
use super::scheme::{COMPRESSED_BITS, Compressed, Fp8};
use super::{fp8, mxfp4, nvfp4};
use crate::LoadError;

pub(super) fn find(module: &Module<'_>, scheme: &Compressed) -> Result<Option<StoredCodes>, LoadError> {
    if let Some(packed) = module.find("weight_packed") {
        let is_nv = module.find("weight_global_scale").is_some();
        let read = match packed.dtype {
            Dtype::U8 if is_nv => nv_floats,
            Dtype::U8 => mx_floats,
            _ => packed_codes,
        };
        return read(module, &packed).map(Some);
    }
    match module.find("weight").map(|raw| raw.dtype) {
        Some(Dtype::I8) => bytes(module).map(Some),
        Some(Dtype::F8_E4M3) => fp8::find(module, &Fp8 { block: scheme.block }),
        _ => Ok(None),
    }
}

/// Scales `[N, G]`, and the number of inputs per group.
fn scales(module: &Module<'_>) -> Result<(Raw, usize), LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    let scale = module.find("weight_scale");
    let scale = scale.ok_or_else(|| module.missing("weight_scale", format!("[{rows}, groups]")))?;
    let groups = match scale.shape.as_slice() {
        [1] | [1, 1] => 1,
        [outputs] if *outputs == rows => 1,
        [outputs, groups] if *outputs == rows => *groups,
        _ => 0,
    };
    if groups == 0 || !cols.is_multiple_of(groups) || !FLOATS.contains(&scale.dtype) {
        return Err(
            module.wrong(&scale, format!("F16, BF16 or F32 [{rows}, groups of {cols} inputs] or [1]"))
        );
    }
    Ok((scale, cols / groups))
}

fn grid(module: &Module<'_>, scale: &Raw) -> Grid {
    let is_single = scale.shape.iter().product::<usize>() == 1 && module.rows > 1;
    if is_single { Grid::single(scale) } else { Grid::by_output(scale, 1) }
}

fn packed_codes(module: &Module<'_>, packed: &Raw) -> Result<StoredCodes, LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    let is_of = |bits: &&usize| packed.shape == [rows, (cols * **bits).div_ceil(32)];
    let Some(&bits) = COMPRESSED_BITS.iter().find(is_of).filter(|_| packed.dtype == Dtype::I32) else {
        return Err(module.wrong(packed, format!("I32 [{rows}, {cols} * bits / 32] with 4 or 8 bits")));
    };
    let (scale, group) = scales(module)?;
    let zeros = match module.find("weight_zero_point") {
        None => Zeros::All(1 << (bits - 1)),
        Some(_) => {
            let shape = [(rows * bits).div_ceil(32), cols / group];
            let words = module.get("weight_zero_point", &[Dtype::I32], &shape)?.bytes;
            Zeros::DownOutputs { words, bits }
        }
    };
    let order = match module.find("weight_g_idx") {
        None => None,
        Some(_) => order(module, &module.get("weight_g_idx", &[Dtype::I32], &[cols])?, group)?,
    };
    Ok(StoredCodes {
        rows,
        cols,
        meaning: if bits == 8 { Meaning::Int8 } else { Meaning::Int4 },
        codes: Codes::AlongInputs { words: packed.bytes.clone(), bits, each: packed.shape[1] },
        scales: Scales::Grid(grid(module, &scale)),
        zeros,
        group,
        order,
        table: [0.0; 16],
    })
}

fn mx_floats(module: &Module<'_>, packed: &Raw) -> Result<StoredCodes, LoadError> {
    let scale = mxfp4::scales_of_floats(module, packed, mxfp4::GROUP, Dtype::U8)?;
    Ok(mxfp4::codes(module, packed, mxfp4::GROUP, Scales::Grid(Grid::by_output(&scale, 1))))
}

fn nv_floats(module: &Module<'_>, packed: &Raw) -> Result<StoredCodes, LoadError> {
    let scale = mxfp4::scales_of_floats(module, packed, nvfp4::GROUP, Dtype::F8_E4M3)?;
    let by = nvfp4::of_matrix(module, "weight_global_scale")?;
    Ok(mxfp4::codes(module, packed, nvfp4::GROUP, Scales::Divided(Grid::by_output(&scale, 1), by)))
}

fn bytes(module: &Module<'_>) -> Result<StoredCodes, LoadError> {
    let (rows, cols) = (module.rows, module.cols);
    let weight = module.get("weight", &[Dtype::I8], &[rows, cols])?;
    let (scale, group) = scales(module)?;
    let zeros = match module.find("weight_zero_point") {
        None => Zeros::All(128),
        Some(_) => Zeros::Bytes(module.get("weight_zero_point", &[Dtype::I8], &[rows, cols / group])?.bytes),
    };
    Ok(StoredCodes {
        rows,
        cols,
        meaning: Meaning::Int8,
        codes: Codes::Bytes { bytes: weight.bytes, flip: 0x80 },
        scales: Scales::Grid(grid(module, &scale)),
        zeros,
        group,
        order: None,
        table: [0.0; 16],
    })
}
