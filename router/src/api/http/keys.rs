//! API keys. The layer wraps all routes of an API, so a new route is closed by default. Keys come from flags
//! and from the keys file. An admin key also opens what changes the server for all clients.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderName};

use super::error::Refuse;
use super::nodes::Node;
use super::origin;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::tenants::{Found, KeysFile};

/// Carries a key without a scheme.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The keys that open the API; without one that is no admin's, and without a keys file, it is open to all.
#[derive(Clone)]
pub struct ApiKeys {
    keys: Arc<[Key]>,
    is_open: bool,
    /// Only programs and pages of this computer reach it, unless a page of another origin is tricked here.
    is_local: bool,
    has_admin: bool,
    file: Option<KeysFile>,
}

struct Key {
    key: String,
    tenant: Tenant,
    is_admin: bool,
}

/// A request that passed the key check.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Whose it is.
    pub tenant: Tenant,
    /// What it may change.
    pub admin: Admin,
}

/// Whether a request may change the server for all clients: load adapters, or replace the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// It has the admin key, or there are no keys at all.
    Yes,
    /// There are no keys, and a page of another origin may have sent it.
    OtherOrigin,
    /// It has no key.
    NoKey,
    /// It has another key.
    OtherKey,
    /// There are keys, but no admin key.
    NoAdminKey,
}

impl ApiKeys {
    /// The keys of a router.
    pub fn of(config: &RouterConfig) -> Self {
        let RouterConfig { api_keys, admin_api_key, keys_file, .. } = config;
        let keys = Self::new(api_keys, admin_api_key.as_deref());
        let is_open = keys.is_open && keys_file.is_none();
        Self { is_open, is_local: config.listen.ip().is_loopback(), file: keys_file.clone(), ..keys }
    }

    /// Accepts any of `keys` and `admin`, or everyone if there are no `keys`.
    pub fn new(keys: &[String], admin: Option<&str>) -> Self {
        let key = |key: &str, is_admin| Key { key: key.to_owned(), tenant: Tenant::of_key(key), is_admin };
        let all = keys.iter().map(|one| key(one, false)).chain(admin.map(|admin| key(admin, true)));
        let (is_open, has_admin) = (keys.is_empty(), admin.is_some());
        Self { keys: all.collect(), is_open, is_local: false, has_admin, file: None }
    }

    /// Whether keys may have limits, which answers then show.
    pub fn has_limits(&self) -> bool {
        self.file.is_some()
    }

    /// Checks the key of a request with `headers`.
    ///
    /// # Errors
    /// [`Refusal::MissingKey`], [`Refusal::Unauthorized`] or [`Refusal::KeyExpired`].
    pub fn admit(&self, headers: &HeaderMap) -> Result<Admitted, Refusal> {
        let (tenant, is_admins) = self.tenant(headers)?;
        Ok(Admitted { tenant, admin: self.admin(is_admins, headers) })
    }

    /// Whose a request is. A node has checked the keys of its own clients.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub fn tenant_of(&self, request: &Request) -> Result<Tenant, Refusal> {
        if request.extensions().get::<Node>().is_some() {
            return Ok(Tenant::default());
        }
        self.tenant(request.headers()).map(|(tenant, _)| tenant)
    }

    /// Whose a request with `headers` is, and whether its key is an admin's.
    fn tenant(&self, headers: &HeaderMap) -> Result<(Tenant, bool), Refusal> {
        let given = given(headers);
        let known = given.and_then(|given| self.find(given));
        let of_file = match (known, given, &self.file) {
            (None, Some(given), Some(file)) => Some(file.find(given)),
            _ => None,
        };
        match (known, of_file) {
            // Without keys the one that a client sends means nothing, unless it is the admin's.
            _ if self.is_open => Ok((Tenant::default(), known.is_some_and(|key| key.is_admin))),
            (Some(key), _) => Ok((key.tenant.clone(), key.is_admin)),
            (None, Some(Found::Key(key))) => {
                let is_admins = key.is_admin;
                Ok((Tenant::of_entry(key), is_admins))
            }
            (None, Some(Found::Expired)) => Err(Refusal::KeyExpired),
            (None, _) if sends_key(headers) => Err(Refusal::Unauthorized),
            (None, _) => Err(Refusal::MissingKey),
        }
    }

    /// What a request may change, whose key is an admin's or not.
    fn admin(&self, is_admins: bool, headers: &HeaderMap) -> Admin {
        let has_admin = self.has_admin || self.file.as_ref().is_some_and(KeysFile::has_admin);
        match () {
            () if is_admins => Admin::Yes,
            () if self.is_open && !has_admin => match self.is_local && !origin::is_own(headers) {
                true => Admin::OtherOrigin,
                false => Admin::Yes,
            },
            () if !has_admin => Admin::NoAdminKey,
            () if !sends_key(headers) => Admin::NoKey,
            () => Admin::OtherKey,
        }
    }

    /// The key of a flag that equals `given`.
    fn find(&self, given: &[u8]) -> Option<&Key> {
        // Compare every key, so that timing reveals neither which key matched nor how much of it.
        self.keys.iter().fold(None, |known, key| {
            let same = equal(key.key.as_bytes(), given);
            if same { Some(key) } else { known }
        })
    }
}

