//! Ids of requests. Those of files and batches also say which one is older, and are made elsewhere.

use skein_node::clock;
use uuid::{Builder, Uuid};

/// A UUID of version 7 (RFC 9562): a time in milliseconds and 74 random bits. Nobody can guess it, so that
/// only who was told an id can name it.
///
/// The bits are those of this thread's generator, which the system seeds now and then; the system's own would
/// cost a system call for each id.
pub fn drawn() -> Uuid {
    let millis = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
    Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ() {
        let ids: Vec<Uuid> = (0..10_000).map(|_| drawn()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }
}
