//! Connections: plain, or encrypted through the proxy that HTTPS_PROXY names.

use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};
use skein_tls::ClientTls;

use crate::proxied::Proxied;

/// Connects to `http` and `https` addresses.
pub(crate) type Connector = HttpsConnector<Proxied<HttpConnector>>;

/// A connector that gives up after `most`. Without `tls` no server is trusted.
pub(crate) fn connector(tls: Option<&ClientTls>, most: Duration) -> Connector {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(most));
    plain.set_nodelay(true);
    let proxied = Proxied::only_https(plain);
    HttpsConnector::from((proxied, tls.map_or_else(trusting_nobody, ClientTls::current)))
}

/// Reading the system's roots takes longer than most requests to a server without TLS.
fn trusting_nobody() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.unwrap_or_else(|error| unreachable!("ring has every default version: {error}"));
    Arc::new(versions.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}
