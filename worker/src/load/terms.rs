//! What all ranks of a group must have in common.

use std::path::Path;

use crate::error::WorkerError;
use crate::group::Terms;
use crate::model::fingerprint::fingerprint;

pub(super) fn terms(model: &Path, is_dummy: bool, arithmetic: &str) -> Result<Terms, WorkerError> {
    Ok(Terms {
        version: env!("CARGO_PKG_VERSION").into(),
        // Dummy weights are determined by their sizes.
        model: if is_dummy { 0 } else { fingerprint(model)? },
        arithmetic: arithmetic.into(),
    })
}
