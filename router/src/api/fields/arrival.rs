//! How a body arrives: what its headers must say, and its limits.

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::HeaderMap;

use super::object::Fields;
use crate::api::http::body::{check_content_encoding, check_content_length, check_content_type, read_body};
use crate::app::App;
use crate::refusal::Refusal;

/// Bodies above this size are parsed off the async threads, so that they delay no stream.
const INLINE_BODY_BYTES: usize = 128 * 1024;

impl Fields {
    /// Reads the body of `request` within the limits of `app`.
    pub async fn read(request: Request, app: &App) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        Self::received_of_any_type(&parts.headers, body, app).await
    }

    /// What `parse` makes of the body of `request` and its headers. A refusal is logged under `id`.
    ///
    /// # Errors
    /// If the body cannot be read, or `parse` refuses it.
    pub async fn parsed<T>(
        request: Request,
        id: &str,
        app: &App,
        parse: impl FnOnce(Self, &HeaderMap) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (parts, body) = request.into_parts();
        let parsed = async {
            check_content_type(&parts.headers)?;
            parse(Self::received_of_any_type(&parts.headers, body, app).await?, &parts.headers)
        };
        parsed.await.inspect_err(|refusal| refusal.log(id))
    }

    /// The same, whatever the content type: `curl -d` without a header calls its body a form.
    pub async fn read_of_any_type(request: Request, app: &App) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        Self::received_of_any_type(&parts.headers, body, app).await
    }

    async fn received_of_any_type(headers: &HeaderMap, body: Body, app: &App) -> Result<Self, Refusal> {
        check_content_encoding(headers)?;
        let limit = app.config.limits.body_bytes;
        check_content_length(headers, limit)?;
        Self::of_body(read_body(body, limit).await?, app).await
    }

    /// Parses a body received over another transport, with its `headers`.
    pub async fn of_other(headers: &HeaderMap, body: Bytes, app: &App) -> Result<Self, Refusal> {
        check_content_type(headers)?;
        check_content_encoding(headers)?;
        Self::of_body(body, app).await
    }

    async fn of_body(body: Bytes, app: &App) -> Result<Self, Refusal> {
        if body.len() <= INLINE_BODY_BYTES {
            return Self::parse(&body);
        }
        app.text_work(body.len(), move || Self::parse(&body)).await
    }
}
