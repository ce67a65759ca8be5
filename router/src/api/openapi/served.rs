//! `GET /openapi.json`. It names the models that the caller may use and the limits of the server, so it needs
//! a key where the API does.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use skein_choice::limits::ModelLimits;
use xxhash_rust::xxh3::xxh3_64;

use super::document::document;
use super::operation::{self, JSON, Operation, Part};
use super::room::Room;
use super::schema::Now;
use crate::api::http::tagged;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Most documents kept: one for each set of names that a caller may use.
const KEPT: usize = 8;
/// Cost of making one, as bytes of text to tokenise: it is made off the async threads.
const WORK_BYTES: usize = 256 * 1024;

static PART: Part =
    Part { name: "About", about: "What this server is, and whether it is well.", errors: "OpenAiError" };

/// Its route.
pub fn room() -> Room {
    let about = operation::get("openapi", "This document, in OpenAPI 3.1.");
    let about = about.gives("OpenApi").answers(304, "", None).refuses(&[500]);
    Room::new(&PART).route("/openapi.json", get(answer), [about])
}

/// What a document depends on.
#[derive(Clone, PartialEq)]
struct Basis {
    model: Option<ModelLimits>,
    names: Vec<String>,
}

/// A document as it is sent.
#[derive(Clone)]
struct Written {
    basis: Basis,
    tag: HeaderValue,
    plain: Bytes,
    gzip: Bytes,
}

/// Describes `operations`, once for each state of the model that callers may see.
#[derive(Clone)]
pub struct Describer {
    operations: Arc<[Operation]>,
    kept: Arc<Mutex<Vec<Written>>>,
}

/// Serves the description of `operations` to the route of [`room`].
pub fn serve(operations: Vec<Operation>) -> Extension<Describer> {
    Extension(Describer { operations: operations.into(), kept: Arc::default() })
}

impl Describer {
    async fn written(&self, app: &App, tenant: &Tenant) -> Result<Written, Refusal> {
        let names = app.names(tenant).into_iter().map(|(name, _)| name.to_string()).collect();
        let basis = Basis { model: app.fleet.model_limits().ok(), names };
        if let Some(known) = self.kept().iter().find(|written| written.basis == basis) {
            return Ok(known.clone());
        }
        let (describer, of) = (self.clone(), app.clone());
        let describe = move || Ok(describer.keep(write(&of, &describer.operations, basis)));
        app.text_work(WORK_BYTES, describe).await
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Written>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, written: Written) -> Written {
        let mut kept = self.kept();
        kept.insert(0, written.clone());
        kept.truncate(KEPT);
        written
    }
}

fn write(app: &App, operations: &[Operation], basis: Basis) -> Written {
    let now = Now { app, model: basis.model, names: basis.names.clone() };
    let plain = Bytes::from(document(operations, &now).to_string());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let gzip = encoder.write_all(&plain).and_then(|()| encoder.finish()).unwrap_or_default();
    let tag = HeaderValue::from_str(&format!("W/\"{:016x}\"", xxh3_64(&plain)));
    Written { basis, tag: tag.unwrap_or_else(|_| HeaderValue::from_static("\"\"")), plain, gzip: gzip.into() }
}

async fn answer(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    Extension(describer): Extension<Describer>,
    headers: HeaderMap,
) -> Result<Response, OpenAiError> {
    Ok(describer.answer(&app, &tenant, &headers).await?)
}

impl Describer {
    /// Answers with the document of `app` for `tenant`.
    ///
    /// # Errors
    /// If too much text work is under way.
    pub async fn answer(&self, app: &App, tenant: &Tenant, headers: &HeaderMap) -> Result<Response, Refusal> {
        let Written { tag, plain, gzip, .. } = self.written(app, tenant).await?;
        let vary = "accept-encoding, authorization, x-api-key";
        let fixed = [(CONTENT_TYPE, JSON), (CACHE_CONTROL, "private, no-cache"), (VARY, vary)];
        Ok((fixed, tagged::answer(headers, tag, gzip, || Some(plain))).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_documents_are_kept() {
        let describer = serve(Vec::new()).0;
        let written = |name: usize| Written {
            basis: Basis { model: None, names: vec![name.to_string()] },
            tag: HeaderValue::from_static("\"\""),
            plain: Bytes::new(),
            gzip: Bytes::new(),
        };
        (0..100).for_each(|name| drop(describer.keep(written(name))));
        let kept = describer.kept();
        let names: Vec<&str> = kept.iter().map(|written| &*written.basis.names[0]).collect();
        assert_eq!(names, ["99", "98", "97", "96", "95", "94", "93", "92"]);
    }
}
