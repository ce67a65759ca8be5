//! Models whose layers have recurrent states, run without a worker: agreement with transformers, and bits
//! that depend on nothing but the tokens.

#![allow(clippy::unwrap_used)]

mod goldens;
mod instance;
mod invariance;
mod random;
mod ranks;
mod stored;
