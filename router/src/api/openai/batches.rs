//! `/v1/batches`: batch jobs over uploaded files, in OpenAI's format.

use axum::Json;
use axum::extract::{Extension, Path, Request, State};
use http::Uri;
use serde_json::Value;

use super::error::OpenAiError;
use super::files::store;
use super::metadata::metadata;
use super::page::page;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::http::query::UrlQuery;
use crate::app::App;
use crate::batch::Endpoint;
use crate::batch::jobs::{Job, NewJob};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

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
    let new = new_job(Fields::read(request, &app).await?, &app)?;
    let new = NewJob { rights: tenant.key().map(|key| key.rights.clone()), ..new };
    let job = store.create(&store.owner(tenant.name()), new).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}

/// Reads a body.
pub fn new_job(mut fields: Fields, app: &App) -> Result<NewJob, Refusal> {
    let input_file_id = fields.string("input_file_id");
    let endpoint = fields.string("endpoint");
    let window = fields.string("completion_window");
    let metadata = metadata(&mut fields);
    fields.take("output_expires_after", Kind::WithoutEffect);
    let input_file_id = input_file_id.unwrap_or_else(|| {
        fields
            .note(Refusal::invalid("input_file_id", "input_file_id is missing; upload a file to /v1/files."));
        String::new()
    });
    let endpoint = endpoint.as_deref().and_then(Endpoint::of);
    if endpoint.is_none() {
        let message = format!("endpoint must be {}.", Endpoint::paths());
        fields.note(Refusal::invalid("endpoint", message));
    }
    if window.as_deref() != Some("24h") {
        fields.note(Refusal::invalid("completion_window", "completion_window must be \"24h\"."));
    }
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(NewJob { endpoint: endpoint.unwrap_or(Endpoint::Completions), input_file_id, metadata, rights: None })
}

/// `GET /v1/batches`: lists jobs, newest first.
pub async fn list(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    uri: Uri,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    let page = page(UrlQuery::parse(&uri)?, PAGE, MAX_PAGE)?;
    let jobs = store.jobs(&store.owner(tenant.name()));
    Ok(Json(page.of(jobs.iter().map(Job::to_json).collect())?))
}

/// `GET /v1/batches/{id}`: returns one job.
pub async fn retrieve(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    let job = store.job(&store.owner(tenant.name()), &id).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}

/// `POST /v1/batches/{id}/cancel`: cancels a job.
pub async fn cancel(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    let job = store.cancel(&store.owner(tenant.name()), &id).map_err(Refusal::from)?;
    Ok(Json(job.to_json()))
}
