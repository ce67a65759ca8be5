//! KServe v2 over HTTP: the protocol's REST paths, with Triton's extensions for binary tensors, generation,
//! configuration and the list of models. A body becomes the message that the gRPC service takes, and an
//! answer is written from the message that it returns, so that one place knows the tensors.

mod body;
mod described;
pub mod error;
mod generate;
mod infer;
mod limits;
mod parameters;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod values;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures::StreamExt;
use http::header::ALLOW;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use skein_proto::inference::ModelInferRequest;
use skein_proto::inference::repository_index_response::ModelIndex;

use self::error::KserveError;
use self::target::{Target, Verb};
use super::answer::Answer;
use super::call::{Call, Form};
use super::{Service, model, pooled};
use crate::api::answer::shapes;
use crate::api::fields::object::Fields;
use crate::api::http::face;
use crate::api::http::metrics::Route;
use crate::api::http::request_id::RequestId;
use crate::api::http::sse;
use crate::api::openapi::operation::{self as describe, Access, Part};
use crate::api::openapi::room::Room;
use crate::app::App;
use crate::pooled::refused::pools;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

static PART: Part =
    Part { name: "KServe", about: "KServe v2 over HTTP, with Triton's extensions.", errors: "MessageError" };

/// Routes that need a key.
pub fn routes() -> Room {
    let server =
        describe::get("kserveServer", "The server and its extensions of the protocol.").gives("KserveServer");
    let models = describe::get("kserveModels", "The models' names.").gives("KserveModels");
    let index = describe::post("kserveIndex", "The models and their states.")
        .reads("KserveIndexRequest", |fields, _| drop(only_ready(fields)))
        .like(r#"{"ready": true}"#)
        .or_nothing()
        .gives("KserveIndex")
        .refuses(&[400, 413, 415]);
    Room::new(&PART)
        .route("/v2", get(self::server), [server])
        .route("/v2/models", get(self::models), [models])
        .route("/v2/models/{*rest}", any(of_model), described::operations())
        .route("/v2/repository/index", post(self::index), [index])
}

/// Health routes, which answer without a key.
pub fn open_routes() -> Room {
    let live = describe::get("kserveLive", "Whether the process responds.").gives("KserveLive");
    let ready = describe::get("kserveReady", "Whether a request would be accepted.");
    let ready = ready.gives("KserveReady").refuses(&[503]);
    Room::new(&PART)
        .route("/v2/health/live", get(async || Json(json!({"live": true}))), [live])
        .route("/v2/health/ready", get(self::ready), [ready])
        .access(Access::Open)
}

/// The other paths below `/v2`.
pub fn unknown() -> Router {
    let refuse = any(async |request: Request| face::not_found(&request, KserveError::refuse));
    Router::new().route("/v2/", refuse.clone()).route("/v2/{*path}", refuse)
}

/// The server and its extensions.
pub async fn server() -> Json<Value> {
    let server = super::server();
    Json(json!({"name": server.name, "version": server.version, "extensions": server.extensions}))
}

async fn ready(State(app): State<App>) -> Result<Json<Value>, KserveError> {
    app.ready()?;
    Ok(Json(json!({"ready": true})))
}

async fn models(State(app): State<App>, Extension(tenant): Extension<Tenant>) -> Json<Value> {
    let service = Service { app: &app, tenant };
    let names: Vec<String> = service.index(false).into_iter().map(|model| model.name).collect();
    Json(json!({"models": names}))
}

/// The list of models; the body may be empty.
async fn index(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, KserveError> {
    let read = |parts: body::Parts| match parts.json.trim_ascii() {
        b"" => Ok(false),
        json => only_ready(Fields::parse(json)?),
    };
    let only_ready = body::read(request, &app, read).await?;
    Ok(Json(written_index(Service { app: &app, tenant }.index(only_ready))))
}

/// The list of models as JSON.
pub fn written_index(models: Vec<ModelIndex>) -> Value {
    let model = |model: ModelIndex| {
        let mut object = json!({"name": model.name, "version": model.version, "state": model.state});
        if !model.reason.is_empty() {
            object["reason"] = model.reason.into();
        }
        object
    };
    models.into_iter().map(model).collect()
}

/// Reads whether only models that are ready are asked for.
pub fn only_ready(mut fields: Fields) -> Result<bool, Refusal> {
    let ready = fields.bool("ready");
    fields.finish(false)?;
    Ok(ready)
}

/// Answers a request below `/v2/models/`, and names its route for the metrics.
async fn of_model(
    State(app): State<App>,
    rest: Result<Path<String>, PathRejection>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Response {
    // No model has a name that is not UTF-8.
    let Path(rest) = rest.unwrap_or_else(|_| Path(char::REPLACEMENT_CHARACTER.to_string()));
    let target = Target::read(&rest);
    let verb = target.verb;
    let answered = match target.check(request.method()) {
        Err(refusal) => Err(refusal),
        Ok(()) if target.verb.generates() => generated(&app, target, tenant, &id, request).await,
        Ok(()) => told(&app, &target, tenant).map(|object| Json(object).into_response()),
    };
    let mut response = answered.map_err(KserveError::from).into_response();
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(verb.allowed()));
    }
    response.extensions_mut().insert(Route(verb.route()));
    response
}

fn told(app: &App, target: &Target, tenant: Tenant) -> Result<Value, Refusal> {
    let service = Service { app, tenant };
    let name = service.model(&target.model, &target.version)?;
    if target.verb == Verb::Ready {
        app.ready()?;
        return Ok(json!({"name": name, "ready": true}));
    }
    let pooled = service.pooled();
    let pooled = pooled.as_deref();
    Ok(if target.verb == Verb::Config {
        model::config_json(&name, pooled)
    } else {
        model::metadata_json(&name, pooled)
    })
}

async fn generated(
    app: &App,
    target: Target,
    tenant: Tenant,
    id: &str,
    request: Request,
) -> Result<Response, Refusal> {
    let (verb, version) = (target.verb, target.version);
    let refused = |refusal: &Refusal| refusal.log(id);
    let read = body::read(request, app, move |parts| match verb {
        Verb::Infer => infer::parse(parts),
        _ => generate::parse(parts).map(infer::Asked::of),
    });
    let infer::Asked { request, binary, unknown } = read.await.inspect_err(refused)?;
    let request = ModelInferRequest { model_name: target.model, model_version: version, ..request };
    if let Some(model) = app.fleet.pooled()? {
        if verb == Verb::GenerateStream {
            return Err(pools(&app.text.name(), &model));
        }
        let asker = pooled::Asker { tenant, id: id.into(), timeout: None };
        let response = pooled::answer(app, &model, request, asker).await?;
        let response = match verb {
            Verb::Infer => infer::written(response, &binary)?,
            _ => Json(generate::object(response)?).into_response(),
        };
        return Ok(shapes::finish_response(response, id, None));
    }
    let Call { mut draft, mut form } = parse(app, request, tenant, unknown).inspect_err(refused)?;
    draft.request_id = Some(id.into());
    check_stream(verb, &form).inspect_err(refused)?;
    // Named in the header, where the other APIs over HTTP name them.
    let ignored = form.ignored.take().and_then(|names| HeaderValue::from_str(&names).ok());
    let answer = Answer::new(app, app.start(draft).await?, form);
    let response = match verb {
        Verb::GenerateStream => {
            let line = |event: Value| Bytes::from(format!("data: {event}\n\n"));
            sse::plain(generate::events(answer).await?.map(line))
        }
        Verb::Generate => Json(generate::object(answer.whole().await?)?).into_response(),
        _ => infer::written(answer.whole().await?, &binary)?,
    };
    Ok(shapes::finish_response(response, id, ignored))
}

/// Parses a request whose body also has `unknown` members.
fn parse(
    app: &App,
    request: ModelInferRequest,
    tenant: Tenant,
    unknown: Vec<String>,
) -> Result<Call, Refusal> {
    Call::parse(request, unknown, tenant, None, app.config.refuse_unknown_fields)
}

fn check_stream(verb: Verb, form: &Form) -> Result<(), Refusal> {
    match verb {
        Verb::Infer | Verb::Generate if form.streams => {
            let message = "stream must be false in infer and generate; send the request to generate_stream.";
            Err(Refusal::invalid("stream", message))
        }
        _ => Ok(()),
    }
}
