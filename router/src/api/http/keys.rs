//! API keys. The layer wraps all routes of an API, so a new route is closed by default. The admin key also
//! opens what changes the server for all clients.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderName};

use super::error::Refuse;
use super::nodes::Node;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Carries a key without a scheme.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The keys that open the API; without one that is no admin's, it is open to all.
#[derive(Clone)]
pub struct ApiKeys {
    keys: Arc<[Key]>,
    is_open: bool,
    has_admin: bool,
}

struct Key {
    key: String,
    tenant: Tenant,
    is_admin: bool,
}

/// Whether a request may change the server for all clients: load adapters, or replace the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// It has the admin key, or there are no keys at all.
    Yes,
    /// It has no key.
    NoKey,
    /// It has another key.
    OtherKey,
    /// There are keys, but no admin key.
    NoAdminKey,
}

impl ApiKeys {
    /// Accepts any of `keys` and `admin`, or everyone if there are no `keys`.
    pub fn new(keys: &[String], admin: Option<&str>) -> Self {
        let key = |key: &str, is_admin| Key { key: key.to_owned(), tenant: Tenant::of_key(key), is_admin };
        let all = keys.iter().map(|one| key(one, false)).chain(admin.map(|admin| key(admin, true)));
        Self { keys: all.collect(), is_open: keys.is_empty(), has_admin: admin.is_some() }
    }

    /// Tenant of a request with `headers`; `None` if the request has no valid key.
    pub fn admit(&self, headers: &HeaderMap) -> Option<Tenant> {
        if self.is_open {
            return Some(Tenant::default());
        }
        self.find(headers).map(|key| key.tenant.clone())
    }

    /// What a request with `headers` may change.
    fn admin(&self, headers: &HeaderMap) -> Admin {
        match self.find(headers) {
            _ if self.is_open && !self.has_admin => Admin::Yes,
            Some(key) if key.is_admin => Admin::Yes,
            _ if !self.has_admin => Admin::NoAdminKey,
            _ if !sends_key(headers) => Admin::NoKey,
            _ => Admin::OtherKey,
        }
    }

    fn find(&self, headers: &HeaderMap) -> Option<&Key> {
        let (scheme, given) = match headers.get(AUTHORIZATION) {
            Some(value) => value.as_bytes().split_at_checked(7)?,
            // Anthropic's clients send the key without a scheme.
            None => (&b"bearer "[..], headers.get(X_API_KEY)?.as_bytes()),
        };
        // Compare every key, so that timing reveals neither which key matched nor how much of it.
        let known = self.keys.iter().fold(None, |known, key| {
            let same = equal(key.key.as_bytes(), given.trim_ascii());
            if same { Some(key) } else { known }
        });
        known.filter(|_| scheme.eq_ignore_ascii_case(b"bearer "))
    }
}

impl Admin {
    /// Refuses a request that may not change the server. One that went through no key check may not.
    ///
    /// # Errors
    /// [`Refusal::MissingKey`] or [`Refusal::Forbidden`].
    pub fn require(extensions: &Extensions) -> Result<(), Refusal> {
        match extensions.get().copied().unwrap_or(Self::NoKey) {
            Self::Yes => Ok(()),
            Self::NoKey => Err(Refusal::MissingKey),
            Self::OtherKey => {
                Err(Refusal::Forbidden("This changes the server for all clients and needs its admin key.".into()))
            }
            Self::NoAdminKey => Err(Refusal::Forbidden(
                "This changes the server for all clients, and the server has no admin key; start it with --admin-api-key."
                    .into(),
            )),
        }
    }
}

/// Refuses a request to a route that needs the admin key.
pub async fn require_admin(State(refuse): State<Refuse>, request: Request) -> Result<Request, Response> {
    match Admin::require(request.extensions()) {
        Ok(()) => Ok(request),
        Err(refusal) => Err(refuse(&request, refusal)),
    }
}

fn sends_key(headers: &HeaderMap) -> bool {
    [AUTHORIZATION, X_API_KEY].iter().any(|name| headers.contains_key(name))
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
    if request.extensions().get::<Node>().is_some() {
        // It has checked the keys of its own clients.
        request.extensions_mut().insert(Tenant::default());
        request.extensions_mut().insert(Admin::Yes);
        return Ok(request);
    }
    if let Some(tenant) = check.keys.admit(request.headers()) {
        let admin = check.keys.admin(request.headers());
        request.extensions_mut().insert(tenant);
        request.extensions_mut().insert(admin);
        return Ok(request);
    }
    let refusal = if sends_key(request.headers()) { Refusal::Unauthorized } else { Refusal::MissingKey };
    Err((check.refuse)(&request, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_of_a_key_passes() {
        let keys = ApiKeys::new(&["sesame".to_owned(), "second".to_owned()], None);
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
        assert!(ApiKeys::new(&[], None).admit(&HeaderMap::new()).is_some());
        assert!(
            ApiKeys::new(&[String::new()], None).admit(&HeaderMap::new()).is_none(),
            "an empty key opens nothing by absence"
        );
    }

    #[test]
    fn only_the_admin_key_changes_the_server_and_it_opens_the_rest() {
        let check = |keys: &[&str], admin: Option<&str>, sent: Option<&str>, expected: (bool, Admin)| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            let sent = sent.map(|key| (AUTHORIZATION, format!("Bearer {key}").parse().unwrap()));
            let (keys, headers) = (ApiKeys::new(&keys, admin), HeaderMap::from_iter(sent));
            assert_eq!((keys.admit(&headers).is_some(), keys.admin(&headers)), expected, "{headers:?}");
        };
        check(&[], None, None, (true, Admin::Yes));
        check(&[], None, Some("any"), (true, Admin::Yes));
        check(&[], Some("root"), None, (true, Admin::NoKey));
        check(&[], Some("root"), Some("any"), (true, Admin::OtherKey));
        check(&[], Some("root"), Some("root"), (true, Admin::Yes));
        check(&["one"], None, Some("one"), (true, Admin::NoAdminKey));
        check(&["one"], None, None, (false, Admin::NoAdminKey));
        check(&["one"], Some("root"), None, (false, Admin::NoKey));
        check(&["one"], Some("root"), Some("one"), (true, Admin::OtherKey));
        check(&["one"], Some("root"), Some("root"), (true, Admin::Yes));
        check(&["one"], Some("root"), Some("roo"), (false, Admin::OtherKey));
    }
}
