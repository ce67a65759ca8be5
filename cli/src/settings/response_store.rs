//! Settings of stored responses.

use std::path::PathBuf;
use std::time::Duration;

use skein_node::config::{Origin, Settings, bytes, duration, text};
use skein_router::stored::StoreLimits;

/// Where responses are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseStore {
    /// Nowhere.
    None,
    /// In the memory of the process.
    Memory,
    /// In this directory.
    Directory(PathBuf),
}

/// Longest time for which responses are kept.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);
/// OpenAI keeps responses as long.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most bytes in a directory, unless the operator says otherwise.
const IN_DIRECTORY: u64 = 10 << 30;
/// The same in memory, which models need.
const IN_MEMORY: u64 = 64 << 20;

impl ResponseStore {
    /// Reads the settings; problems are recorded in `settings`. Unless one is given, the store is `usual`.
    pub fn read(settings: &mut Settings, usual: Self) -> (Self, StoreLimits) {
        let store = settings.value("response-store", parse).unwrap_or(usual);
        let usual_bytes = if store == Self::Memory { IN_MEMORY } else { IN_DIRECTORY };
        let bytes = settings.value("max-response-bytes", bytes(1 << 20..=1 << 50)).unwrap_or(usual_bytes);
        let kept_for = settings.value("response-ttl", duration(Duration::from_secs(60)..=LONGEST));
        let limits = StoreLimits { bytes, kept_for: kept_for.unwrap_or(KEPT_FOR) };
        if store == Self::None {
            for name in ["max-response-bytes", "response-ttl"] {
                if *settings.origin(name) == Origin::Flag {
                    settings.problem(format!("--{name} without --response-store: no responses are stored"));
                }
            }
        }
        (store, limits)
    }
}

fn parse(given: &str) -> Result<ResponseStore, String> {
    match text(given)?.trim() {
        word if word.eq_ignore_ascii_case("none") => Ok(ResponseStore::None),
        word if word.eq_ignore_ascii_case("memory") => Ok(ResponseStore::Memory),
        url if url.contains("://") => Err(format!(
            "`{url}` is a URL, and databases of their own are not supported as yet; give memory, none or a directory"
        )),
        path => Ok(ResponseStore::Directory(path.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_none_memory_or_a_directory() {
        assert_eq!(parse("none"), Ok(ResponseStore::None));
        assert_eq!(parse(" Memory"), Ok(ResponseStore::Memory));
        assert_eq!(parse("/var/lib/skein"), Ok(ResponseStore::Directory("/var/lib/skein".into())));
        assert_eq!(parse("./memory"), Ok(ResponseStore::Directory("./memory".into())));
        assert!(parse("postgres://host/db").unwrap_err().contains("not supported as yet"));
        assert!(parse("").is_err());
    }
}
