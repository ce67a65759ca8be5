//! Connections: TLS with the system's roots, through a proxy if the environment specifies one.

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use skein_client::Proxied;
use skein_tls::ClientTls;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

/// Timeout for a TCP connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for looking up a server's name. The system's own is 5 s for each attempt and name server.
const RESOLVE_WITHIN: Duration = Duration::from_secs(4);

/// Connects to `http` and `https` addresses.
pub type Connector = HttpsConnector<Proxied<HttpConnector<Resolver>>>;

/// Connector for this process's environment: HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE and others.
pub fn connector() -> Connector {
    let mut plain = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(CONNECT_WITHIN));
    plain.set_nodelay(true);
    HttpsConnector::from((Proxied::new(plain), ClientTls::of_system().current()))
}

/// A server's name has no address, as on a machine without a network.
#[derive(Debug, thiserror::Error)]
#[error("`{host}` has no address: {why}")]
pub struct Unresolved {
    /// Name that was looked up.
    pub host: String,
    /// Reason of the system's resolver.
    pub why: String,
}

/// The system's resolver, with a timeout and an error of its own.
#[derive(Debug, Clone)]
pub struct Resolver(GaiResolver);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Unresolved;
    type Future = BoxFuture<'static, Result<Self::Response, Unresolved>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unresolved>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let system = self.0.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            match timeout(RESOLVE_WITHIN, system.oneshot(name)).await {
                Ok(Ok(found)) => Ok(found.collect::<Vec<_>>().into_iter()),
                Ok(Err(error)) => Err(Unresolved { host, why: error.to_string() }),
                Err(_) => {
                    let why = format!("no name server answered within {} s", RESOLVE_WITHIN.as_secs());
                    Err(Unresolved { host, why })
                }
            }
        })
    }
}
