//! The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as curl reads
//! them.

use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

type Failure = Box<dyn Error + Send + Sync>;

/// Connects by `plain`: directly, or through a tunnel of a proxy.
#[derive(Debug, Clone)]
pub struct Proxied<C> {
    plain: C,
    proxies: Arc<Matcher>,
    only_https: bool,
}

impl<C> Proxied<C> {
    /// Uses the proxies of this process' environment for all addresses.
    pub fn new(plain: C) -> Self {
        Self { plain, proxies: Arc::new(Matcher::from_env()), only_https: false }
    }

    /// Uses them for `https` addresses only: servers without TLS are on this network.
    pub fn only_https(plain: C) -> Self {
        Self { only_https: true, ..Self::new(plain) }
    }
}

impl<C> Service<Uri> for Proxied<C>
where
    C: Service<Uri, Response = TokioIo<TcpStream>, Error: Into<Failure>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = TokioIo<TcpStream>;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.plain.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let plain = self.plain.clone();
        let is_proxied = !self.only_https || to.scheme() == Some(&Scheme::HTTPS);
        let Some(proxy) = is_proxied.then(|| self.proxies.intercept(&to)).flatten() else {
            return Box::pin(async move { plain.oneshot(to).await.map_err(Into::into) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), plain);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Box::pin(async move { Ok(tunnel.oneshot(to).await?) })
    }
}
