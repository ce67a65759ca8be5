//! How many requests have begun on each version of the model: a version that none needs any more can be
//! stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use skein_proto::version::Version;

/// Running requests by the version that they began on. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestsByVersion(Arc<Mutex<BTreeMap<Version, usize>>>);

impl RequestsByVersion {
    /// A request whose version is not known yet.
    pub fn counted(&self) -> Begun {
        Begun { requests: self.clone(), version: Version::UNKNOWN }
    }

    /// Running requests that began on versions other than `current`.
    pub fn on_others_than(&self, current: Version) -> usize {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter(|(version, _)| **version != current).map(|(_, count)| count).sum()
    }
}

/// One request among the counted ones, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    requests: RequestsByVersion,
    version: Version,
}

impl Begun {
    /// Records the version of the request. Returns whether this is new: a request has one version.
    pub fn on(&mut self, version: Version) -> bool {
        if self.version.is_known() || !version.is_known() {
            return false;
        }
        self.version = version;
        *self.requests.0.lock().unwrap_or_else(PoisonError::into_inner).entry(version).or_default() += 1;
        true
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut counts = self.requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_from_its_first_part_until_its_end() {
        let requests = RequestsByVersion::default();
        let (mut one, mut other) = (requests.counted(), requests.counted());
        assert!(!one.on(Version::UNKNOWN) && one.on(Version(1)) && !one.on(Version(2)));
        assert!(other.on(Version(2)));
        assert_eq!([1, 2, 3].map(|version| requests.on_others_than(Version(version))), [1, 1, 2]);
        drop(one);
        assert_eq!([1, 2].map(|version| requests.on_others_than(Version(version))), [1, 0]);
        drop(other);
        assert!(requests.0.lock().expect("no panic").is_empty());
    }
}
