//! Where a request goes.

use std::net::SocketAddr;
use std::sync::Arc;

/// An endpoint, and the worker behind it.
#[derive(Debug, Clone)]
pub struct Destination {
    pub endpoint: SocketAddr,
    pub worker: Arc<str>,
}
