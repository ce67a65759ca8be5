//! Connections: plain, or encrypted through the proxy that HTTPS_PROXY names.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use skein_tls::ClientTls;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

/// Connects to `http` and `https` addresses.
pub(crate) type Connector = HttpsConnector<Proxied>;

/// A connector that gives up after `most`. Without `tls` no server is trusted.
pub(crate) fn connector(tls: Option<&ClientTls>, most: Duration) -> Connector {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(most));
    plain.set_nodelay(true);
    let proxies = Arc::new(Matcher::from_env());
    HttpsConnector::from((Proxied { plain, proxies }, tls.map_or_else(trusting_nobody, ClientTls::current)))
}

/// Reading the system's roots takes longer than most requests to a server without TLS.
fn trusting_nobody() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.unwrap_or_else(|error| unreachable!("ring has every default version: {error}"));
    Arc::new(versions.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Connects directly, or for `https` through a proxy.
#[derive(Debug, Clone)]
pub(crate) struct Proxied {
    plain: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Service<Uri> for Proxied {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.plain.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let plain = self.plain.clone();
        let is_encrypted = to.scheme() == Some(&Scheme::HTTPS);
        let Some(proxy) = is_encrypted.then(|| self.proxies.intercept(&to)).flatten() else {
            return Box::pin(async move { Ok(plain.oneshot(to).await?) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), plain);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Box::pin(async move { Ok(tunnel.oneshot(to).await?) })
    }
}
