//! The cluster as people see it: `GET /v1/cluster`, the same every second at `GET /v1/cluster/events`, and
//! orders to drain a worker. Feeds the page, `skein status` and `skein top`. A client sees the requests of
//! its own tenant, an administrator those of all.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::Extensions;
use serde_json::{Value, json};
use skein_choice::fleet::WorkerStatus;
use skein_node::clock;
use skein_proto::version::Version;

use crate::api::fields::object::Fields;
use crate::api::http::keys::Admin;
use crate::api::http::sse;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::config::RouterConfig;
use crate::links::moves::{LatestMoves, Move};
use crate::metrics::recent::Ended;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Time between two snapshots of a stream.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Most moves in a snapshot, the latest first.
pub const SHOWN_MOVES: usize = 32;
/// Most requests in a snapshot, the latest first.
pub const SHOWN_REQUESTS: usize = 64;

/// What a client may see.
#[derive(Debug, Clone)]
pub struct Viewer {
    /// Whose requests it sees.
    pub tenant: Tenant,
    /// Sees all tenants, and may give orders.
    pub is_admin: bool,
}

impl Viewer {
    /// Who sent a request with these extensions to a server with these settings.
    pub fn of(extensions: &Extensions, config: &RouterConfig) -> Self {
        let tenant = extensions.get::<Tenant>().cloned().unwrap_or_default();
        Self { tenant, is_admin: config.has_operator() && Admin::require(extensions).is_ok() }
    }

    fn sees(&self, tenant: &Tenant) -> bool {
        self.is_admin || self.tenant == *tenant
    }
}

/// `GET /v1/cluster`.
pub async fn now(State(app): State<App>, request: Request) -> Json<Value> {
    Json(snapshot(&app, &Viewer::of(request.extensions(), &app.config)))
}

/// `GET /v1/cluster/events`: an event `snapshot` now and each second, until the server shuts down.
pub async fn events(State(app): State<App>, request: Request) -> Result<Response, OpenAiError> {
    let viewer = Viewer::of(request.extensions(), &app.config);
    let watcher = app.metrics.recent.watch(&viewer.tenant, viewer.is_admin);
    let watcher = watcher.map_err(|reason| Refusal::Overloaded { reason, retry_after: INTERVAL })?;
    let events = async_stream::stream! {
        let _watcher = watcher;
        loop {
            yield Bytes::from(format!("event: snapshot\ndata: {}\n\n", snapshot(&app, &viewer)));
            if app.drain.is_draining() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = app.drain.began() => {}
            }
        }
    };
    Ok(sse::plain(events))
}

/// `POST /v1/cluster/workers/{worker}/drain` with `{"on": true}` or false.
pub async fn drain(
    State(app): State<App>,
    Path(worker): Path<String>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let on = on(Fields::read(request, &app).await?, &app)?;
    app.fleet.drain(&worker, on).await?;
    Ok(Json(json!({ "worker": worker, "draining": on })))
}

/// Reads whether to begin or end a drain.
pub fn on(mut fields: Fields, app: &App) -> Result<bool, Refusal> {
    let on = fields.optional_bool("on").unwrap_or(true);
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(on)
}

/// What `viewer` may see of the cluster.
pub fn snapshot(app: &App, viewer: &Viewer) -> Value {
    let (sums, running) = (app.metrics.sums(), app.fleet.running());
    let LatestMoves { total, latest } = app.fleet.moves();
    let moves: Vec<&Move> =
        latest.iter().map(|moved| &**moved).filter(|moved| viewer.sees(&moved.tenant)).collect();
    let mut workers = app.fleet.workers();
    // The order of names, not of connections; `w-10` after `w-2`.
    workers.sort_by(|a, b| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id)));
    let recent = app.metrics.recent.latest();
    let requests = recent.iter().rev().filter(|ended| viewer.sees(&ended.tenant)).take(SHOWN_REQUESTS);
    let requests: Vec<Value> = requests.map(|ended| request(ended, &moves)).collect();
    json!({
        "object": "cluster",
        "time": seconds(clock::unix_time()),
        "model": Some(&*app.text.name()).filter(|name| viewer.tenant.may_use(name)),
        "model_version": version_text(app.fleet.version()),
        "version": env!("CARGO_PKG_VERSION"),
        "draining": app.drain.is_draining(),
        "admin": viewer.is_admin,
        "may_swap": viewer.is_admin && app.config.runtime_swaps && app.swaps.is_some(),
        "started": app.created,
        "totals": {
            "requests": sums.requests, "moves": total, "prompt_tokens": sums.prompt_tokens,
            "cached_prompt_tokens": sums.cached_tokens, "output_tokens": sums.output_tokens,
            "requests_in_flight": running.requests, "admitted_tokens": running.tokens,
        },
        "workers": workers.iter().map(|status| worker(status, viewer)).collect::<Vec<_>>(),
        "moves": moves.iter().rev().take(SHOWN_MOVES).map(|moved| moved_json(moved)).collect::<Vec<_>>(),
        "requests": requests,
    })
}

