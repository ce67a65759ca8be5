//! Lists of the models, in the form of each API.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use skein_node::clock;
use skein_text::strftime::strftime;

use super::dispatch::tenant_of;
use crate::api::fields::object::Fields;
use crate::api::http::body::read_body;
use crate::api::kserve::index_of;
use crate::api::kserve::rest as kserve;
use crate::api::kserve::rest::error::KserveError;
use crate::api::ollama::error::OllamaError;
use crate::api::ollama::models::{NEVER, asked, digest, listed_model, shown_of_text, untagged};
use crate::api::{anthropic, models as shared, openai};
use crate::refusal::Refusal;
use crate::repository::residency::{KeepAlive, Stage};
use crate::repository::{Entry, ModelStatus, Repository};
use crate::request::tenant::Tenant;

/// Form of times in Ollama's API.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";

/// `GET /v1/models`.
pub async fn models(
    State(models): State<Repository>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Response {
    if !shared::is_anthropic(&request) {
        return Json(json!({"object": "list", "data": of_openai(&models, &tenant)})).into_response();
    }
    let names = names(&models, &tenant);
    let page = anthropic::models::page(&names, models.created(), request.uri());
    page.map_or_else(|refusal| shared::refuse(&request, refusal), |page| Json(page).into_response())
}

/// Names that a tenant may use, those of adapters of models in memory included.
fn names(models: &Repository, tenant: &Tenant) -> Vec<String> {
    models.listed(|app, entry, _| match app {
        Some(app) => app.names(tenant).into_iter().map(|(name, _)| name.to_string()).collect(),
        None => {
            let names = entry.names.iter().filter(|name| tenant.may_use(name.as_ref()));
            names.map(ToString::to_string).collect()
        }
    })
}

fn of_openai(models: &Repository, tenant: &Tenant) -> Vec<Value> {
    models.listed(|app, entry, status| {
        let listed: Vec<Value> = match app {
            Some(app) => {
                let names = app.names(tenant).into_iter();
                names.map(|(name, is_adapter)| openai::models::model(app, &name, is_adapter)).collect()
            }
            None => {
                let names = entry.names.iter().filter(|name| tenant.may_use(name.as_ref()));
                names.map(|name| on_disk(entry, name, models.created())).collect()
            }
        };
        let with_status = |mut model: Value| {
            // That of the server: an app begins anew with each load.
            model["created"] = models.created().into();
            model["status"] = status_json(status);
            model
        };
        listed.into_iter().map(with_status).collect()
    })
}

/// A model that is not in memory, as [`openai::models::model`] has one that is.
fn on_disk(entry: &Entry, name: &str, created: u64) -> Value {
    json!({
        "id": name, "object": "model", "created": created, "owned_by": "skein", "root": name, "parent": null,
        "max_model_len": entry.max_model_len, "version": null,
    })
}

/// Where a model is, in the form of llama.cpp's router.
pub fn status_json(status: &ModelStatus) -> Value {
    let mut of_model = json!({"value": word(status.stage), "requests": status.requests});
    if let Some(reason) = &status.failed {
        of_model["failed"] = true.into();
        of_model["reason"] = reason.as_str().into();
    }
    of_model
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Unloaded => "unloaded",
        Stage::Loading => "loading",
        Stage::Loaded => "loaded",
        Stage::Leaving | Stage::Ending => "unloading",
    }
}

/// `GET /v1/models/{id}`.
pub async fn model(
    State(models): State<Repository>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let tenant = tenant_of(&request);
    let not_text = |_| Refusal::invalid("model", "The model's name in the path is not UTF-8.");
    let found = id.map_err(not_text).and_then(|Path(id)| models.find(&id, &tenant).map(|_| id));
    match found {
        Err(refusal) => shared::refuse(&request, refusal),
        Ok(id) if shared::is_anthropic(&request) => {
            Json(anthropic::models::model(models.created(), &id)).into_response()
        }
        Ok(id) => {
            let all = of_openai(&models, &tenant);
            Json(all.into_iter().find(|model| model["id"] == *id).unwrap_or_default()).into_response()
        }
    }
}

/// `GET /api/tags`.
pub async fn tags(State(models): State<Repository>, Extension(tenant): Extension<Tenant>) -> Json<Value> {
    let modified_at = strftime(TIME, Duration::from_secs(models.created()));
    let all = models.listed(|app, entry, _| {
        of_ollama(app.map_or_else(String::new, digest), entry, &tenant, |model| {
            model["modified_at"] = modified_at.as_str().into();
        })
    });
    Json(json!({"models": all}))
}

/// `GET /api/ps`.
pub async fn ps(State(models): State<Repository>, Extension(tenant): Extension<Tenant>) -> Json<Value> {
    let now = clock::unix_time();
    let all = models.listed(|app, entry, status| {
        let Some(app) = app else { return Vec::new() };
        let expires_at = match (status.expires_in, models.keep_alive(status.model)) {
            (Some(left), _) => strftime(TIME, now + left),
            // It is in use: its time begins with the end of the last request.
            (None, KeepAlive::For(time)) => strftime(TIME, now + time),
            (None, _) => NEVER.to_owned(),
        };
        of_ollama(digest(app), entry, &tenant, |model| {
            model["expires_at"] = expires_at.as_str().into();
            model["size"] = entry.bytes.into();
            model["size_vram"] = 0.into();
            model["context_length"] =
                app.fleet.model_limits().map_or(entry.max_model_len, |limits| limits.max_model_len).into();
        })
    });
    Json(json!({"models": all}))
}

fn of_ollama(digest: String, entry: &Entry, tenant: &Tenant, complete: impl Fn(&mut Value)) -> Vec<Value> {
    let names = entry.names.iter().filter(|name| tenant.may_use(name.as_ref()));
    let model = |name| {
        let mut model = listed_model(name, &entry.facts, &digest);
        complete(&mut model);
        model
    };
    names.map(|name| model(&**name)).collect()
}

/// `POST /api/show`: from the model's files, whether or not it is in memory.
pub async fn show(State(models): State<Repository>, request: Request) -> Result<Json<Value>, OllamaError> {
    let tenant = tenant_of(&request);
    let body = read_body(request.into_body(), models.config().limits.body_bytes).await?;
    let name = asked(&mut Fields::parse(&body)?);
    let name = name.ok_or_else(|| Refusal::invalid("model", "model is required."))?;
    let number = models.find(untagged(&name), &tenant)?;
    Ok(Json(models.described(number, shown_of_text).await?))
}

/// `GET /v2/models`.
pub async fn kserve_models(
    State(models): State<Repository>,
    Extension(tenant): Extension<Tenant>,
) -> Json<Value> {
    Json(json!({"models": names(&models, &tenant)}))
}

/// `POST /v2/repository/index`; the body may be empty.
pub async fn kserve_index(
    State(models): State<Repository>,
    request: Request,
) -> Result<Json<Value>, KserveError> {
    let tenant = tenant_of(&request);
    let body = read_body(request.into_body(), models.config().limits.body_bytes).await?;
    let only_ready = match body.trim_ascii() {
        b"" => false,
        json => kserve::only_ready(Fields::parse(json)?)?,
    };
    Ok(Json(kserve::written_index(index_of(&models, &tenant, only_ready))))
}
