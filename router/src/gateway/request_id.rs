//! Every request has an id: what its body names as `request_id` or its `Idempotency-Key` header (both must be the same),
//! else the one that its `Last-Event-ID` begins with, else one of ours. A POST that comes again under an id joins the stream that runs under
//! it. Every answer carries a name: what the client sent as `X-Request-Id`, else the id. That header names a trace,
//! which many calls may share, so it is never the id: calls that differ must not be taken for one.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use super::progress::Progress;
use crate::refusal::Refusal;
use crate::validate::is_request_id;

/// Carries the name in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The id of a request that brings none, for handlers.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// Which request a call is about.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// The request's id.
    pub id: String,
    /// What the client has of its stream.
    pub had: Option<Progress>,
}

/// Reads which request a call is about: `in_body` is its body's `request_id`, `drawn` the id if nobody names it.
///
/// # Errors
/// [`Refusal::Invalid`] for a header that is malformed or that names another request.
pub fn asked(headers: &HeaderMap, in_body: Option<String>, drawn: &str) -> Result<Asked, Refusal> {
    let key = text(headers, &IDEMPOTENCY_KEY, "Idempotency-Key")?;
    if key.is_some_and(|key| !is_request_id(key)) {
        let message = "Idempotency-Key must be 1 to 128 printable ASCII bytes without spaces.";
        return Err(Refusal::invalid("Idempotency-Key", message));
    }
    if let (Some(key), Some(in_body)) = (key, &in_body)
        && key != in_body
    {
        let message = "Idempotency-Key names another request than request_id in the body; \
                       send the same id in both, or one of the two.";
        return Err(Refusal::invalid("Idempotency-Key", message));
    }
    let named = in_body.or_else(|| key.map(str::to_owned));
    // A browser that has seen no id yet says so with an empty one.
    let last = text(headers, &LAST_EVENT_ID, "Last-Event-ID")?.filter(|id| !id.is_empty());
    let Some((id, had)) = last.map(Progress::parse).transpose()? else {
        return Ok(Asked { id: named.unwrap_or_else(|| drawn.to_owned()), had: None });
    };
    if named.is_some_and(|named| named != id) {
        let message = "Last-Event-ID is of another request than request_id or Idempotency-Key names; \
                       send the same id, or Last-Event-ID alone.";
        return Err(Refusal::invalid("Last-Event-ID", message));
    }
    Ok(Asked { id, had: Some(had) })
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

/// The layer. A header that cannot be a name is passed over: a proxy may have written it.
pub async fn name(mut request: Request, next: Next) -> Response {
    let is_name = |value: &HeaderValue| value.to_str().is_ok_and(is_request_id);
    let given = request.headers().get(X_REQUEST_ID).filter(|value| is_name(value)).cloned();
    let id = Uuid::now_v7().to_string();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    // A handler has set the id that it went by; the client's own name goes before it.
    let by_handler = response.headers().get(X_REQUEST_ID).cloned();
    if let Some(name) = given.or(by_handler).or_else(|| HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert(X_REQUEST_ID, name);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(headers: &[(&'static str, &str)], in_body: Option<&str>) -> Result<(String, bool), String> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let asked = asked(&headers, in_body.map(str::to_owned), "drawn");
        asked
            .map(|asked| (asked.id, asked.had.is_some()))
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
    fn headers_that_name_no_request_or_two_are_refused() {
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
    fn a_refusal_names_both_and_repeats_little_of_a_header() {
        let message = |name, value: &str, in_body: Option<&str>| {
            let headers = [(HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect();
            asked(&headers, in_body.map(str::to_owned), "drawn").unwrap_err().to_string()
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
