//! Every request has an id: `request_id` in the body or the `Idempotency-Key` header (equal if both are
//! given), else the id in `Last-Event-ID`, else a generated one. A POST with the id of a running stream joins
//! that stream.
//!
//! Every answer has `X-Request-Id`, on Anthropic's paths also `Request-Id`: the client's value, else the id.
//! The header names a trace, which many calls may share, so it never serves as the id: different calls must
//! not be merged.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use crate::api::answer::progress::Progress;
use crate::ids;
use crate::refusal::Refusal;
use crate::validate::is_request_id;

/// Header that carries the trace name, in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Its name in Anthropic's API.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Generated id, for requests without one.
#[derive(Debug, Clone)]
pub struct RequestId(pub Arc<str>);

/// Identifies the request to which a call refers.
#[derive(Debug, PartialEq)]
pub struct RequestRef {
    /// Id from the client, or generated.
    pub id: Arc<str>,
    /// How much of the stream the client has, from `Last-Event-ID`.
    pub had: Option<Progress>,
    /// Whether the client may come back to this request: it named it, or sent `Last-Event-ID`, empty or not.
    /// Only then do events have ids: genai-perf 0.0.16 takes an event with an id for empty, and litellm
    /// 1.110.2 loses the usage behind one.
    pub may_return: bool,
}

/// Determines the request to which a call refers: `in_body` is the body's `request_id`, `drawn` the generated
/// id.
///
/// # Errors
/// [`Refusal::Invalid`] if a header is malformed or names a different request.
pub fn identify(headers: &HeaderMap, in_body: Option<String>, drawn: &str) -> Result<RequestRef, Refusal> {
    let key = text(headers, &IDEMPOTENCY_KEY, "Idempotency-Key")?;
    if key.is_some_and(|key| !is_request_id(key)) {
        let message = "Idempotency-Key must be 1 to 128 printable ASCII bytes without spaces.";
        return Err(Refusal::invalid("Idempotency-Key", message));
    }
    if let (Some(key), Some(in_body)) = (key, &in_body)
        && key != in_body
    {
        let message = "Idempotency-Key differs from request_id in the body; \
                       send the same id in both, or one of the two.";
        return Err(Refusal::invalid("Idempotency-Key", message));
    }
    let named = in_body.map(Arc::from).or_else(|| key.map(Arc::from));
    // A browser that has not yet received an id sends an empty header.
    let last = text(headers, &LAST_EVENT_ID, "Last-Event-ID")?.filter(|id| !id.is_empty());
    let may_return = named.is_some() || headers.contains_key(&LAST_EVENT_ID);
    let Some((id, had)) = last.map(Progress::parse).transpose()? else {
        return Ok(RequestRef { id: named.unwrap_or_else(|| drawn.into()), had: None, may_return });
    };
    if named.is_some_and(|named: Arc<str>| *named != *id) {
        let message = "Last-Event-ID belongs to a different request than request_id or Idempotency-Key; \
                       send the same id, or Last-Event-ID alone.";
        return Err(Refusal::invalid("Last-Event-ID", message));
    }
    Ok(RequestRef { id: id.into(), had: Some(had), may_return })
}

fn text<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    param: &'static str,
) -> Result<Option<&'a str>, Refusal> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value
        .to_str()
        .map(|text| Some(text.trim()))
        .map_err(|_| Refusal::invalid(param, format!("{param} must be printable ASCII.")))
}

/// Puts `X-Request-Id` on every answer. An invalid value in the request is ignored, because a proxy may have
/// set it.
pub fn name<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request, RequestId) -> F,
) -> impl Future<Output = Response> {
    let is_name = |value: &HeaderValue| value.to_str().is_ok_and(is_request_id);
    let is_anthropics = request.uri().path().contains("/v1/messages");
    let given = request.headers().get(X_REQUEST_ID).filter(|value| is_name(value)).cloned();
    let id: Arc<str> = (&*ids::drawn().hyphenated().encode_lower(&mut Uuid::encode_buffer())).into();
    next(request, RequestId(id.clone())).map(move |mut response| {
        let headers = response.headers_mut();
        // The handler sets the id that it used; the client's value takes precedence.
        if let Some(given) = given {
            headers.insert(X_REQUEST_ID, given);
        } else if let http::header::Entry::Vacant(entry) = headers.entry(X_REQUEST_ID)
            && let Ok(name) = HeaderValue::from_str(&id)
        {
            entry.insert(name);
        }
        if is_anthropics && let Some(name) = headers.get(X_REQUEST_ID).cloned() {
            headers.insert(REQUEST_ID, name);
        }
        response
    })
}

