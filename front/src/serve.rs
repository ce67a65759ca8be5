//! The HTTP server: own paths, keys, limits, and everything else to `forward`.

use std::io;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::ACCEPT;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use skein_choice::policy::EXPECTED_OUTPUT_TOKENS;
use skein_node::clock;
use skein_node::metrics::Format;
use skein_router::api::http::body::{check_content_length, read_body};
use skein_router::api::http::cors;
use skein_router::api::http::rate_limits;
use skein_router::api::http::receipts::{self, RECEIPT};
use skein_router::ids;
use skein_router::refusal::Refusal;
use skein_router::request::tenant::Tenant;
use skein_router::shards::Shards;
use skein_router::tenants::{Charge, KeysFile};
use skein_router::unread::RequestBody;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};

use super::answers::{json_body, refused, whole};
use super::body::AnswerBody;
use super::forward::forward;
use super::headers::{X_REQUEST_ID, to_worker};
use super::prompt::Prompt;
use super::rights;
use super::routes::{Call, Route, resumes};
use super::running::Running;
use super::servers::Unavailable;
use super::shared::Shared;
use super::upstreams::Upstreams;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// The page at `/`.
const WELCOME: &str =
    "Skein routes requests to OpenAI servers: POST /v1/chat/completions, GET /v1/models, /metrics.\n";

/// Serves until `shutdown`, then drains: new requests are refused with 503 and running ones finish. Those
/// still running after the shutdown timeout end with an error.
///
/// # Errors
/// If the port for metrics cannot be used, or the system has no thread for a shard.
pub async fn serve(
    listener: TcpListener,
    upstreams: Upstreams,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    // Served until the drain has ended.
    let _metrics = metrics_port(&upstreams.0).await?;
    let shards = Shards::start(upstreams.0.config.router.shards)?;
    serve_boxed(listener, shards, upstreams, Box::pin(shutdown)).await;
    Ok(())
}

/// Not generic, and the future in a box, so that the server is compiled in this crate, which is optimised
/// for speed.
fn serve_boxed(
    listener: TcpListener,
    shards: Shards,
    upstreams: Upstreams,
    shutdown: BoxFuture<'_, ()>,
) -> BoxFuture<'_, ()> {
    let shared = upstreams.0;
    let (limits, tls) = (shared.config.router.connection_limits(), shared.config.router.tls.clone());
    let (draining, keys) = (shared.clone(), shared.config.router.keys_file.clone());
    let usage = shared.config.router.usage_log.clone();
    let drained = async move {
        shutdown.await;
        tracing::info!(running = draining.drain.running(), "draining");
        draining.drain.drain(draining.config.router.shutdown_timeout, || ()).await;
    };
    let service = {
        let (shared, cors) = (shared.clone(), cors::layer(&shared.config.router.allowed_origins));
        move |request: Request<RequestBody>| {
            let (shared, cors) = (shared.clone(), cors.clone());
            async move {
                let Some(cors) = cors else { return respond(shared, request).await };
                let plain = service_fn(move |request| {
                    let shared = shared.clone();
                    async move { Ok::<_, std::convert::Infallible>(respond(shared, request).await) }
                });
                cors.layer(plain).oneshot(request).await.unwrap_or_else(|never| match never {})
            }
        }
    };
    async move {
        let _watch = keys.as_ref().map(KeysFile::watch);
        skein_router::serve::accept_until(listener, &shards, tls, service, limits, drained).await;
        shards.end().await;
        // The requests that were cut have their lines, too.
        if let Some(usage) = usage {
            let _ = tokio::task::spawn_blocking(move || usage.flush()).await;
        }
    }
    .boxed()
}

