//! The contract between Skein's processes, and nothing else: generated protobuf types and services, the plain
//! types that both ends of a connection share, with conversions from and to protobuf, and the hash of prefix
//! blocks, which router and worker must compute alike.
//!
//! This crate contains no tasks, policies or models. Protobuf types stop at the edge that parsed them
//! (`worker::service`, `router::grpc`, `router::links`): inner modules use the plain types and never name
//! this crate's `v1` modules.

pub mod adapter;
pub mod block_hash;
pub mod delta;
pub mod finish;
pub mod info;
pub mod invalid;
pub mod load;
pub mod logprobs;
pub mod placement;
pub mod pooling;
pub mod runs;
mod same_fields;
pub mod sampling;
pub mod stream_key;
pub mod totals;
pub mod version;
pub mod watch;

/// A token of the model's vocabulary. A plain `u32`, because wire, scheduler and kernels pass tokens in bulk.
pub type TokenId = u32;

/// What is wrong with a message that no correct peer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Messages between gRPC clients and Skein (`skein.v1`).
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("skein.v1");
}

/// Messages between routers and workers (`skein.worker.v1`).
pub mod worker {
    /// Version 1 of the protocol; releases only add to it.
    #[allow(missing_docs, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("skein.worker.v1");
    }
}

/// The open inference protocol, version 2 (KServe), with Triton's extensions for streams.
#[allow(missing_docs, clippy::all)]
pub mod inference {
    tonic::include_proto!("inference");
}

/// The part of Envoy's API that an endpoint picker uses: external processing (`ext_proc`). The modules mirror
/// the packages, because generated code refers to them by path.
#[allow(missing_docs, clippy::all)]
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod filters {
            pub mod http {
                pub mod ext_proc {
                    pub mod v3 {
                        tonic::include_proto!("envoy.extensions.filters.http.ext_proc.v3");
                    }
                }
            }
        }
    }
    pub mod service {
        pub mod ext_proc {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ext_proc.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}

/// Encoded `FileDescriptorSet` of all packages, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Largest gRPC message between Skein's processes, in bytes. A prompt of a million tokens fits.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