/// [`name`] as a layer: handlers find the id in the extensions.
pub async fn layer(request: Request, next: Next) -> Response {
    let with_id = |mut request: Request, id| {
        request.extensions_mut().insert(id);
        next.run(request)
    };
    name(request, with_id).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(headers: &[(&'static str, &str)], in_body: Option<&str>) -> Result<(String, bool), String> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let identified = identify(&headers, in_body.map(str::to_owned), "drawn");
        identified
            .map(|request| (request.id.to_string(), request.had.is_some()))
            .map_err(|refusal| refusal.param().unwrap().to_owned())
    }

    #[test]
    fn a_request_is_named_by_its_body_or_its_headers() {
        let named = |id: &str, had| Ok((id.to_owned(), had));
        assert_eq!(ask(&[], None), named("drawn", false));
        assert_eq!(ask(&[("idempotency-key", "key")], None), named("key", false));
        assert_eq!(ask(&[], Some("body")), named("body", false));
        assert_eq!(ask(&[("idempotency-key", "body")], Some("body")), named("body", false));
        assert_eq!(ask(&[("x-request-id", "trace")], None), named("drawn", false));
        assert_eq!(ask(&[("last-event-id", "mine/3.4")], None), named("mine", true));
        assert_eq!(ask(&[("last-event-id", "mine/3.4")], Some("mine")), named("mine", true));
        assert_eq!(
            ask(&[("last-event-id", "key/3.4"), ("idempotency-key", "key")], None),
            named("key", true)
        );
        assert_eq!(ask(&[("last-event-id", "")], None), named("drawn", false));
    }

    #[test]
    fn malformed_or_conflicting_ids_are_refused() {
        let refused = |param: &str| Err(param.to_owned());
        assert_eq!(ask(&[("idempotency-key", "a b")], None), refused("Idempotency-Key"));
        assert_eq!(ask(&[("idempotency-key", "")], None), refused("Idempotency-Key"));
        assert_eq!(ask(&[("last-event-id", "mine")], None), refused("Last-Event-ID"));
        assert_eq!(ask(&[("last-event-id", "mine/3.4")], Some("yours")), refused("Last-Event-ID"));
        assert_eq!(
            ask(&[("last-event-id", "mine/3.4"), ("idempotency-key", "x")], None),
            refused("Last-Event-ID")
        );
        assert_eq!(ask(&[("idempotency-key", "key")], Some("body")), refused("Idempotency-Key"));
        assert_eq!(
            ask(&[("last-event-id", "body/3.4"), ("idempotency-key", "key")], Some("body")),
            refused("Idempotency-Key")
        );
    }

    #[test]
    fn a_refusal_names_both_fields_and_quotes_little_of_a_header() {
        let message = |name, value: &str, in_body: Option<&str>| {
            let headers = [(HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect();
            identify(&headers, in_body.map(str::to_owned), "drawn").unwrap_err().to_string()
        };
        let both = message("idempotency-key", "key", Some("body"));
        assert!(both.contains("Idempotency-Key") && both.contains("request_id"), "{both}");
        let long = "x".repeat(10_000);
        for name in ["idempotency-key", "last-event-id"] {
            let repeated = message(name, &long, Some("body")).matches('x').count();
            assert!(repeated <= 128, "{name}: {repeated}");
        }
        let state = format!("{}/3.4", "x".repeat(1000));
        assert!(message("last-event-id", &state, Some("body")).matches('x').count() <= 128);
    }
}
