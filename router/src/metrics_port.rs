//! A port of its own for metrics and health, which needs no key: for Prometheus and for probes.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Body;
use skein_tls::PortTls;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::api;
use crate::app::App;
use crate::limits::ConnectionLimits;
use crate::repository::Repository;
use crate::serve::accept_until;
use crate::shards::Shards;
use crate::unread::RequestBody;

/// How long a connection stays open after an answer: longer than the usual pauses between scrapes and probes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Scrapers and probes are few.
const LIMITS: ConnectionLimits =
    ConnectionLimits { total: 256, per_address: None, idle_timeout: IDLE_TIMEOUT };

/// Serves `service` on `at`, if there is such a port, until the result is dropped: also while the process
/// drains.
///
/// # Errors
/// If the address cannot be used.
pub async fn open<F, B>(
    at: Option<SocketAddr>,
    service: impl Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
) -> io::Result<JoinSet<()>>
where
    F: Future<Output = http::Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let mut serving = JoinSet::new();
    if let Some(at) = at {
        let unusable = |error: io::Error| {
            io::Error::new(error.kind(), format!("--metrics-port: cannot listen on {at}: {error}"))
        };
        let listener = TcpListener::bind(at).await.map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        tracing::info!(%address, "metrics and health have a port of their own");
        let never = std::future::pending::<()>();
        let here = Shards::start(0)?;
        serving.spawn(async move {
            accept_until(listener, &here, PortTls::default(), service, LIMITS, never).await;
        });
    }
    Ok(serving)
}

/// [`open`] for a router, as its configuration says.
///
/// # Errors
/// If the address cannot be used.
pub async fn of_router(app: &App) -> io::Result<JoinSet<()>> {
    of_routes(app.config.metrics, api::metrics_port(app.clone())).await
}

/// [`open`] for a server of several models.
///
/// # Errors
/// As [`open`].
pub async fn of_repository(models: &Repository) -> io::Result<JoinSet<()>> {
    of_routes(models.config().metrics, api::repository::metrics_port(models.clone())).await
}

async fn of_routes(at: Option<SocketAddr>, routes: Router) -> io::Result<JoinSet<()>> {
    open(at, move |request| {
        let routes = routes.clone();
        async move { routes.oneshot(request).await.unwrap_or_else(|never| match never {}) }
    })
    .await
}