/// The port of its own for metrics and health, if there is one.
async fn metrics_port(shared: &Arc<Shared>) -> io::Result<JoinSet<()>> {
    let at = shared.config.router.metrics;
    let shared = shared.clone();
    skein_router::metrics_port::open(at, move |request: Request<RequestBody>| {
        let shared = shared.clone();
        async move {
            if request.method() == Method::GET && request.uri().path() == "/metrics" {
                return scrape(&shared, &request);
            }
            health(&shared, request.method(), request.uri().path())
                .unwrap_or_else(|| whole(StatusCode::NOT_FOUND, TEXT, "/metrics, /livez, /readyz\n".into()))
        }
    })
    .await
}

/// Answers of the paths for health.
fn health(shared: &Shared, method: &Method, path: &str) -> Option<Response<AnswerBody>> {
    match (method, path) {
        (&Method::GET, "/livez") => Some(ok()),
        (&Method::GET, "/health" | "/ready" | "/readyz") => Some(ready(shared)),
        _ => None,
    }
}

async fn respond(shared: Arc<Shared>, request: Request<RequestBody>) -> Response<AnswerBody> {
    let method = request.method().clone();
    let path = request.uri().path();
    let root = &*shared.config.router.root_path;
    let path = path.strip_prefix(root).filter(|rest| rest.starts_with('/')).unwrap_or(path).to_owned();
    let (handler, response) = match (&method, path.as_str()) {
        (&Method::GET, "/") => ("/", whole(StatusCode::OK, TEXT, WELCOME.into())),
        (&Method::GET, "/livez") => ("/livez", ok()),
        (&Method::GET, "/health" | "/ready" | "/readyz") => ("/health", ready(&shared)),
        (&Method::GET, "/metrics") if shared.config.router.metrics.is_none() => {
            ("/metrics", scrape(&shared, &request))
        }
        _ => match shared.keys.admit(request.headers()) {
            Ok(admitted) => guarded(&shared, &method, &path, admitted.tenant, request).await,
            Err(refusal) => ("none", refused(&refusal)),
        },
    };
    let method = match method {
        Method::GET => "GET",
        Method::POST => "POST",
        _ => "other",
    };
    shared.metrics.answered(handler, method, response.status().as_u16());
    response
}

