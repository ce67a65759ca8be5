//! Downloads models by name. The cache on disk has the layout of Hugging Face's tools, so that both find each
//! other's downloads. The client downloads only files that Skein reads, and each appears only when complete.
//!
//! Only this crate uses TLS to servers on the internet. It does not interpret a model's files, except that an
//! index of weights names further files.

mod api;
pub mod cache;
mod checksum;
mod client;
mod connect;
pub mod environment;
pub mod error;
mod fetch;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
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
