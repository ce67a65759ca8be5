//! A model: its configuration, weights and forward pass. It knows batches, but neither requests nor
//! scheduling.
//!
//! Everything read from a model directory is validated here, like any other input. Errors name the file, the
//! field, its value and the allowed values.

pub mod adapter;
pub mod adapter_changes;
mod adapter_config;
mod adapter_copies;
mod adapter_modules;
pub mod checkpoint;
pub mod config;
mod contradictions;
pub mod cost;
mod end_tokens;
mod error;
pub mod families;
pub mod fields;
pub mod fingerprint;
pub mod formats;
pub mod kv_blocks;
pub mod on_cpu;
pub mod on_cuda;
pub mod operations;
pub mod pooled_head;
pub mod pooling;
mod pooling_files;
mod positions;
pub mod rank_matrix;
pub mod role;
mod rope;
mod sentence_modules;
pub mod served_adapter;
pub mod shard;
pub mod spec;
pub mod state_spec;
pub mod tensors;
mod tied;
pub mod weight_source;

pub use error::LoadError;
