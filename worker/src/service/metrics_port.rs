//! A port of its own for metrics and health, without certificates and secrets: for Prometheus and for probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use skein_tls::PortTls;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::service::Routes;

use super::incoming::connections;
use super::scrape::scrape;
use crate::error::WorkerError;
use crate::metrics::Metrics;

/// Whether the worker accepts requests; clones share the answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub(super) fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Relaxed);
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self.0.load(Ordering::Relaxed) {
            true => (StatusCode::OK, "ok\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "the worker accepts no requests: it loads or stops\n"),
        }
    }
}

/// Serves the port until the result is dropped: also while the worker loads and drains.
pub(super) async fn open(
    at: Option<SocketAddr>,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
) -> Result<JoinSet<()>, WorkerError> {
    let mut serving = JoinSet::new();
    let Some(address) = at else { return Ok(serving) };
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| WorkerError::Listen { address, source })?;
    let incoming = connections(listener, PortTls::default());
    let routes = Routes::from(routes(metrics.clone(), readiness.clone()));
    let server = tonic::transport::Server::builder().accept_http1(true).add_routes(routes);
    serving.spawn(async move {
        if let Err(error) = server.serve_with_incoming(incoming).await {
            tracing::error!(%error, "the port for metrics ended");
        }
    });
    tracing::info!(%address, "metrics and health have a port of their own");
    Ok(serving)
}

fn routes(metrics: Arc<Metrics>, readiness: Readiness) -> Router {
    let ready = get(move || async move { readiness.status() });
    Router::new()
        .route("/metrics", get(scrape).with_state(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/health", ready.clone())
        .route("/readyz", ready)
}
