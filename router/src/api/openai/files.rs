//! `/v1/files`: inputs and outputs of batches, in OpenAI's format.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::Uri;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Limited};
use multer::{Field, Multipart};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::error::OpenAiError;
use super::page::page;
use crate::api::http::pace::{Paced, TooSlow};
use crate::api::http::query::UrlQuery;
use crate::app::App;
use crate::batch::jobs::{FileRecord, MAX_FILE_BYTES, Store, StoreError, Upload};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Largest upload, in bytes: a file and its multipart framing.
const MAX_FORM_BYTES: usize = MAX_FILE_BYTES as usize + (1 << 20);
/// Bytes of a file sent per chunk.
const PIECE_BYTES: usize = 64 << 10;
/// Most files on one page of the list, and their number if the client sets no limit; as at OpenAI.
const MAX_PAGE: usize = 10_000;
/// Longest file name and longest text of a form field, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// Batch store of this router.
///
/// # Errors
/// [`Refusal::NotFound`] if the router has none.
pub fn store(app: &App) -> Result<&Arc<Store>, Refusal> {
    let missing = || {
        let message =
            "This server stores no batches; start it with --batch-dir DIR, or use `skein run-batch`.";
        Refusal::NotFound(message.to_owned())
    };
    app.batches.as_ref().ok_or_else(missing)
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unknown { .. } => Self::NotFound(format!("{}.", sentence(&error))),
            StoreError::TooLarge => Self::TooLarge { limit: MAX_FILE_BYTES as usize },
            StoreError::Full => Self::NoRoom,
            _ if error.is_disk_full() => Self::NoRoom,
            StoreError::TooManyFiles(_)
            | StoreError::TooManyBytes(_)
            | StoreError::TooManyJobs(_)
            | StoreError::FileInUse { .. } => {
                Self::Invalid { param: None, message: format!("{}.", sentence(&error)) }
            }
            StoreError::Io { .. } | StoreError::InUse(_) | StoreError::NotALog { .. } => {
                tracing::error!(%error, "batches");
                Self::Internal
            }
        }
    }
}

fn sentence(error: &StoreError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// `POST /v1/files`: uploads a form with `purpose` and `file`.
pub async fn upload(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?.clone();
    let owner = store.owner(tenant.name());
    let record = read_form(&store, &owner, form(request)?).await?;
    Ok(Json(record.to_json()))
}

/// Parses the multipart form in the body of `request`, up to its size limit.
fn form(request: Request) -> Result<Multipart<'static>, Refusal> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(content_type.unwrap_or_default()).map_err(|error| {
        Refusal::invalid("file", format!("Send multipart/form-data with `purpose` and `file`: {error}."))
    })?;
    let body = Paced::new(Limited::new(request.into_body(), MAX_FORM_BYTES)).into_data_stream();
    Ok(Multipart::new(body, boundary))
}

async fn read_form(store: &Store, owner: &str, mut form: Multipart<'static>) -> Result<FileRecord, Refusal> {
    let (mut purpose, mut upload) = (None, None);
    while let Some(field) = form.next_field().await.map_err(broken)? {
        match field.name().unwrap_or_default() {
            "purpose" => purpose = Some(text(field).await?),
            "file" => {
                let name = field.file_name().unwrap_or("input.jsonl").chars().take(MAX_TEXT_BYTES).collect();
                let mut file = store.upload(owner)?;
                copy(field, &mut file).await?;
                upload = Some((file, name));
            }
            // For example `expires_after[anchor]`. Ignored, because files are kept until they are deleted.
            _ => drop(text(field).await?),
        }
    }
    let (file, name): (Upload<'_>, String) =
        upload.ok_or_else(|| Refusal::invalid("file", "The form has no field `file`."))?;
    match purpose.as_deref() {
        Some("batch") => Ok(file.finish(&name)?),
        Some(other) => Err(Refusal::invalid("purpose", format!("purpose must be \"batch\", got {other:?}."))),
        None => Err(Refusal::invalid("purpose", "The form has no field `purpose`; send \"batch\".")),
    }
}

async fn copy(mut field: Field<'_>, file: &mut Upload<'_>) -> Result<(), Refusal> {
    while let Some(bytes) = field.chunk().await.map_err(broken)? {
        file.write(&bytes)?;
    }
    Ok(())
}

async fn text(mut field: Field<'_>) -> Result<String, Refusal> {
    let mut bytes = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > MAX_TEXT_BYTES {
            return Err(Refusal::invalid(
                "file",
                format!("A field of the form is over {MAX_TEXT_BYTES} bytes."),
            ));
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|_| Refusal::invalid("file", "A field of the form is not UTF-8."))
}

fn broken(error: multer::Error) -> Refusal {
    if let multer::Error::StreamReadFailed(cause) = &error
        && cause.downcast_ref::<http_body_util::LengthLimitError>().is_some()
    {
        return Refusal::TooLarge { limit: MAX_FILE_BYTES as usize };
    }
    if let multer::Error::StreamReadFailed(cause) = &error
        && let Some(slow) = cause.downcast_ref::<TooSlow>()
    {
        return Refusal::invalid("file", format!("The form did not arrive: {slow}."));
    }
    Refusal::invalid("file", format!("The form is malformed: {error}."))
}

/// `GET /v1/files`: lists files, newest first unless `order` is `asc`.
pub async fn list(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    uri: Uri,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    let mut query = UrlQuery::parse(&uri)?;
    let purpose = query.take("purpose");
    let page = page(query, MAX_PAGE, MAX_PAGE)?;
    let files = store.files(&store.owner(tenant.name())).into_iter().map(|file| file.to_json());
    let is_asked = |file: &Value| purpose.as_deref().is_none_or(|purpose| file["purpose"] == purpose);
    Ok(Json(page.of(files.filter(is_asked).collect())?))
}

/// `GET /v1/files/{id}`: describes a file.
pub async fn retrieve(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    let record = store.file(&store.owner(tenant.name()), &id).map_err(Refusal::from)?;
    Ok(Json(record.to_json()))
}

/// `DELETE /v1/files/{id}`: deletes a file.
pub async fn delete(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let store = store(&app)?;
    store.delete(&store.owner(tenant.name()), &id).map_err(Refusal::from)?;
    Ok(Json(json!({"id": id, "object": "file", "deleted": true})))
}

/// `GET /v1/files/{id}/content`: downloads a file.
pub async fn content(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Response, OpenAiError> {
    let store = store(&app)?;
    let record = store.file(&store.owner(tenant.name()), &id).map_err(Refusal::from)?;
    let path = store.content(&record.id);
    let file = tokio::fs::File::open(&path).await;
    let file = file.map_err(|error| Refusal::from(StoreError::Io { path, error }))?;
    let pieces = futures::stream::try_unfold(file, async |mut file| {
        let mut piece = vec![0; PIECE_BYTES];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then_some((piece, file)))
    });
    let body = Body::from_stream(pieces);
    Ok(([(CONTENT_TYPE, "application/jsonl")], body).into_response())
}
