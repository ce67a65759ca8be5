//! One replica of a model: a scheduler over a paged KV cache, an engine loop, a backend, and the gRPC service
//! in front. It knows neither the router nor HTTP nor text.
//!
//! Dependencies point inward: `service → load → {adapters, engine} → {metrics, streams, draft_model →
//! scheduler → draft → kv_cache, group → backend → model → kernels}`. The scheduler never sees a tensor, the
//! backend never sees a request, and protobuf stops in `service`.

pub mod adapters;
pub mod backend;
pub mod check;
pub mod config;
pub mod draft;
pub mod draft_model;
pub mod engine;
mod epoch;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
pub mod kv_cache;
pub mod load;
pub mod metrics;
mod path;
pub mod quality;
pub mod scheduler;
pub mod service;
pub mod streams;

pub use backend::cuda::visible_gpus;
pub use error::WorkerError;
pub use service::serve;
pub use skein_proto::TokenId;

/// Index of a block of KV slots in the backend's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);
