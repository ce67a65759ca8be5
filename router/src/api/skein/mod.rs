//! Skein's own API: the gRPC service skein.v1, and over HTTP what other APIs lack: tokenisation, health and
//! version, loading of adapters and of another version of the model. Where vLLM or SGLang has such a route,
//! it has their form.

mod adapters;
mod cluster;
pub mod convert;
mod health;
pub mod inference;
mod swaps;
#[cfg(test)]
pub mod tests;
mod tokenize;
mod welcome;

use axum::Router;
use axum::middleware::map_request_with_state;
use axum::routing::{get, post};

use crate::api::http::error::Refuse;
use crate::api::http::keys::require_admin;
use crate::api::http::metrics;
use crate::api::openai::error::OpenAiError;
use crate::app::App;

/// Routes that need a key.
pub fn routes(app: &App) -> Router<App> {
    Router::new()
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/version", get(health::version))
        .route("/v1/cluster", get(cluster::now))
        .route("/v1/cluster/events", get(cluster::events))
        .merge(admin_routes(app))
}

/// Routes that change what is served, which exist only if the operator allows it and need the admin key.
fn admin_routes(app: &App) -> Router<App> {
    let mut routes = Router::new();
    if app.config.has_operator() {
        routes = routes.route("/v1/cluster/workers/{worker}/drain", post(cluster::drain));
    }
    if app.config.runtime_adapters {
        routes = routes
            .route("/v1/load_lora_adapter", post(adapters::load))
            .route("/v1/unload_lora_adapter", post(adapters::unload));
    }
    if app.config.runtime_swaps && app.swaps.is_some() {
        routes = routes.route("/update_weights_from_disk", post(swaps::update));
    }
    let refuse: Refuse = OpenAiError::refuse;
    routes.layer(map_request_with_state(refuse, require_admin))
}

/// Routes that answer without a key. Metrics are among them unless they have a port of their own.
pub fn open_routes(app: &App) -> Router<App> {
    let open = Router::new().route("/", get(welcome::page)).merge(health_routes());
    if app.config.metrics.is_some() { open } else { open.merge(metrics_routes()) }
}

/// Health, for load balancers and probes.
pub fn health_routes() -> Router<App> {
    Router::new()
        .route("/health", get(health::ready))
        .route("/readyz", get(health::ready))
        .route("/livez", get(health::live))
}

/// Metrics, for Prometheus.
pub fn metrics_routes() -> Router<App> {
    Router::new().route("/metrics", get(metrics::scrape))
}
