//! Scales for a KV cache in FP8 that a quantiser measured: a factor from stored keys or values to keys or
//! values, for all heads of a layer.
//!
//! ```text
//! self_attn.k_scale         self_attn.v_scale         [] or [1]   compressed-tensors, vLLM
//! self_attn.k_proj.k_scale  self_attn.v_proj.v_scale              ModelOpt
//! self_attn.kv_scale                                              AutoFP8: for both
//! ```

use std::ops::Range;

use super::float;
use super::module::FLOATS;
use crate::LoadError;
use crate::checkpoint::SafetensorsFiles;

/// Scales of a layer's cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvScales {
    /// Factor from stored keys to keys.
    pub key: f32,
    /// Factor from stored values to values.
    pub value: f32,
}

impl KvScales {
    /// Of a layer without scales in the checkpoint.
    pub const NONE: Self = Self { key: 1.0, value: 1.0 };
}

const KEY_NAMES: [&str; 3] = ["k_scale", "k_proj.k_scale", "kv_scale"];
const VALUE_NAMES: [&str; 3] = ["v_scale", "v_proj.v_scale", "kv_scale"];

/// Scales of these layers. If a layer has only one of them, it applies to keys and values, as in vLLM.
///
/// # Errors
/// If a scale is not a positive number, or differs from head to head.
pub(crate) fn kv_scales(files: &SafetensorsFiles, layers: Range<usize>) -> Result<Vec<KvScales>, LoadError> {
    let of_layer = |layer| {
        let find = |names: [&str; 3]| {
            let mut names = names.iter().map(|name| format!("model.layers.{layer}.self_attn.{name}"));
            names.find(|name| files.contains(name)).map(|name| scale(files, &name)).transpose()
        };
        let (key, value) = (find(KEY_NAMES)?, find(VALUE_NAMES)?);
        Ok(key
            .or(value)
            .map_or(KvScales::NONE, |one| KvScales { key: key.unwrap_or(one), value: value.unwrap_or(one) }))
    };
    layers.map(of_layer).collect()
}

fn scale(files: &SafetensorsFiles, name: &str) -> Result<f32, LoadError> {
    let bad = |reason| LoadError::CodedTensor { tensor: name.to_owned(), reason };
    let Some((dtype, shape, bytes)) = files.slice(name) else {
        return Err(bad("it is outside its file".into()));
    };
    if !FLOATS.contains(&dtype) || shape.iter().product::<usize>() != 1 {
        return Err(bad(format!(
            "it is {dtype:?} {shape:?}; a KV cache in FP8 takes one F16, BF16 or F32 scale for all heads of a layer; \
             --kv-cache-dtype auto does not need it"
        )));
    }
    let scale = float(bytes, dtype, 0);
    if !scale.is_normal() || scale < 0.0 {
        return Err(bad(format!("its value is {scale}, expected a positive number")));
    }
    Ok(scale)
}
