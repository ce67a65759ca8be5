//! Every request has a name, the client's own or a new one, and every answer carries it.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use uuid::Uuid;

use crate::validate::is_request_id;

/// Carries the name in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of the request, for handlers.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// The layer. A header that cannot be a name is passed over: a proxy may have written it.
pub async fn name(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
    let id = given.filter(|id| is_request_id(id)).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    // A handler that found a name in the body has set it already.
    if !response.headers().contains_key(X_REQUEST_ID)
        && let Ok(value) = HeaderValue::from_str(&id)
    {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}
