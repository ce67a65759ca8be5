//! Every request has an id of ours, unless its body brings one, and every answer carries a name: what the client
//! sent as `X-Request-Id`, else the id. The header names a trace, which many calls may share, so it is never the id:
//! ids of running requests are unique.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use uuid::Uuid;

use crate::validate::is_request_id;

/// Carries the name in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request whose body brings none, for handlers.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

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
