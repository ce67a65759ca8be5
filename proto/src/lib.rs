//! The contract between Skein's processes, and nothing else: generated protobuf types and services, the plain types
//! that both sides of a wire share, each with its wire form, and the prefix-block hash that router and worker must
//! compute alike.
//!
//! This crate knows no tasks, no policy and no model. Protobuf types stop at the edge that parsed them
//! (`worker::service`, `router::grpc`, `router::links`): deeper rooms use the plain types, and nothing there names
//! this crate's `v1` modules.

pub mod block_hash;
pub mod delta;
pub mod finish;
pub mod info;
pub mod invalid;
pub mod load;
pub mod logprobs;
pub mod placement;
pub mod runs;
mod same_fields;
pub mod sampling;
pub mod stream_key;
pub mod watch;

/// A token of the model's vocabulary. A plain `u32`: tokens travel in bulk between wire, scheduler and kernels.
pub type TokenId = u32;

/// A message that no process of ours sends: what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// What gRPC clients say to Skein (`skein.v1`).
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("skein.v1");
}

/// What router and worker say to each other (`skein.worker.v1`).
pub mod worker {
    /// Version 1.
    #[allow(missing_docs, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("skein.worker.v1");
    }
}

/// The encoded `FileDescriptorSet` of both packages, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Most bytes of one gRPC message between Skein's processes: a million-token prompt fits, a flood does not.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
