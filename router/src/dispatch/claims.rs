//! Client-given ids of running requests. Each tenant has its own ids. A repeated request joins its own
//! stream; a different request with the id of a running one is refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use skein_proto::stream_key::StreamKey;

use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// The ids of all running requests, by tenant. Clones share one map.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunningIds(Arc<Mutex<HashMap<OwnId, Running>>>);

/// An id, and the tenant that it is of.
type OwnId = (Tenant, Arc<str>);

#[derive(Debug)]
struct Running {
    stream_key: StreamKey,
    /// Number of readers of the stream.
    claims: u32,
}

/// Reserves an id while its request runs.
#[derive(Debug)]
pub(crate) struct Claim {
    id: OwnId,
    ids: RunningIds,
}

impl RunningIds {
    /// Claims an id, or joins the readers that hold it for the same stream.
    pub fn claim(&self, tenant: &Tenant, id: &Arc<str>, stream_key: StreamKey) -> Result<Claim, Refusal> {
        let key = (tenant.clone(), id.clone());
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = ids.entry(key.clone()).or_insert(Running { stream_key, claims: 0 });
        if running.stream_key != stream_key {
            return Err(Refusal::DuplicateId(id.to_string()));
        }
        running.claims += 1;
        Ok(Claim { id: key, ids: self.clone() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut ids = self.ids.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = ids.get_mut(&self.id) {
            running.claims -= 1;
            if running.claims == 0 {
                ids.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_stream_until_its_last_reader_is_gone() {
        let key = |byte| StreamKey::from_wire(&[byte; 16]).expect("sixteen bytes");
        let (ids, nobody) = (RunningIds::default(), Tenant::default());
        let first = ids.claim(&nobody, &"a".into(), key(1)).expect("it is free");
        let second = ids.claim(&nobody, &"a".into(), key(1)).expect("it is the same stream");
        assert!(matches!(ids.claim(&nobody, &"a".into(), key(2)), Err(Refusal::DuplicateId(_))));
        ids.claim(&nobody, &"b".into(), key(2)).expect("another id");
        ids.claim(&Tenant::of_key("k"), &"a".into(), key(2)).expect("an id of another tenant");
        drop(first);
        assert!(ids.claim(&nobody, &"a".into(), key(2)).is_err(), "the second reader still holds it");
        drop(second);
        ids.claim(&nobody, &"a".into(), key(2)).expect("it is free again");
        assert!(ids.0.lock().expect("no panic").is_empty());
    }
}
