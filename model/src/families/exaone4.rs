//! EXAONE 4 (LG AI Research 2025): normalised outputs instead of inputs, and normalised heads. In models with
//! windows, only windowed layers rotate.

use serde_json::Value;
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Defaults, in_groups, silu_decoder, window, windowed};
use super::olmo2;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{NormPlace, QkNorm, Spec};

// Defaults of transformers' `Exaone4Config`.
const EPS: f64 = 1e-5;
const SLIDING_WINDOW: usize = 4096;
const SLIDING_WINDOW_PATTERN: usize = 4;

pub fn exaone4(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults { eps: EPS, ..Defaults::USUAL })?;
    spec.attention.qk_norm = QkNorm::Heads;
    spec.norm.place = NormPlace::Outputs;
    let has_windows = !fields.get("sliding_window").is_some_and(Value::is_null);
    if has_windows {
        spec.rotations.push(Rotation::none(spec.attention.head_dim));
        let window = window(fields, Some(SLIDING_WINDOW))?;
        let is_local = local(fields, spec.layers.len())?;
        for (layer, is_local) in spec.layers.iter_mut().zip(is_local) {
            (layer.window, layer.rotation) = (window.filter(|_| is_local), usize::from(!is_local));
        }
    }
    Ok(Spec { names: olmo2::names, ..spec })
}

/// Whether each layer has a window: by `layer_types`, or else by `sliding_window_pattern`, a number or
/// letters.
fn local(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const PATTERN: &str = "sliding_window_pattern";
    if !fields.is_absent("layer_types") {
        return windowed(fields, layers, |_| false);
    }
    let Some(letters) = fields.get(PATTERN).and_then(Value::as_str) else {
        let pattern = fields.size(PATTERN, 4096, Some(SLIDING_WINDOW_PATTERN))?;
        return Ok((0..layers).map(in_groups(pattern)).collect());
    };
    if letters.is_empty() || letters.bytes().any(|letter| !b"LG".contains(&letter)) {
        return Err(fields.wrong(PATTERN, "a number, or letters L (with a window) and G (without)".into()));
    }
    // The last layer has no window, whatever its letter is.
    let letter = |layer: usize| letters.as_bytes()[layer % letters.len()];
    Ok((0..layers).map(|layer| layer + 1 < layers && letter(layer) == b'L').collect())
}
