//! Tenant of a request: the API key that it carries, or the tenant to which the keys file gives it. Tenants
//! cannot observe each other. Pure.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::tenants::Key;

/// Begins what is hashed; another layout gets another name.
const LAYOUT: &str = "skein.tenant.1";
/// The same for tenants of a keys file, so that none has the name of a key.
const LAYOUT_OF_FILE: &str = "skein.tenant.file.1";

/// Clients that share request ids, streams, files and cached prefixes: all that use the same key, all keys of
/// a tenant in the keys file, or all clients if there are no keys.
///
/// The tenant's name is a hash of the key or of the name in the file, so that all routers agree on it. That
/// of a key is as secret as the key. That of a name is no secret: clients of this router cannot send another
/// tenant's, and what speaks for several tenants needs a gateway's key.
#[derive(Debug, Clone, Default)]
pub struct Tenant {
    name: Arc<str>,
    /// The key of the file.
    key: Option<Arc<Key>>,
}

impl PartialEq for Tenant {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Tenant {}

impl Hash for Tenant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Tenant {
    /// Tenant of this API key.
    pub fn of_key(key: &str) -> Self {
        Self { name: hashed(LAYOUT, key), key: None }
    }

    /// Tenant of this key of the keys file, with what the key may do.
    pub fn of_entry(key: Arc<Key>) -> Self {
        Self { name: Self::name_in_file(&key.tenant), key: Some(key) }
    }

    /// [`name`](Self::name) of a tenant of the keys file.
    pub fn name_in_file(tenant: &str) -> Arc<str> {
        hashed(LAYOUT_OF_FILE, tenant)
    }

    /// The key of the keys file; `None` = another key or none, which is not restricted.
    pub fn key(&self) -> Option<&Arc<Key>> {
        self.key.as_ref()
    }

    /// Whether a request may use this model or adapter.
    pub fn may_use(&self, model: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.rights.allows(model))
    }

    /// Tenant with this [`name`](Self::name).
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), key: None }
    }

    /// Name for records; empty without keys.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Salt that separates prefix caches by tenant and, within a tenant, by the request's `own` salt.
    pub fn cache_salt(&self, own: &str) -> Arc<str> {
        match (self.name.is_empty(), own) {
            (true, "") => Arc::default(), // shared by all
            (true, own) => own.into(),
            (false, own) => format!("{}/{own}", self.name).into(),
        }
    }

    /// Names one call of a client, whose prompts share its places at a worker.
    pub fn call(&self, id: &str) -> u64 {
        let mut hash = Xxh3Default::new();
        [self.name.as_bytes(), b"/", id.as_bytes()].into_iter().for_each(|part| hash.update(part));
        hash.digest()
    }
}

fn hashed(layout: &str, text: &str) -> Arc<str> {
    format!("{:032x}", xxh3_128(format!("{layout}\0{text}").as_bytes())).into()
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
        assert_ne!(&*Tenant::name_in_file("one"), one.name(), "a tenant's name is nobody's key");
    }
}
