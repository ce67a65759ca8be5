//! A refusal as a response over HTTP: status, the retry headers that SDKs read, and a body in the form of the
//! API. Each API brings its form; nothing here looks at a request's path.

use std::fmt;
use std::marker::PhantomData;

use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use crate::refusal::Refusal;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Form in which an API writes errors.
pub trait ErrorForm: 'static {
    /// Body of the response, or content of an event.
    fn body(refusal: &Refusal) -> Value;
}

/// A refusal in the form of an API.
pub struct ApiError<F> {
    refusal: Refusal,
    form: PhantomData<fn() -> F>,
}

/// How an API answers a request that none of its handlers sees, such as one without a key.
pub type Refuse = fn(&Request, Refusal) -> Response;

impl<F: ErrorForm> ApiError<F> {
    /// Answers with `refusal`; the same form for all requests.
    pub fn refuse(_: &Request, refusal: Refusal) -> Response {
        Self::from(refusal).into_response()
    }
}

impl<F> From<Refusal> for ApiError<F> {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, form: PhantomData }
    }
}

impl<F> fmt::Debug for ApiError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl<F: ErrorForm> IntoResponse for ApiError<F> {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.refusal.http().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers(&self.refusal), Json(F::body(&self.refusal))).into_response()
    }
}

/// Headers of a refusal over HTTP, besides those of the body.
pub fn headers(refusal: &Refusal) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let retry_after = refusal.retry_after();
    headers
        .insert(SHOULD_RETRY, HeaderValue::from_static(if retry_after.is_some() { "true" } else { "false" }));
    if let Some(after) = retry_after {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    if matches!(refusal, Refusal::CompressedBody(_)) {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if matches!(refusal, Refusal::MissingKey | Refusal::Unauthorized | Refusal::KeyExpired) {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers
}