/// The key that a request sends; `None` without one, or with another scheme.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let given = match headers.get(AUTHORIZATION) {
        Some(value) => {
            let (scheme, given) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(given)?
        }
        // Anthropic's clients send the key without a scheme.
        None => headers.get(X_API_KEY)?.as_bytes(),
    };
    Some(given.trim_ascii())
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
            Self::OtherOrigin => Err(Refusal::Forbidden(
                "This changes the server for all clients. Without keys it is taken from programs and pages of this \
                 computer only: the host must be an address or localhost, and the origin the same. Start the server \
                 with --admin-api-key."
                    .into(),
            )),
            Self::OtherKey => {
                Err(Refusal::Forbidden("This changes the server for all clients and needs its admin key.".into()))
            }
            Self::NoAdminKey => Err(Refusal::Forbidden(
                "This changes the server for all clients, and the server has no admin key; start it with --admin-api-key, or give a \
                 key of the keys file admin = true."
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
    match check.keys.admit(request.headers()) {
        Ok(Admitted { tenant, admin }) => {
            request.extensions_mut().insert(tenant);
            request.extensions_mut().insert(admin);
            Ok(request)
        }
        Err(refusal) => Err((check.refuse)(&request, refusal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_of_a_key_passes() {
        let keys = ApiKeys::new(&["sesame".to_owned(), "second".to_owned()], None);
        let check = |value: &str, expected: bool| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(keys.admit(&headers).is_ok(), expected, "{value}");
        };
        check("Bearer sesame", true);
        check("bearer second", true);
        check("Bearer sesam", false);
        check("Bearer sesamesesame", false);
        check("Bearer ", false);
        check("Basic sesame", false);
        check("", false);
        let alone = |key: &str| HeaderMap::from_iter([(X_API_KEY, key.parse().unwrap())]);
        assert!(keys.admit(&alone("sesame")).is_ok() && keys.admit(&alone("Bearer sesame")).is_err());
        assert!(keys.admit(&HeaderMap::new()).is_err());
        assert!(ApiKeys::new(&[], None).admit(&HeaderMap::new()).is_ok());
        assert!(
            ApiKeys::new(&[String::new()], None).admit(&HeaderMap::new()).is_err(),
            "an empty key opens nothing by absence"
        );
    }

    #[test]
    fn only_the_admin_key_changes_the_server_and_it_opens_the_rest() {
        let check = |keys: &[&str], admin: Option<&str>, sent: Option<&str>, expected: Option<Admin>| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            let sent = sent.map(|key| (AUTHORIZATION, format!("Bearer {key}").parse().unwrap()));
            let (keys, headers) = (ApiKeys::new(&keys, admin), HeaderMap::from_iter(sent));
            assert_eq!(keys.admit(&headers).ok().map(|admitted| admitted.admin), expected, "{headers:?}");
        };
        check(&[], None, None, Some(Admin::Yes));
        check(&[], None, Some("any"), Some(Admin::Yes));
        check(&[], Some("root"), None, Some(Admin::NoKey));
        check(&[], Some("root"), Some("any"), Some(Admin::OtherKey));
        check(&[], Some("root"), Some("root"), Some(Admin::Yes));
        check(&["one"], None, Some("one"), Some(Admin::NoAdminKey));
        check(&["one"], None, None, None);
        check(&["one"], Some("root"), None, None);
        check(&["one"], Some("root"), Some("one"), Some(Admin::OtherKey));
        check(&["one"], Some("root"), Some("root"), Some(Admin::Yes));
        check(&["one"], Some("root"), Some("roo"), None);
    }

    #[test]
    fn keys_of_a_file_open_beside_those_of_flags_until_they_expire() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        let keys = ["a", "b", "c"].map(|letter| letter.repeat(40));
        let entry = |id: usize, more: &str| {
            let hash = crate::tenants::hash_text(&keys[id]);
            format!("[[keys]]\nid = \"k{id}\"\ntenant = \"acme\"\nhash = \"{hash}\"\n{more}\n")
        };
        let text = entry(0, "") + &entry(1, "admin = true") + &entry(2, "expires = 2001-01-01T00:00:00Z");
        std::fs::write(&path, text).unwrap();
        let file = KeysFile::open(&path).unwrap();
        let config = RouterConfig {
            api_keys: vec!["sesame".to_owned()],
            keys_file: Some(file),
            ..crate::testing::config()
        };
        let check = |config: &RouterConfig, key: Option<&str>, expected: Result<Admin, &str>| {
            let sent = key.map(|key| (X_API_KEY, key.parse().unwrap()));
            let admitted = ApiKeys::of(config).admit(&HeaderMap::from_iter(sent));
            let got = admitted.map(|admitted| admitted.admin).map_err(|refusal| refusal.to_string());
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{key:?}"),
                (Err(got), Err(expected)) => assert!(got.contains(expected), "{key:?}: {got}"),
                (got, _) => panic!("{key:?}: {got:?}"),
            }
        };
        check(&config, Some(&keys[0]), Ok(Admin::OtherKey));
        check(&config, Some(&keys[1]), Ok(Admin::Yes));
        check(&config, Some(&keys[2]), Err("has expired"));
        check(&config, Some("sesame"), Ok(Admin::OtherKey));
        check(&config, Some(&"d".repeat(40)), Err("Incorrect"));
        check(&config, None, Err("none was sent"));
        let only_file = RouterConfig { api_keys: Vec::new(), ..config };
        check(&only_file, None, Err("none was sent"));
        let of = |key: &str| {
            let headers = HeaderMap::from_iter([(X_API_KEY, key.parse().unwrap())]);
            ApiKeys::of(&only_file).admit(&headers).unwrap().tenant
        };
        assert_eq!(of(&keys[0]), of(&keys[1]), "keys of one tenant share everything");
    }
}
