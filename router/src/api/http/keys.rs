//! API keys. The layer wraps all routes of an API, so a new route is closed by default.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

use super::error::Refuse;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Carries a key without a scheme.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The keys that open the API; an empty list opens it to all.
#[derive(Clone)]
pub struct ApiKeys(Arc<[(String, Tenant)]>);

impl ApiKeys {
    /// Accepts any of `keys`, or everyone if there are none.
    pub fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| (key.clone(), Tenant::of_key(key))).collect())
    }

    /// Tenant of a request with `headers`; `None` if the request has no valid key.
    pub fn admit(&self, headers: &HeaderMap) -> Option<Tenant> {
        if self.0.is_empty() {
            return Some(Tenant::default());
        }
        let (scheme, given) = match headers.get(AUTHORIZATION) {
            Some(value) => value.as_bytes().split_at_checked(7)?,
            // Anthropic's clients send the key without a scheme.
            None => (&b"bearer "[..], headers.get(X_API_KEY)?.as_bytes()),
        };
        // Compare every key, so that timing reveals neither which key matched nor how much of it.
        let known = self.0.iter().fold(None, |known, (key, tenant)| {
            let same = equal(key.as_bytes(), given.trim_ascii());
            if same { Some(tenant) } else { known }
        });
        known.filter(|_| scheme.eq_ignore_ascii_case(b"bearer ")).cloned()
    }
}

/// Equality in time that depends only on the lengths.
fn equal(key: &[u8], given: &[u8]) -> bool {
    let mut difference = key.len() ^ given.len();
    for (at, byte) in given.iter().enumerate() {
        let of_key = key.get(at % key.len().max(1)).copied().unwrap_or(0);
        difference |= usize::from(std::hint::black_box(of_key ^ byte));
    }
    difference == 0
}

/// Keys of an API, and its form of errors.
#[derive(Clone)]
pub struct KeyCheck {
    /// Keys that open the API.
    pub keys: ApiKeys,
    /// How it refuses a request without one.
    pub refuse: Refuse,
}

/// Refuses a request without a valid key with 401; adds the tenant to every other request.
pub async fn require_key(State(check): State<KeyCheck>, mut request: Request) -> Result<Request, Response> {
    if let Some(tenant) = check.keys.admit(request.headers()) {
        request.extensions_mut().insert(tenant);
        return Ok(request);
    }
    let sent = [AUTHORIZATION, X_API_KEY].iter().any(|name| request.headers().contains_key(name));
    let refusal = if sent { Refusal::Unauthorized } else { Refusal::MissingKey };
    Err((check.refuse)(&request, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_of_a_key_passes() {
        let keys = ApiKeys::new(&["sesame".to_owned(), "second".to_owned()]);
        let check = |value: &str, expected: bool| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(keys.admit(&headers).is_some(), expected, "{value}");
        };
        check("Bearer sesame", true);
        check("bearer second", true);
        check("Bearer sesam", false);
        check("Bearer sesamesesame", false);
        check("Bearer ", false);
        check("Basic sesame", false);
        check("", false);
        let alone = |key: &str| HeaderMap::from_iter([(X_API_KEY, key.parse().unwrap())]);
        assert!(keys.admit(&alone("sesame")).is_some() && keys.admit(&alone("Bearer sesame")).is_none());
        assert!(keys.admit(&HeaderMap::new()).is_none());
        assert!(ApiKeys::new(&[]).admit(&HeaderMap::new()).is_some());
        assert!(
            ApiKeys::new(&[String::new()]).admit(&HeaderMap::new()).is_none(),
            "an empty key opens nothing by absence"
        );
    }
}
