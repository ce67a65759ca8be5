//! `/v1/batches`: batch jobs over uploaded files, in OpenAI's format.

use axum::Json;
use axum::extract::{Extension, Path, Query, Request, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::OpenAiError;
use super::files::store;
use crate::api::fields::object::Fields;
use crate::app::App;
use crate::batch::Endpoint;
use crate::batch::jobs::{Job, NewJob};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Most entries in `metadata`; OpenAI's limit.
const MAX_METADATA: usize = 16;
/// Most jobs on one page of the list.
const MAX_PAGE: usize = 100;
/// Jobs on a page of the list if the client sets no limit.
const PAGE: usize = 20;

/// `POST /v1/batches`: creates a job.
pub async fn create(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?.clone();
    let new = new_job(Fields::read(request, &app).await?, app.config.refuse_unknown_fields)?;
    let job = store.create(tenant.name(), new).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}

fn new_job(mut fields: Fields, refuse_unknown: bool) -> Result<NewJob, Refusal> {
    let input_file_id = fields.string("input_file_id");
    let endpoint = fields.string("endpoint");
    let window = fields.string("completion_window");
    let metadata = fields.take("metadata");
    fields.take("output_expires_after");
    let input_file_id = input_file_id.unwrap_or_else(|| {
        fields
            .note(Refusal::invalid("input_file_id", "input_file_id is missing; upload a file to /v1/files."));
        String::new()
    });
    let endpoint = endpoint.as_deref().and_then(Endpoint::of);
    if endpoint.is_none() {
        let message = "endpoint must be \"/v1/chat/completions\" or \"/v1/completions\".";
        fields.note(Refusal::invalid("endpoint", message));
    }
    if window.as_deref() != Some("24h") {
        fields.note(Refusal::invalid("completion_window", "completion_window must be \"24h\"."));
    }
    let metadata = match metadata {
        None => Map::new(),
        Some(Value::Object(metadata)) if metadata.len() <= MAX_METADATA => metadata,
        Some(_) => {
            let message = format!("metadata must be an object of at most {MAX_METADATA} entries.");
            fields.note(Refusal::invalid("metadata", message));
            Map::new()
        }
    };
    fields.finish(refuse_unknown)?;
    Ok(NewJob { endpoint: endpoint.unwrap_or(Endpoint::Completions), input_file_id, metadata })
}

/// Start and length of a page of the list.
#[derive(Debug, Deserialize)]
pub struct Page {
    after: Option<String>,
    limit: Option<usize>,
}

/// `GET /v1/batches`: lists jobs, newest first.
pub async fn list(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, OpenAiError> {
    let jobs = store(&app)?.jobs(tenant.name());
    let limit = page.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let start = match &page.after {
        None => 0,
        Some(after) => jobs.iter().position(|job| job.id == *after).map_or(jobs.len(), |at| at + 1),
    };
    let rest = &jobs[start..];
    let data: Vec<Value> = rest.iter().take(limit).map(Job::to_json).collect();
    let id = |job: Option<&Value>| job.map_or(Value::Null, |job| job["id"].clone());
    Ok(Json(json!({
        "object": "list", "first_id": id(data.first()), "last_id": id(data.last()),
        "has_more": rest.len() > data.len(), "data": data,
    })))
}

/// `GET /v1/batches/{id}`: returns one job.
pub async fn retrieve(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let job = store(&app)?.job(tenant.name(), &id).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}

/// `POST /v1/batches/{id}/cancel`: cancels a job.
pub async fn cancel(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let job = store(&app)?.cancel(tenant.name(), &id).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}
