//! Tenant of a request: the API key that it carries. Tenants cannot observe each other. Pure.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Begins what is hashed; another layout gets another name.
const LAYOUT: &str = "skein.tenant.1";

/// Clients that share request ids, streams and cached prefixes: all that use the same key, or all clients if
/// there are no keys.
///
/// The tenant's name is a hash of the key, so that all routers agree on it. It is as secret as the key:
/// without it, no client can attach to the tenant's streams or probe its cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Tenant of this API key.
    pub fn of_key(key: &str) -> Self {
        Self(format!("{:032x}", xxh3_128(format!("{LAYOUT}\0{key}").as_bytes())).into())
    }

    /// Tenant with this [`name`](Self::name).
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Name for records; empty without keys.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Salt that separates prefix caches by tenant and, within a tenant, by the request's `own` salt.
    pub fn cache_salt(&self, own: &str) -> Arc<str> {
        if self.0.is_empty() { own.into() } else { format!("{}/{own}", self.0).into() }
    }

    /// Names one call of a client, whose prompts share its places at a worker.
    pub fn call(&self, id: &str) -> u64 {
        xxh3_64(format!("{}/{id}", self.0).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_name_of_its_own_and_no_key_has_none() {
        let (one, other, nobody) = (Tenant::of_key("one"), Tenant::of_key("other"), Tenant::default());
        assert_eq!(one, Tenant::of_key("one"));
        assert_ne!(one.cache_salt("s"), other.cache_salt("s"));
        assert_ne!(one.call("a"), other.call("a"));
        assert_ne!(one.call("a"), one.call("b"));
        assert!(one.cache_salt("s").ends_with("/s") && !one.cache_salt("").contains("one"));
        assert_eq!(&*nobody.cache_salt("s"), "s", "as before there were keys");
        // Routers of two releases must agree: a change here needs another name of the layout.
        assert_eq!(&*one.cache_salt(""), "e9756671e3c88f4f9ff6ef57341cd566/");
    }
}
