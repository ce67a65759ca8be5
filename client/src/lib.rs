//! Client of a running server, for commands that talk to one: HTTP/1.1 over TCP or TLS, kept connections, a
//! limit for every wait, errors that say what to do.
//!
//! Knows HTTP. Knows nothing of APIs and models.

mod connect;
mod error;
mod proxied;
mod request;
mod response;

pub use error::RequestError;
pub use proxied::Proxied;
pub use request::{Client, Limits, Request};
pub use response::Response;
