//! The APIs of a server of several models. `dispatch` passes requests that name a model to that model's
//! routes. What concerns all models is here: their lists in the form of each API (`lists`), loading and
//! unloading (`operate`), the cluster and the metrics (`whole`).

mod dispatch;
mod lists;
mod operate;
mod whole;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Extension, MatchedPath, Path, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_request_with_state};
use axum::response::Response;
use axum::routing::{any, get, post};
use http::HeaderMap;
use serde_json::json;

use super::anthropic::error::AnthropicError;
use super::http::error::Refuse;
use super::http::keys::{ApiKeys, require_admin};
use super::http::query::UrlQuery;
use super::http::{cors, face, receipts, request_id, span};
use super::kserve::rest as kserve;
use super::kserve::rest::error::KserveError;
use super::ollama;
use super::ollama::error::OllamaError;
use super::openai;
use super::openai::error::OpenAiError;
use super::openapi::operation::{self as describe, Access, EVENTS, Operation, Part, TEXT};
use super::openapi::room::Room;
use super::openapi::{self, Describer};
use super::skein::{health, welcome};
use super::{page, unknown};
use crate::refusal::Refusal;
use crate::repository::Repository;
use crate::request::tenant::Tenant;
use dispatch::{by_body, by_ollama, by_path, by_query};

static PART: Part = Part {
    name: "Repository",
    about: "The models of this server, those in memory and those on disk, and what moves them.",
    errors: "OpenAiError",
};

/// Paths below which requests name their model in the body, with the form of refusals.
const BY_BODY: [(&str, Refuse); 15] = [
    ("/v1/chat/completions", OpenAiError::refuse),
    ("/v1/completions", OpenAiError::refuse),
    ("/v1/responses", OpenAiError::refuse),
    ("/v1/embeddings", OpenAiError::refuse),
    ("/v1/rerank", OpenAiError::refuse),
    ("/rerank", OpenAiError::refuse),
    ("/v2/rerank", OpenAiError::refuse),
    ("/v1/score", OpenAiError::refuse),
    ("/score", OpenAiError::refuse),
    ("/classify", OpenAiError::refuse),
    ("/inference/v1/generate", OpenAiError::refuse),
    ("/tokenize", OpenAiError::refuse),
    ("/detokenize", OpenAiError::refuse),
    ("/v1/messages", AnthropicError::refuse),
    ("/v1/messages/count_tokens", AnthropicError::refuse),
];

/// The same in Ollama's API, whose requests also say how long the model stays.
const BY_OLLAMA: [&str; 4] = ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"];

/// Paths whose requests name their model in the query, if the operator allows them.
const BY_QUERY: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Paths that only a server of one model has as yet.
pub const NOT_SERVED: [&str; 2] = ["/v1/files", "/v1/batches"];

/// All HTTP routes, with the gRPC routes `guarded` and `open` merged in, as
/// [`router`](super::router()) has them for one model.
pub fn router(models: Repository, guarded: Router, open: Router) -> Router {
    let config = models.config();
    let keys = ApiKeys::of(config);
    let (root_path, cors) = (config.root_path.clone(), cors::layer(&config.allowed_origins));
    let has_metrics_port = config.metrics.is_some();
    let own = [
        (own(), OpenAiError::refuse as Refuse),
        (openai::stored(config), OpenAiError::refuse),
        (operated(), OpenAiError::refuse),
        (of_ollama(), OllamaError::refuse),
        (of_kserve(), KserveError::refuse),
    ];
    let open_rooms = [
        (open_room(has_metrics_port), OpenAiError::refuse as Refuse),
        (open_of_kserve(), KserveError::refuse),
    ];
    let described = own.iter().chain(&open_rooms).flat_map(|(room, _)| room.operations.clone()).collect();
    let lock = |all: Router<Repository>, (room, refuse): (Room<Repository>, Refuse)| {
        let counted = room.router.layer(from_fn_with_state(models.clone(), around));
        all.merge(face::guarded(counted, &keys, refuse))
    };
    let passed_on = |all: Router<Repository>, (routes, refuse): (Router<Repository>, Refuse)| {
        all.merge(face::guarded(routes, &keys, refuse))
    };
    let grpc = guarded.with_state(()).layer(from_fn_with_state(models.clone(), around));
    let guarded = own
        .into_iter()
        .fold(Router::new(), lock)
        .merge(face::guarded(grpc, &keys, super::grpc::status::refuse))
        .layer(Extension(Described(described)));
    let guarded = dispatched().into_iter().fold(guarded, passed_on).fallback_service(unknown(&keys));
    let open = open_rooms.into_iter().fold(open.with_state(()), |all: Router<Repository>, (room, refuse)| {
        all.merge(face::known_methods(room.router, refuse))
    });
    let all = open.merge(guarded).with_state(models);
    let all = match cors {
        Some(cors) => all.layer(cors),
        None => all,
    };
    super::below(&root_path, all)
}

/// What a port of its own for metrics and health serves.
pub fn metrics_port(models: Repository) -> Router {
    metrics_room().merge(health_room()).router.with_state(models)
}

