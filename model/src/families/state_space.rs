//! Fields of Mamba-2 layers that families share.

use serde_json::Value;

use crate::LoadError;
use crate::fields::Fields;

/// Most heads of a state space.
pub(super) const MAX_HEADS: usize = 4096;

/// Groups of `heads`, the number in `heads_field`.
pub(super) fn groups(
    fields: &Fields<'_>,
    field: &str,
    default: usize,
    heads: usize,
    heads_field: &str,
) -> Result<usize, LoadError> {
    let groups = fields.size(field, heads, Some(default))?;
    if !heads.is_multiple_of(groups) {
        return Err(fields.wrong(field, format!("a divisor of {heads_field}, {heads}")));
    }
    Ok(groups)
}

/// Values of `B` and of `C`.
pub(super) fn state_dim(fields: &Fields<'_>, field: &str, default: usize) -> Result<usize, LoadError> {
    let state_dim = fields.size(field, 1024, Some(default))?;
    if !state_dim.is_multiple_of(4) {
        return Err(fields.wrong(field, "a multiple of 4".into()));
    }
    Ok(state_dim)
}

/// Refuses limits of time: transformers itself has them only in prompts. Infinity is an object, as
/// version 5 writes it.
pub(super) fn check_time(fields: &Fields<'_>, field: &str) -> Result<(), LoadError> {
    let limits = fields.get(field).and_then(Value::as_array);
    let is_infinite = |limit: &Value| limit.is_null() || limit["__float__"] == "Infinity";
    let is_none =
        |limits: &Vec<Value>| limits.len() == 2 && limits[0].as_f64() == Some(0.0) && is_infinite(&limits[1]);
    if fields.is_absent(field) || limits.is_some_and(is_none) {
        return Ok(());
    }
    Err(fields.wrong(field, "from 0 to infinity".into()))
}