/// Answers a request with a valid key, and names its route.
async fn guarded(
    shared: &Arc<Shared>,
    method: &Method,
    path: &str,
    tenant: Tenant,
    request: Request<RequestBody>,
) -> (&'static str, Response<AnswerBody>) {
    match (method, path) {
        (&Method::GET, "/version") => {
            ("/version", json_body(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")})))
        }
        (&Method::GET, "/v1/models" | "/v1/models/") => ("/v1/models", models(shared, &tenant)),
        (&Method::GET, path) if path.starts_with("/v1/models/") => {
            ("/v1/models/{*id}", model(shared, &tenant, &path["/v1/models/".len()..]))
        }
        (method, path) => match Route::of(method, path) {
            Ok(route) => (route.path, generate(shared.clone(), route, path, tenant, request).await),
            Err(refusal) => ("none", refused(&refusal)),
        },
    }
}

fn ok() -> Response<AnswerBody> {
    json_body(StatusCode::OK, &json!({"status": "ok"}))
}

fn ready(shared: &Shared) -> Response<AnswerBody> {
    match () {
        () if shared.drain.is_draining() => refused(&Refusal::Draining),
        () if shared.servers(|servers| servers.is_up()) => ok(),
        () => refused(&shared.refusal(Unavailable::NoneUp)),
    }
}

fn scrape(shared: &Shared, request: &Request<RequestBody>) -> Response<AnswerBody> {
    let format = Format::accepted(request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let states = shared.servers(|servers| servers.states(clock::now()));
    let text = shared.metrics.encode(format, shared.drain.running(), &shared.links, &states);
    let kind = HeaderValue::from_str(format.content_type()).unwrap_or(TEXT);
    whole(StatusCode::OK, kind, text)
}

/// The models that `tenant` may use.
fn usable(shared: &Shared, tenant: &Tenant) -> Vec<Value> {
    let mut models = shared.servers(|servers| servers.models());
    models.retain(|model| model["id"].as_str().is_some_and(|id| tenant.may_use(id)));
    models
}

fn models(shared: &Shared, tenant: &Tenant) -> Response<AnswerBody> {
    json_body(StatusCode::OK, &json!({"object": "list", "data": usable(shared, tenant)}))
}

fn model(shared: &Shared, tenant: &Tenant, id: &str) -> Response<AnswerBody> {
    match usable(shared, tenant).into_iter().find(|model| model["id"] == id) {
        Some(model) => json_body(StatusCode::OK, &model),
        None => {
            let shown: String = id.chars().take(200).collect();
            refused(&Refusal::NotFound(format!("No worker that is up lists a model `{shown}`.")))
        }
    }
}

/// A request for the workers.
async fn generate(
    shared: Arc<Shared>,
    route: Route,
    path: &str,
    tenant: Tenant,
    request: Request<RequestBody>,
) -> Response<AnswerBody> {
    let given = request.headers().get(X_REQUEST_ID).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&ids::drawn().to_string()).ok());
    let key = tenant.key().cloned();
    let mut response = match accept(&shared, route, path, &tenant, request, id.as_ref()).await {
        Ok((call, charge)) => {
            let running = Running::new(shared.clone(), &call, charge);
            let receipts = call.receipts.clone();
            let mut response = forward(shared, Arc::new(call), running).await;
            if let Some(value) = receipts.as_ref().and_then(receipts::header) {
                response.headers_mut().insert(RECEIPT, value);
            }
            response
        }
        Err(refusal) => {
            shared.metrics.refused(&refusal);
            refusal.log(id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default());
            refused(&refusal)
        }
    };
    if let Some(key) = key {
        rate_limits::add(
            response.headers_mut(),
            &key.quotas(clock::now()),
            route.path.contains("/v1/messages"),
        );
    }
    if let Some(id) = id {
        response.headers_mut().entry(X_REQUEST_ID).or_insert(id);
    }
    response
}

async fn accept(
    shared: &Shared,
    route: Route,
    path: &str,
    tenant: &Tenant,
    request: Request<RequestBody>,
    id: Option<&HeaderValue>,
) -> Result<(Call, Charge), Refusal> {
    let (arrived, config) = (clock::now(), &shared.config.router);
    let lease = shared.drain.enter()?;
    let most = config.admission.max_num_queued_reqs as usize;
    if shared.drain.running() > most {
        let reason = format!("{most} requests run or wait");
        return Err(Refusal::Overloaded { reason, retry_after: std::time::Duration::from_secs(1) });
    }
    let (head, body) = request.into_parts();
    let resumes = resumes(&head.headers, shared.config.resume_by_text)?;
    let receipts = receipts::asked(&head.headers);
    check_content_length(&head.headers, config.limits.body_bytes)?;
    let body = read_body(body, config.limits.body_bytes).await?;
    let mut headers = to_worker(head.headers, config.has_keys(), shared.config.authorization.as_ref());
    if let Some(id) = id {
        headers.insert(X_REQUEST_ID, id.clone());
    }
    let target = head.uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let prompt = Prompt::read(&body, shared.seed);
    rights::check(tenant, &prompt)?;
    let expected = u64::from(prompt.samples) * u64::from(prompt.output_tokens.min(EXPECTED_OUTPUT_TOKENS));
    // To count tokens is free.
    let tokens = if route.computes() { u64::from(prompt.tokens) + expected } else { 0 };
    let charge = Charge::estimated(tenant.key(), tokens, arrived);
    let charge = charge.inspect_err(|_| {
        shared.metrics.tenants().zip(tenant.key()).inspect(|(tenants, key)| tenants.limited(key));
    })?;
    let timeout = config.limits.request_timeout;
    let call = Call { route, target, headers, body, prompt, resumes, arrived, timeout, receipts, lease };
    Ok((call, charge))
}
