//! The text of a file of keys. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::date::DateTime;
use super::error::KeysError;
use super::key::{Key, Rights};
use super::meter::{Limits, Meter};
use super::secret::{Digest, read_hash};

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: u64 = 8 << 20;
/// Most keys of a file.
const MAX_KEYS: usize = 10_000;
/// Longest id of a key and longest name of a tenant, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Priorities that a request can have.
const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;
/// Most units of a limit.
const MAX_LIMIT: u64 = 1_000_000_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    #[serde(default)]
    tenants: BTreeMap<String, WrittenTenant>,
    #[serde(default)]
    keys: Vec<WrittenKey>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenTenant {
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    max_concurrent: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenKey {
    id: String,
    tenant: String,
    hash: String,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    max_concurrent: Option<u32>,
    models: Option<Vec<String>>,
    #[serde(default)]
    priority: i32,
    highest_priority: Option<i32>,
    expires: Option<toml::Value>,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    gateway: bool,
}

/// The keys of a file by their hashes.
#[derive(Default)]
pub struct KeySet {
    by_hash: HashMap<Digest, Arc<Key>>,
    /// In the order of the file.
    keys: Vec<Arc<Key>>,
    tenants: BTreeMap<Arc<str>, Arc<Meter>>,
    has_admin: bool,
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl KeySet {
    /// Reads `text`, the content of the file at `path`. Keys and tenants that `before` has, too, go on with
    /// what they have used of their limits.
    ///
    /// # Errors
    /// All faults of the entries together, or the first fault of the form.
    pub fn parse(path: &Path, text: &str, before: &Self) -> Result<Self, KeysError> {
        let written: Written = toml::from_str(text).map_err(|error| syntax(path, text, &error))?;
        let mut problems = Vec::new();
        if written.keys.len() > MAX_KEYS {
            problems.push(format!("it has {} keys; at most {MAX_KEYS} are allowed", written.keys.len()));
        }
        for (name, tenant) in &written.tenants {
            let at = format!("tenant `{}`", shown(name));
            check_name(&at, "name", name, &mut problems);
            check_limits(&at, &tenant.limits(), &mut problems);
        }
        let mut set = Self::default();
        let mut ids = HashSet::new();
        for (number, key) in written.keys.iter().enumerate() {
            let at = format!("key {} (`{}`)", number + 1, shown(&key.id));
            if !ids.insert(&key.id) {
                problems.push(format!("{at}: id is that of another key; choose another"));
            }
            set.add(&at, key, &written.tenants, before, &mut problems);
        }
        if problems.is_empty() {
            Ok(set)
        } else {
            Err(KeysError::Entries { path: path.to_owned(), problems })
        }
    }

    fn add(
        &mut self,
        at: &str,
        key: &WrittenKey,
        tenants: &BTreeMap<String, WrittenTenant>,
        before: &Self,
        problems: &mut Vec<String>,
    ) {
        check_name(at, "id", &key.id, problems);
        check_name(at, "tenant", &key.tenant, problems);
        check_limits(at, &key.limits(), problems);
        let rights = key.rights(at, problems);
        let expires = key
            .expires
            .as_ref()
            .and_then(|given| date(given).map_err(|why| problems.push(format!("{at}: expires {why}"))).ok());
        let hash = match read_hash(&key.hash) {
            Ok(hash) => hash,
            Err(why) => return problems.push(format!("{at}: {why}")),
        };
        let name: Arc<str> = key.tenant.as_str().into();
        let earlier = before.tenants.get(&name).cloned().unwrap_or_default();
        let tenant_meter = self.tenants.entry(name.clone()).or_insert(earlier).clone();
        let earlier = before.keys.iter().find(|earlier| *earlier.id == *key.id);
        let entry = Arc::new(Key {
            id: key.id.as_str().into(),
            tenant: name,
            expires,
            is_admin: key.admin,
            is_gateway: key.gateway,
            rights,
            limits: key.limits(),
            shared: tenants.get(&key.tenant).map(WrittenTenant::limits).unwrap_or_default(),
            meter: earlier.map(|earlier| earlier.meter.clone()).unwrap_or_default(),
            tenant_meter,
        });
        if self.by_hash.insert(hash, entry.clone()).is_some() {
            problems.push(format!("{at}: hash is that of another key; each key has one entry"));
        }
        self.has_admin |= entry.is_admin;
        self.keys.push(entry);
    }

    /// The key with this hash.
    pub fn find(&self, hash: &Digest) -> Option<&Arc<Key>> {
        self.by_hash.get(hash)
    }

    /// All keys, in the order of the file.
    pub fn keys(&self) -> &[Arc<Key>] {
        &self.keys
    }

    /// Names of the tenants that have keys.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tenants.keys()
    }

    /// Whether a key may change the server for all clients.
    pub fn has_admin(&self) -> bool {
        self.has_admin
    }
}

impl WrittenTenant {
    fn limits(&self) -> Limits {
        let Self { requests_per_minute, tokens_per_minute, max_concurrent } = *self;
        Limits { requests: requests_per_minute, tokens: tokens_per_minute, concurrent: max_concurrent }
    }
}

impl WrittenKey {
    fn limits(&self) -> Limits {
        let Self { requests_per_minute, tokens_per_minute, max_concurrent, .. } = *self;
        Limits { requests: requests_per_minute, tokens: tokens_per_minute, concurrent: max_concurrent }
    }

    fn rights(&self, at: &str, problems: &mut Vec<String>) -> Rights {
        let highest = self.highest_priority.unwrap_or(self.priority);
        for (name, value) in [("priority", self.priority), ("highest-priority", highest)] {
            if !PRIORITIES.contains(&value) {
                let (least, most) = (PRIORITIES.start(), PRIORITIES.end());
                problems.push(format!("{at}: {name} must be in [{least}, {most}], got {value}"));
            }
        }
        if highest > self.priority {
            problems.push(format!(
                "{at}: highest-priority is {highest}, so the key's own priority {} would be refused (lower values run \
                 first); raise priority or lower highest-priority",
                self.priority
            ));
        }
        if self.models.as_ref().is_some_and(Vec::is_empty) {
            problems.push(format!("{at}: models is empty; name one, or leave it out for all"));
        }
        Rights {
            key: self.id.clone(),
            models: self.models.clone(),
            priority: self.priority,
            highest_priority: highest,
        }
    }
}

fn date(given: &toml::Value) -> Result<DateTime, String> {
    match given {
        toml::Value::Datetime(date) => DateTime::of(*date),
        toml::Value::String(text) => text.parse(),
        _ => Err("must be a date and time with an offset, such as 2027-01-31T12:00:00Z".to_owned()),
    }
}

/// Checks an id or a tenant's name, which logs, metrics and file names of other programs carry.
fn check_name(at: &str, what: &str, name: &str, problems: &mut Vec<String>) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
        problems.push(format!(
            "{at}: {what} must be 1 to {MAX_NAME_BYTES} ASCII letters, digits, `-`, `_`, `.` or `@`"
        ));
    }
}

