//! Loads and unloads models, and drains their workers.

use axum::Json;
use axum::extract::{Path, Request, State};
use serde_json::{Value, json};

use super::dispatch::tenant_of;
use crate::api::fields::object::Fields;
use crate::api::http::body::read_body;
use crate::api::kserve::rest::error::KserveError;
use crate::api::openai::error::OpenAiError;
use crate::refusal::Refusal;
use crate::repository::Repository;

/// `POST /models/load` with `{"model": NAME}`, in the form of llama.cpp's router.
pub async fn load(State(models): State<Repository>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let model = ordered(&models, request).await?;
    models.load(model).await?;
    Ok(Json(json!({"success": true})))
}

/// `POST /models/unload` with `{"model": NAME}`.
pub async fn unload(State(models): State<Repository>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let model = ordered(&models, request).await?;
    models.unload(model).await?;
    Ok(Json(json!({"success": true})))
}

/// The model that the body of an order names.
async fn ordered(models: &Repository, request: Request) -> Result<usize, Refusal> {
    let tenant = tenant_of(&request);
    let body = read_body(request.into_body(), models.config().limits.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model");
    fields.finish(models.config().refuse_unknown_fields)?;
    let model = model.ok_or_else(|| Refusal::invalid("model", "model is required: the name of a model."))?;
    models.find(&model, &tenant)
}

/// `POST /v2/repository/models/{model}/load` and `…/unload`. The name may have slashes.
pub async fn of_triton(
    State(models): State<Repository>,
    Path(rest): Path<String>,
    request: Request,
) -> Result<Json<Value>, KserveError> {
    let tenant = tenant_of(&request);
    match rest.rsplit_once('/') {
        Some((model, "load")) => models.load(models.find(model, &tenant)?).await?,
        Some((model, "unload")) => models.unload(models.find(model, &tenant)?).await?,
        _ => {
            let message =
                "There is no such path; a model is moved by /v2/repository/models/NAME/load and …/unload.";
            return Err(Refusal::NotFound(message.to_owned()).into());
        }
    }
    Ok(Json(json!({})))
}

/// `POST /v1/cluster/workers/{worker}/drain` with `{"on": true}` or false.
pub async fn drain(
    State(models): State<Repository>,
    Path(worker): Path<String>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let body = read_body(request.into_body(), models.config().limits.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let on = fields.optional_bool("on").unwrap_or(true);
    fields.finish(models.config().refuse_unknown_fields)?;
    let has = |app: &crate::app::App| app.fleet.workers().iter().any(|status| status.id == worker);
    let Some(app) = models.apps().into_iter().find(has) else {
        let shown: String = worker.chars().take(100).collect();
        return Err(Refusal::NotFound(format!("There is no worker `{shown}`.")).into());
    };
    app.fleet.drain(&worker, on).await?;
    Ok(Json(json!({ "worker": worker, "draining": on })))
}