/// What every request for no model, or over gRPC, passes on its way to a route. Those over HTTP for a model
/// pass the same on the way to the model's routes.
async fn around(State(models): State<Repository>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = if request.method() == http::Method::GET { "GET" } else { "POST" };
    let with_id = |mut request: Request, id| {
        request.extensions_mut().insert(id);
        next.run(request)
    };
    let named = |request| request_id::name(request, with_id);
    let response = span::trace(request, |request| receipts::give(request, named)).await;
    models.metrics().answered(route.as_deref().unwrap_or("none"), method, response.status().as_u16());
    response
}

/// Routes of models.
fn dispatched() -> Vec<(Router<Repository>, Refuse)> {
    let mut all: Vec<(Router<Repository>, Refuse)> = Vec::new();
    for (path, refuse) in BY_BODY {
        let handler = post(async move |State(models): State<Repository>, request: Request| {
            by_body(models, request, refuse).await
        });
        all.push((Router::new().route(path, handler), refuse));
    }
    for path in BY_OLLAMA {
        let handler =
            post(async |State(models): State<Repository>, request: Request| by_ollama(models, request).await);
        all.push((Router::new().route(path, handler), OllamaError::refuse));
    }
    for path in BY_QUERY {
        let handler = post(async |State(models): State<Repository>, request: Request| {
            by_query(models, request, OpenAiError::refuse).await
        });
        all.push((Router::new().route(path, handler), OpenAiError::refuse));
    }
    let of_path =
        any(async |State(models): State<Repository>, Path(rest): Path<String>, request: Request| {
            by_path(models, &rest, request).await
        });
    all.push((Router::new().route("/v2/models/{*rest}", of_path), KserveError::refuse));
    all
}

fn own() -> Room<Repository> {
    let listed = describe::get(
        "listAllModels",
        "The models, by the names that the caller may use, and where they are.",
    );
    let listed = listed
        .with(&["AnthropicVersion", "Limit", "AfterId", "BeforeId"])
        .gives("ModelsPage")
        .refuses(&[400]);
    let one = describe::get("getOneModel", "One model; its name may have slashes.");
    let one = one.with(&["AnthropicVersion"]).gives("OneModel").refuses(&[400, 404]);
    let version = describe::get("versionOfServer", "The release.").gives("Version");
    let now = describe::get(
        "allClusters",
        "The workers, the last moves and the last requests of all models in memory.",
    );
    let events = describe::get("allClusterEvents", "The same each second, as events `snapshot`.");
    let about = describe::get("openapiOfModel", "This document, of one model, in OpenAPI 3.1.");
    Room::new(&PART)
        .route("/v1/models", get(lists::models), [listed])
        .same("/v1/models/", "/v1/models", get(lists::models))
        .same("/models", "/v1/models", get(lists::models))
        .route("/v1/models/{*id}", get(lists::model), [one])
        .route("/version", get(health::version), [version])
        .route("/v1/cluster", get(whole::cluster), [now.gives("Cluster")])
        .route("/v1/cluster/events", get(whole::events), [events.streams(EVENTS, "Cluster").refuses(&[429])])
        .route(
            "/openapi.json",
            get(document),
            [about.gives("OpenApi").answers(304, "", None).refuses(&[404, 500, 503])],
        )
}

/// Routes that move models, and those that change the server, which need an admin key.
fn operated() -> Room<Repository> {
    let load = describe::post("loadModel", "Loads a model; answers once it can serve.")
        .takes("application/json", "ModelOrder")
        .gives("ModelMoved")
        .refuses(&[400, 404, 413, 503]);
    let unload = describe::post(
        "unloadModel",
        "Has a model leave memory; answers once its requests and workers have ended.",
    )
    .takes("application/json", "ModelOrder")
    .gives("ModelMoved")
    .refuses(&[400, 404, 409, 413]);
    let drain = describe::post(
        "drainWorkerOfAny",
        "Has a worker of any model take no new requests, or take them again.",
    )
    .takes("application/json", "DrainOrder")
    .gives("Drained")
    .refuses(&[400, 404, 409, 500, 503]);
    let of_triton = |id, about| describe::post(id, about).gives("KserveMoved").refuses(&[400, 404, 409, 503]);
    let refuse: Refuse = OpenAiError::refuse;
    Room::new(&PART)
        .route("/models/load", post(operate::load), [load])
        .route("/models/unload", post(operate::unload), [unload])
        .route("/v1/cluster/workers/{worker}/drain", post(operate::drain), [drain])
        .access(Access::Admin)
        .with(|routes| routes.layer(map_request_with_state(refuse, require_admin)))
        .merge(
            Room::new(&PART)
                .route(
                    "/v2/repository/models/{*rest}",
                    post(operate::of_triton),
                    [
                        Operation {
                            path: "/v2/repository/models/{model}/load".to_owned(),
                            ..of_triton("kserveLoad", "The same as `/models/load`, in Triton's form.")
                        },
                        Operation {
                            path: "/v2/repository/models/{model}/unload".to_owned(),
                            ..of_triton("kserveUnload", "The same as `/models/unload`, in Triton's form.")
                        },
                    ],
                )
                .access(Access::Admin)
                .with(|routes| {
                    let refuse: Refuse = KserveError::refuse;
                    routes.layer(map_request_with_state(refuse, require_admin))
                }),
        )
}