fn worker(status: &WorkerStatus, viewer: &Viewer) -> Value {
    let WorkerStatus { id, address, refuses, info, load, reported, .. } = status;
    let detail = reported.detail;
    let total = info.as_ref().map_or(0, |info| info.kv_blocks);
    // Free blocks as reported count the cached ones, and by the scarcer of two kinds of blocks.
    let available = reported.free_blocks.min(total);
    let cached = detail.cached_blocks.min(available);
    let held = total - available;
    let shared = detail.shared_blocks.min(held);
    json!({
        "id": id,
        "address": viewer.is_admin.then_some(address),
        "router": status.is_router(),
        "ready": refuses.is_none(),
        "state": status.state(),
        "model_version": info.as_ref().and_then(|info| version_text(info.model_version())),
        "version": info.as_ref().map(|info| &info.version),
        "backend": info.as_ref().map(|info| &info.backend),
        "blocks": {
            "total": total, "free": available - cached, "cached": cached, "held": held - shared, "shared": shared,
        },
        "block_size": info.as_ref().map(|info| info.block_size),
        "running": reported.running,
        "waiting": reported.waiting,
        "most_running": info.as_ref().map(|info| info.max_num_seqs),
        "queued_tokens": load.queued_uncached_tokens,
        "step_seconds": detail.step_seconds,
        "prefill_tokens_per_second": reported.prefill_tokens_per_second,
        "decode_tokens_per_second": reported.decode_tokens_per_second,
        "prompt_tokens": detail.prompt_tokens,
        "cached_prompt_tokens": detail.cached_prompt_tokens,
        "output_tokens": detail.output_tokens,
    })
}

fn moved_json(moved: &Move) -> Value {
    json!({
        "time": seconds(moved.at), "request": moved.request, "from": moved.from.as_deref(), "to": moved.to.as_deref(),
        "reason": moved.reason, "tokens": moved.tokens, "gap_seconds": seconds(moved.gap),
    })
}

fn request(ended: &Ended, moves: &[&Move]) -> Value {
    let own: Vec<&&Move> =
        moves.iter().filter(|moved| moved.request == *ended.id && moved.tenant == ended.tenant).collect();
    let receipts = ended.receipts.as_ref().and_then(|receipts| receipts.json());
    let receipts: Option<Value> = receipts.and_then(|text| serde_json::from_str(&text).ok());
    let mut workers: Vec<&str> = own.iter().filter_map(|moved| moved.from.as_deref()).collect();
    workers.extend(ended.worker.as_deref());
    json!({
        "id": &*ended.id, "time": seconds(ended.arrived), "model": &*ended.model, "status": ended.status,
        "outcome": ended.outcome, "code": ended.code, "prompt_tokens": ended.prompt_tokens,
        "cached_tokens": ended.cached_tokens, "output_tokens": ended.output_tokens,
        "ttft_seconds": ended.first_token.map(seconds), "seconds": seconds(ended.total), "moves": ended.moves,
        "workers": workers, "phases": phases(ended, &own), "receipts": receipts,
    })
}

/// Where the time of a request went: placing it, its first token, the rest, and each move.
fn phases(ended: &Ended, moves: &[&&Move]) -> Vec<Value> {
    let phase = |name: &str, worker: Option<&str>, start: Duration, end: Duration| json!({ "name": name, "worker": worker, "start": seconds(start), "end": seconds(end.max(start)) });
    let first_worker = moves.first().map_or(ended.worker.as_deref(), |moved| moved.from.as_deref());
    let placed = ended.placed.unwrap_or(ended.total).min(ended.total);
    let mut phases = vec![phase("place", None, Duration::ZERO, placed)];
    let mut at = placed;
    let mut worker = first_worker;
    let mut first_token = ended.first_token;
    // Waiting for the first token, then generating, until `end`.
    let mut run = |phases: &mut Vec<Value>, at: &mut Duration, worker: Option<&str>, end: Duration| {
        if let Some(first) = first_token.filter(|first| *first <= end) {
            phases.push(phase("prefill", worker, *at, first));
            *at = first.max(*at);
            first_token = None;
        }
        let name = if ended.first_token.is_some_and(|first| first <= *at) { "decode" } else { "prefill" };
        if end > *at {
            phases.push(phase(name, worker, *at, end));
            *at = end;
        }
    };
    for moved in moves {
        let resumed = moved.at.saturating_sub(ended.arrived).min(ended.total);
        run(&mut phases, &mut at, worker, resumed.saturating_sub(moved.gap));
        worker = moved.to.as_deref();
        phases.push(phase("move", worker, at, resumed));
        at = resumed.max(at);
    }
    run(&mut phases, &mut at, worker, ended.total);
    phases
}

fn version_text(version: Version) -> Option<String> {
    (version != Version::UNKNOWN).then(|| version.to_string())
}

/// Seconds with microseconds.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}
