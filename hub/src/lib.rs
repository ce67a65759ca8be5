//! Models by name. The cache on disk has the layout of Hugging Face's own tools, so that each finds what the
//! others downloaded, and the client downloads the files that Skein reads, whole or not at all.
//!
//! This crate alone speaks TLS to servers on the internet. It knows nothing of what is in a model's files,
//! except that an index of weights names further files.

mod api;
pub mod cache;
mod checksum;
mod client;
mod connect;
pub mod environment;
pub mod error;
mod fetch;
mod files;
mod lock;
pub mod name;
mod partial;
pub mod pull;

pub use cache::{Cache, Cached};
pub use environment::Environment;
pub use error::HubError;
pub use files::Need;
pub use name::{ModelName, Revision};
pub use pull::{Hub, Progress, Watch};