fn of_ollama() -> Room<Repository> {
    let tags = describe::get("ollamaAllTags", "The models.").gives("OllamaModels");
    let ps = describe::get("ollamaAllPs", "The models in memory.").gives("OllamaModels");
    let show = describe::post("ollamaShowAny", "What is known of a model; it need not be in memory.")
        .takes("application/json", "OllamaShowOrder")
        .gives("OllamaModel")
        .refuses(&[400, 404, 413, 503]);
    let version = describe::get("ollamaVersionOfServer", "The version of Ollama's API.").gives("Version");
    Room::new(&PART)
        .route("/api/tags", get(lists::tags), [tags])
        .route("/api/ps", get(lists::ps), [ps])
        .route("/api/show", post(lists::show), [show])
        .route("/api/version", get(async || Json(json!({"version": ollama::API_VERSION}))), [version])
}

fn of_kserve() -> Room<Repository> {
    let server = describe::get("kserveServerOfAll", "The server and its extensions of the protocol.")
        .gives("KserveServer");
    let models = describe::get("kserveAllModels", "The models' names.").gives("KserveModels");
    let index = describe::post("kserveIndexOfAll", "The models and their states.");
    let index = index.gives("KserveIndex").refuses(&[400, 413, 415]);
    Room::new(&PART)
        .route("/v2", get(kserve::server), [server])
        .route("/v2/models", get(lists::kserve_models), [models])
        .route("/v2/repository/index", post(lists::kserve_index), [index])
}

fn open_of_kserve() -> Room<Repository> {
    let live = describe::get("kserveLiveOfAll", "Whether the process responds.").gives("KserveLive");
    let ready = describe::get("kserveReadyOfAll", "Whether a request would be accepted.");
    let ready = ready.gives("KserveReady").refuses(&[503]);
    Room::new(&PART)
        .route("/v2/health/live", get(async || Json(json!({"live": true}))), [live])
        .route("/v2/health/ready", get(whole::kserve_ready), [ready])
        .access(Access::Open)
}

fn open_room(has_metrics_port: bool) -> Room<Repository> {
    let welcome = describe::get("welcomeToAll", "A page of links.").answers(200, "text/html", None);
    let open =
        Room::new(&PART).route("/", get(welcome::page), [welcome]).merge(health_room()).merge(page::routes());
    let open = if has_metrics_port { open } else { open.merge(metrics_room()) };
    open.access(Access::Open)
}

fn health_room() -> Room<Repository> {
    let ready = |id| {
        describe::get(id, "Whether a request would be accepted; its model is loaded for it.")
            .gives("Health")
            .refuses(&[503])
    };
    let live = describe::get("livezOfAll", "Whether the process responds.").gives("Health");
    Room::new(&PART)
        .route("/health", get(whole::ready), [ready("healthOfAll")])
        .route("/readyz", get(whole::ready), [ready("readyzOfAll")])
        .route("/livez", get(health::live), [live])
}

fn metrics_room() -> Room<Repository> {
    let metrics = describe::get("metricsOfAll", "Metrics, in Prometheus' text format or OpenMetrics.")
        .answers(200, TEXT, None)
        .answers(200, "application/openmetrics-text", None);
    Room::new(&PART).route("/metrics", get(whole::metrics), [metrics])
}

/// What is said of the routes here.
#[derive(Clone)]
struct Described(Arc<[Operation]>);

/// The document, with the limits of one model: the one that the query names, else one in memory.
async fn document(
    State(models): State<Repository>,
    Extension(tenant): Extension<Tenant>,
    Extension(Described(own)): Extension<Described>,
    headers: HeaderMap,
    uri: http::Uri,
) -> Result<Response, OpenAiError> {
    let named = UrlQuery::parse(&uri)?.take("model");
    let app = match named {
        Some(name) => models.named(Some(&name), &tenant, None).await?.model().app.clone(),
        None => {
            let usable = models.apps().into_iter().find(|app| !app.names(&tenant).is_empty());
            usable.ok_or_else(|| Refusal::NotFound(
                "No model is in memory, and this document has the limits of one; name it as ?model=NAME, which loads it.".to_owned(),
            ))?
        }
    };
    let known: Vec<String> = own.iter().map(|operation| operation.path.clone()).collect();
    let is_served = |operation: &Operation| {
        let path = &operation.path;
        !known.contains(path) && !NOT_SERVED.iter().any(|without| path.starts_with(without))
    };
    let of_model = super::described(&app).into_iter().filter(is_served);
    let Extension(describer): Extension<Describer> =
        openapi::serve(of_model.chain(own.iter().cloned()).collect());
    Ok(describer.answer(&app, &tenant, &headers).await?)
}
