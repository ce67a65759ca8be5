//! Requests for vectors and scores: a call holds many texts or pairs, each of which is one request to the
//! cluster. [`draft`] is a call before validation, [`run`] runs its requests, [`values`] turns a model's
//! vectors into what clients get, [`refused`] says what a model is not for.

pub mod draft;
pub mod refused;
pub mod run;
pub mod values;
