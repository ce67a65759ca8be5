//! What is said of all models together: health, metrics and the cluster.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use skein_node::clock;
use skein_node::metrics::{Format, encode, merged};

use super::lists::status_json;
use crate::api::http::query::UrlQuery;
use crate::api::http::sse;
use crate::api::kserve::rest::error::KserveError;
use crate::api::openai::error::OpenAiError;
use crate::api::skein::cluster::{INTERVAL, SHOWN_MOVES, SHOWN_REQUESTS, Viewer, seconds, snapshot};
use crate::metrics::Metrics;
use crate::metrics::recent::Watcher;
use crate::refusal::Refusal;
use crate::repository::{Entry, ModelStatus, Repository};

/// `GET /health` and `GET /readyz`.
pub async fn ready(State(models): State<Repository>) -> Result<Json<Value>, OpenAiError> {
    models.ready()?;
    Ok(Json(json!({"status": "ok"})))
}

/// `GET /v2/health/ready`.
pub async fn kserve_ready(State(models): State<Repository>) -> Result<Json<Value>, KserveError> {
    models.ready()?;
    Ok(Json(json!({"ready": true})))
}

/// `GET /metrics`: those of the process, and those of each model in memory.
pub async fn metrics(State(models): State<Repository>, headers: HeaderMap) -> impl IntoResponse {
    let format = Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let of_apps = models.apps().into_iter();
    let of_apps = of_apps.map(|app| app.metrics.gather(&*app.fleet, app.text.tokenizer.kept_counts()));
    let all = merged(std::iter::once(models.metrics().gather()).chain(of_apps));
    ([(CONTENT_TYPE, format.content_type())], encode(&all, format))
}

/// `GET /v1/cluster`; `?model=` shows one model in memory.
pub async fn cluster(State(models): State<Repository>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let viewer = Viewer::of(request.extensions(), models.config());
    Ok(Json(shown(&models, &viewer, only(request.uri())?.as_deref())?))
}

/// `GET /v1/cluster/events`: an event `snapshot` now and each second, until the server shuts down.
pub async fn events(State(models): State<Repository>, request: Request) -> Result<Response, OpenAiError> {
    let viewer = Viewer::of(request.extensions(), models.config());
    let only = only(request.uri())?;
    let mut watched = Watched::new();
    watch(&models, &viewer, &mut watched)?;
    shown(&models, &viewer, only.as_deref())?;
    let events = async_stream::stream! {
        loop {
            // A model that is loaded meanwhile is watched, too, unless its watchers are too many.
            let _ = watch(&models, &viewer, &mut watched);
            if let Ok(snapshot) = shown(&models, &viewer, only.as_deref()) {
                yield Bytes::from(format!("event: snapshot\ndata: {snapshot}\n\n"));
            }
            if models.drain().is_draining() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = models.drain().began() => {}
            }
        }
    };
    Ok(sse::plain(events))
}

fn only(uri: &Uri) -> Result<Option<String>, Refusal> {
    Ok(UrlQuery::parse(uri)?.take("model"))
}

/// Those who are told of choices by the metrics of each model.
type Watched = Vec<(Arc<Metrics>, Watcher)>;

/// Watches the models in memory, each once; forgets those that have left it.
fn watch(models: &Repository, viewer: &Viewer, watched: &mut Watched) -> Result<(), Refusal> {
    let apps = models.apps();
    watched.retain(|(metrics, _)| apps.iter().any(|app| Arc::ptr_eq(&app.metrics, metrics)));
    for app in &apps {
        if watched.iter().any(|(metrics, _)| Arc::ptr_eq(&app.metrics, metrics)) {
            continue;
        }
        let watcher = app.metrics.recent.watch(&viewer.tenant, viewer.is_admin);
        let watcher = watcher.map_err(|reason| Refusal::Overloaded { reason, retry_after: INTERVAL })?;
        watched.push((app.metrics.clone(), watcher));
    }
    Ok(())
}

/// What `viewer` may see of the models in memory as one cluster.
fn shown(models: &Repository, viewer: &Viewer, only: Option<&str>) -> Result<Value, Refusal> {
    let only = only.map(|name| models.find(name, &viewer.tenant)).transpose()?;
    let may_see = |entry: &Entry| {
        viewer.is_admin || entry.names.iter().any(|name| viewer.tenant.may_use(name.as_ref()))
    };
    let each: Vec<Value> = models.listed(|app, entry, status| {
        let is_asked = may_see(entry) && only.is_none_or(|only| only == status.model);
        app.filter(|_| is_asked).map(|app| snapshot(app, viewer)).into_iter().collect()
    });
    let all = |name: &str| -> Vec<Value> {
        each.iter().filter_map(|of_model| of_model[name].as_array()).flatten().cloned().collect()
    };
    let latest = |name: &str, most: usize| {
        let mut all = all(name);
        let time = |value: &Value| value["time"].as_f64().unwrap_or_default();
        all.sort_by(|a, b| time(b).total_cmp(&time(a)));
        all.truncate(most);
        all
    };
    let mut workers = Vec::new();
    for of_model in &each {
        for worker in of_model["workers"].as_array().into_iter().flatten() {
            let mut worker = worker.clone();
            worker["model"] = of_model["model"].clone();
            workers.push(worker);
        }
    }
    let sum = |name: &str| each.iter().filter_map(|of_model| of_model["totals"][name].as_u64()).sum::<u64>();
    let totals = [
        "requests",
        "moves",
        "prompt_tokens",
        "cached_prompt_tokens",
        "output_tokens",
        "requests_in_flight",
        "admitted_tokens",
    ];
    let model = |entry: &Entry, status: &ModelStatus| {
        let name = entry.names.iter().find(|name| viewer.tenant.may_use(name.as_ref()))?;
        Some(json!({
            "id": &**name, "status": status_json(status), "memory_bytes": entry.bytes,
            "expires_in_seconds": status.expires_in.map(|left| left.as_secs()),
        }))
    };
    Ok(json!({
        "object": "cluster",
        "time": seconds(clock::unix_time()),
        "model": null,
        "model_version": null,
        "version": env!("CARGO_PKG_VERSION"),
        "draining": models.drain().is_draining(),
        "admin": viewer.is_admin,
        "may_swap": false,
        "started": models.created(),
        "totals": totals.iter().map(|name| ((*name).to_owned(), sum(name).into())).collect::<serde_json::Map<_, _>>(),
        "workers": workers,
        "moves": latest("moves", SHOWN_MOVES),
        "requests": latest("requests", SHOWN_REQUESTS),
        "models": models.listed(|_, entry, status| model(entry, status).into_iter().collect()),
        "memory_bytes": viewer.is_admin.then(|| models.taken()),
    }))
}