fn check_limits(at: &str, limits: &Limits, problems: &mut Vec<String>) {
    let Limits { requests, tokens, concurrent } = *limits;
    let all = [
        ("requests-per-minute", requests),
        ("tokens-per-minute", tokens),
        ("max-concurrent", concurrent.map(u64::from)),
    ];
    for (name, value) in all {
        if let Some(value) = value.filter(|value| !(1..=MAX_LIMIT).contains(value)) {
            problems.push(format!(
                "{at}: {name} must be in [1, {MAX_LIMIT}], got {value}; leave it out for no limit"
            ));
        }
    }
}

/// A name for an error. Something long or unusual may be a key in the wrong place.
fn shown(name: &str) -> String {
    let is_plain = name.len() <= 32
        && !name.starts_with("sk-")
        && name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain { name.to_owned() } else { "…".to_owned() }
}

/// A fault of the form, with its line and without the line's content.
fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> KeysError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    // `invalid type: string "VALUE", expected …`
    let message = match error.message().split_once("string \"") {
        Some((before, rest)) => {
            let after = rest.rsplit_once('"').map_or("", |(_, after)| after);
            format!("{before}string{after}")
        }
        None => error.message().to_owned(),
    };
    KeysError::Syntax { path: path.to_owned(), line, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::secret::{hash, hash_text};

    fn parse(text: &str) -> Result<KeySet, String> {
        KeySet::parse(Path::new("keys.toml"), text, &KeySet::default()).map_err(|error| error.to_string())
    }

    fn entry(id: &str, tenant: &str, key: &str, more: &str) -> String {
        let hash = hash_text(key);
        format!("[[keys]]\nid = \"{id}\"\ntenant = \"{tenant}\"\nhash = \"{hash}\"\n{more}\n")
    }

    #[test]
    fn an_entry_says_what_its_key_may_do() {
        let text = "[tenants.acme]\ntokens-per-minute = 9000\n".to_owned()
            + &entry(
                "ci",
                "acme",
                "one",
                "requests-per-minute = 60\nmodels = [\"a\", \"b\"]\npriority = 10\nhighest-priority = -5\n\
                 expires = 2026-11-29T13:00:00Z\nadmin = true",
            )
            + &entry("web", "acme", "other", "max-concurrent = 4\nexpires = \"2026-11-29T13:00:00Z\"");
        let set = parse(&text).unwrap();
        let key = set.find(&hash(b"one")).unwrap();
        assert_eq!((&*key.id, &*key.tenant, key.is_admin, key.is_gateway), ("ci", "acme", true, false));
        assert_eq!(key.limits, Limits { requests: Some(60), ..Limits::default() });
        assert_eq!(key.shared, Limits { tokens: Some(9000), ..Limits::default() });
        assert!(key.rights.allows("b") && !key.rights.allows("c"));
        assert_eq!((key.rights.priority, key.rights.highest_priority), (10, -5));
        let web = set.find(&hash(b"other")).unwrap();
        assert_eq!((web.expires, web.limits.concurrent), (key.expires, Some(4)));
        assert_eq!(
            web.rights.highest_priority, 0,
            "none is more urgent than its own, unless the file says so"
        );
        assert!(Arc::ptr_eq(&web.tenant_meter, &key.tenant_meter) && !Arc::ptr_eq(&web.meter, &key.meter));
        assert!(set.find(&hash(b"third")).is_none() && set.has_admin());
        assert_eq!(set.tenants().map(|name| &**name).collect::<Vec<_>>(), ["acme"]);
    }

    #[test]
    fn all_faults_of_the_entries_are_told_at_once() {
        let text = "[tenants.\"a b\"]\nmax-concurrent = 0\n".to_owned()
            + &entry("one", "t", "k", "requests-per-minute = 0")
            + &entry("one", "", "k", "models = []\nexpires = 2026-11-29\npriority = 200")
            + "[[keys]]\nid = \"two\"\ntenant = \"t\"\nhash = \"sk-skein-secret-secret-secret\"\nhighest-priority = 5\n";
        let told = parse(&text).unwrap_err();
        for part in [
            "the keys file keys.toml",
            "tenant `a b`: name must be",
            "tenant `a b`: max-concurrent must be in [1, ",
            "key 1 (`one`): requests-per-minute must be in [1, ",
            "key 2 (`one`): id is that of another key",
            "key 2 (`one`): tenant must be 1 to 64",
            "key 2 (`one`): models is empty",
            "key 2 (`one`): expires must be a date and time",
            "key 2 (`one`): priority must be in [-100, 100], got 200",
            "key 2 (`one`): hash is that of another key",
            "key 3 (`two`): highest-priority is 5",
            "key 3 (`two`): hash must be `sha256:`",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("secret"), "{told}");
    }

    #[test]
    fn a_fault_of_the_form_names_its_line_and_no_value() {
        let check = |text: &str, expected: &str| {
            let told = parse(text).unwrap_err();
            assert!(told.contains(expected) && !told.contains("hunter2"), "{told}");
        };
        check("[[keys]]\nid = \"a\"\nkey = \"hunter2\"\n", "line 3: unknown field `key`");
        check(
            "\n[[keys]]\nid = \"a\"\ntenant = \"t\"\nhash = \"h\"\npriority = \"hunter2\"\n",
            "line 6: invalid type",
        );
        check("keys = \"hunter2\"\n", "line 1: invalid type: string, expected");
        check("[[keys]]\nid = \"a\"\n", "missing field");
        check("[[keys\nhunter2\n", "line 1");
        assert!(parse("").unwrap().keys().is_empty(), "a file without keys opens nothing");
    }

    #[test]
    fn what_was_used_of_a_limit_outlives_a_new_file() {
        let before = parse(&entry("ci", "acme", "one", "requests-per-minute = 60")).unwrap();
        let text =
            entry("ci", "acme", "rotated", "requests-per-minute = 10") + &entry("new", "acme", "new", "");
        let after = KeySet::parse(Path::new("k"), &text, &before).unwrap();
        let (old, new) = (&before.keys()[0], &after.keys()[0]);
        assert!(Arc::ptr_eq(&old.meter, &new.meter) && Arc::ptr_eq(&old.tenant_meter, &new.tenant_meter));
        assert!(Arc::ptr_eq(&old.tenant_meter, &after.keys()[1].tenant_meter));
    }
}
