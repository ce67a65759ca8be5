//! What a worker stores about itself: JSON under `/skein/<cluster>/workers/<id>`.

use serde::{Deserialize, Serialize};

use super::api::KeyEntry;
use crate::discovery::{Member, is_host_and_port};

/// Longest name of a cluster or a worker, bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest value that is parsed, bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// A worker's registration. Unknown fields are ignored, so that later releases can add some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The last part of the key.
    pub id: String,
    /// `host:port` of its gRPC service, as routers reach it.
    pub address: String,
    /// The served model; for people who read etcd.
    #[serde(default)]
    pub model: String,
    /// The worker's epoch, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The release that wrote this; for people who read etcd.
    #[serde(default)]
    pub version: String,
    /// The worker is about to exit deliberately, so routers need not wait for its return.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

impl Record {
    /// The JSON form.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings and numbers is valid JSON")
    }

    /// Parses the registration of a worker whose keys start with `prefix`.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    pub fn decode(prefix: &str, entry: &KeyEntry) -> Result<Self, String> {
        if entry.value.len() > MAX_VALUE_BYTES {
            return Err(format!(
                "its value has {} bytes, at most {MAX_VALUE_BYTES} are read",
                entry.value.len()
            ));
        }
        let record: Self = serde_json::from_slice(&entry.value).map_err(|error| error.to_string())?;
        check_name(&record.id)?;
        if entry.key.strip_prefix(prefix) != Some(&record.id) {
            return Err(format!("its value names another worker, `{}`", record.id));
        }
        if !is_host_and_port(&record.address) {
            return Err(format!("address `{}` is not host:port", record.address));
        }
        Ok(record)
    }

    /// The member that it describes.
    pub fn member(&self) -> Member {
        Member { id: self.id.clone(), address: self.address.clone() }
    }
}

/// Prefix of the keys of `cluster`'s workers; the rest of a key is the worker's id.
pub fn prefix(cluster: &str) -> String {
    format!("/skein/{cluster}/workers/")
}

/// Checks the name of a cluster or a worker, which becomes part of a key and of log lines.
///
/// # Errors
/// A message that says what is allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
    if !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(fits) {
        return Ok(());
    }
    Err(format!(
        "name `{}` is not valid; write 1 to {MAX_NAME_BYTES} letters, digits and . _ - : [ ]",
        name.chars().take(MAX_NAME_BYTES).collect::<String>().escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/skein/default/workers/";

    fn decode(key: &str, value: &str) -> Result<Record, String> {
        Record::decode(PREFIX, &KeyEntry { key: format!("{PREFIX}{key}"), value: value.into(), revision: 1 })
    }

    #[test]
    fn records_round_trip_and_unknown_fields_are_ignored() {
        let record = Record {
            id: "w-1".into(),
            address: "[fd00::1]:9000".into(),
            model: "m".into(),
            epoch: Some(u64::MAX),
            version: "0.1.0".into(),
            leaving: false,
        };
        let text = String::from_utf8(record.encode()).expect("JSON is text");
        assert!(!text.contains("leaving"), "{text}");
        assert_eq!(decode("w-1", &text), Ok(record));
        let least =
            decode("w-1", r#"{"id":"w-1","address":"a:1","colour":{"of":"things"}}"#).expect("enough");
        assert_eq!((least.member().address.as_str(), least.epoch), ("a:1", None));
    }

    #[test]
    fn an_invalid_record_is_refused_with_the_reason() {
        let check = |key: &str, value: &str, reason: &str| {
            let got = decode(key, value).expect_err(value);
            assert!(got.contains(reason), "{value}: {got}");
        };
        check("w", "", "EOF");
        check("w", "\u{0}", "expected value");
        check("w", r#"{"id":"w"}"#, "address");
        check("w", r#"{"id":"w","address":"http://a:1"}"#, "is not host:port");
        check("w", r#"{"id":"v","address":"a:1"}"#, "names another worker");
        check("", r#"{"id":"","address":"a:1"}"#, "1 to 128");
        check("a/b", r#"{"id":"a/b","address":"a:1"}"#, "1 to 128");
        check("w", &format!(r#"{{"id":"w","address":"a:1","x":"{}"}}"#, "y".repeat(5000)), "at most 4096");
    }
}
