//! Which worker runs or keeps which stream, from reports of workers and this router's own dispatches. Pure.
//!
//! Entries are hints: a wrong one costs a round trip, so the directory may forget.

use std::collections::{BTreeMap, HashMap};

use skein_proto::stream_key::StreamKey;

use crate::worker_id::{WorkerEpoch, WorkerId};

/// Most streams remembered; the oldest are forgotten first. About 100 bytes each.
pub(super) const MAX_STREAMS: usize = 1 << 16;

/// The worker of each known stream.
#[derive(Debug, Default)]
pub(super) struct StreamDirectory {
    by_key: HashMap<StreamKey, KnownStream>,
    /// The keys, oldest first.
    by_age: BTreeMap<u64, StreamKey>,
    next_age: u64,
}

#[derive(Debug, Clone, Copy)]
struct KnownStream {
    at: WorkerEpoch,
    age: u64,
}

impl StreamDirectory {
    /// Records that a worker has the stream.
    pub fn insert(&mut self, key: StreamKey, at: WorkerEpoch) {
        let age = self.next_age;
        self.next_age += 1;
        if let Some(old) = self.by_key.insert(key, KnownStream { at, age }) {
            self.by_age.remove(&old.age);
        }
        self.by_age.insert(age, key);
        if self.by_age.len() > MAX_STREAMS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_key.remove(&oldest);
        }
    }

    /// The worker that has the stream, as far as known.
    pub fn find(&self, key: StreamKey) -> Option<WorkerEpoch> {
        self.by_key.get(&key).map(|entry| entry.at)
    }

    /// Records that `worker` does not have the stream.
    pub fn forget(&mut self, key: StreamKey, worker: WorkerId) {
        if self.by_key.get(&key).is_some_and(|entry| entry.at.worker == worker)
            && let Some(entry) = self.by_key.remove(&key)
        {
            self.by_age.remove(&entry.age);
        }
    }

    /// Records that `worker` has no streams.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        self.by_key.retain(|_, entry| entry.at.worker != worker);
        self.by_age.retain(|_, key| self.by_key.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> StreamKey {
        let bytes: Vec<u8> = number.to_be_bytes().repeat(4);
        StreamKey::from_wire(&bytes).expect("sixteen bytes")
    }

    fn at(worker: u32, epoch: u64) -> WorkerEpoch {
        WorkerEpoch { worker: WorkerId(worker), epoch }
    }

    #[test]
    fn the_latest_report_counts_and_the_oldest_entry_goes_first() {
        let mut streams = StreamDirectory::default();
        streams.insert(key(0), at(1, 10));
        streams.insert(key(0), at(2, 20));
        assert_eq!(streams.find(key(0)), Some(at(2, 20)));
        streams.forget(key(0), WorkerId(1));
        assert_eq!(streams.find(key(0)), Some(at(2, 20)), "it has moved on since");
        for number in 1..=MAX_STREAMS as u32 {
            streams.insert(key(number), at(1 + number % 2, 10));
        }
        assert_eq!(streams.find(key(0)), None);
        assert_eq!((streams.by_key.len(), streams.by_age.len()), (MAX_STREAMS, MAX_STREAMS));
        streams.forget_worker(WorkerId(1));
        assert_eq!((streams.by_key.len(), streams.by_age.len()), (MAX_STREAMS / 2, MAX_STREAMS / 2));
        streams.forget(key(1), WorkerId(2));
        assert_eq!(streams.find(key(1)), None);
        assert_eq!((streams.by_key.len(), streams.by_age.len()), (MAX_STREAMS / 2 - 1, MAX_STREAMS / 2 - 1));
    }
}
