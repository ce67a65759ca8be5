//! The cryptography: ring. Passed to every builder, so that no process-wide default is needed.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
