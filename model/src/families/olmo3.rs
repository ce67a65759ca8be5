//! OLMo 3 (OLMo Team 2025): OLMo 2 with a window in three of four layers. Only the other layers scale their
//! rotation.

use serde_json::Map;
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{in_groups, window, windowed};
use super::olmo2;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::{RopeDefaults, object, read, rope};
use crate::spec::Spec;

// Defaults of transformers' `Olmo3Config`.
const SLIDING_WINDOW: usize = 4096;
const SLIDING_WINDOW_PATTERN: usize = 4;
const ROPE: RopeDefaults = RopeDefaults { theta: 500_000.0, partial: 1.0 };

/// Rotation index of layers without and with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;
/// Names of the kinds of layers, in the order of their rotations.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

pub fn olmo3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = olmo2::olmo2(fields)?;
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let is_local = windowed(fields, spec.layers.len(), in_groups(SLIDING_WINDOW_PATTERN))?;
    for (layer, is_local) in spec.layers.iter_mut().zip(is_local) {
        (layer.window, layer.rotation) = if is_local { (window, LOCAL) } else { (None, GLOBAL) };
    }
    spec.rotations = rotations(fields, spec.attention.head_dim)?;
    Ok(spec)
}

/// Both rotations. `rope_parameters` may have an object for each kind of layer. Otherwise both kinds have the
/// same base, and only layers without a window are scaled. (Version 5 of transformers then gives the default
/// base to layers with a window.)
fn rotations(fields: &Fields<'_>, head_dim: usize) -> Result<Vec<Rotation>, LoadError> {
    let empty = Map::new();
    let parameters = object(fields, "rope_parameters")?.unwrap_or(&empty);
    let parameters = Fields { file: fields.file, object: parameters };
    if KINDS.iter().any(|kind| !parameters.is_absent(kind)) {
        let of = |kind| {
            let of_kind = object(&parameters, kind)?.unwrap_or(&empty);
            let of_kind = Fields { file: fields.file, object: of_kind };
            read(fields, &of_kind, head_dim, ROPE).map(|(rotation, _)| rotation)
        };
        return KINDS.into_iter().map(of).collect();
    }
    let of_theta = if parameters.is_absent("rope_theta") { fields } else { &parameters };
    let theta = of_theta.number("rope_theta", 1.0..=1e15, Some(ROPE.theta))?;
    Ok(vec![rope(fields, head_dim, ROPE)?.0, Rotation::plain(head_dim, theta)])
}
