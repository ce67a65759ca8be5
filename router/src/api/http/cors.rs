//! Cross-origin requests from browsers (CORS, Fetch Standard). By default no other origin is allowed.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::rate_limits;

/// How long a browser may cache the answer to a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(3600);

/// Response headers that pages may read, beyond those that browsers always expose.
const EXPOSED: [HeaderName; 7] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("x-ignored-params"),
    HeaderName::from_static("x-skein-receipt"),
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("retry-after-ms"),
];

/// CORS layer for `origins`; `*` allows every origin. `None` if no origin is allowed.
///
/// Credentials are never allowed: a page sends its key in a header.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            // SDKs send many custom headers, and the wildcard does not cover `Authorization`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED.into_iter().chain(rate_limits::names()).collect::<Vec<_>>())
            .max_age(PREFLIGHT_AGE),
    )
}
