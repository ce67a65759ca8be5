//! What all ranks of a group must have in common.

use skein_model::fingerprint::fingerprint;

use crate::config::{DeviceKind, LoadFormat, WorkerConfig};
use crate::error::WorkerError;
use crate::group::Terms;

/// Terms of a rank on `device` with `arithmetic`.
pub(super) fn terms(
    config: &WorkerConfig,
    device: DeviceKind,
    arithmetic: &str,
) -> Result<Terms, WorkerError> {
    // Dummy weights are determined by their sizes.
    let is_dummy = device == DeviceKind::Cuda && config.cuda.load_format == LoadFormat::Dummy;
    Ok(Terms {
        version: env!("CARGO_PKG_VERSION").into(),
        model: if is_dummy { 0 } else { fingerprint(&config.model)? },
        arithmetic: arithmetic.into(),
    })
}
