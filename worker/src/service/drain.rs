//! Shutdown of a worker: refuse new requests, finish or hand back running ones, wait until every
//! stream is written.

use std::time::Duration;

use skein_node::clock;

use super::WorkerService;
use crate::engine::EngineHandle;

/// How often a drain checks whether the last stream has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Time to write streams that were handed back, however little of the timeout is left.
const LAST_WRITES: Duration = Duration::from_millis(500);

impl WorkerService {
    /// Refuses new requests, lets running ones continue for `grace`, then hands the rest back to the routers.
    /// Requests that have nowhere to go continue. Shortly before `timeout` the rest is handed back and every
    /// stream is written to its end. The engine keeps running.
    pub async fn drain(&self, grace: Duration, timeout: Duration) {
        let Some(ready) = self.ready.get() else { return };
        let engine = &ready.engine;
        let start = clock::now();
        engine.log().set_draining();
        within(grace.min(timeout), || self.is_busy() || has_work(engine)).await;
        engine.log().set_giving_back();
        let rest = timeout.saturating_sub(clock::now().since(start) + LAST_WRITES);
        within(rest, || self.is_busy()).await;
        // Also rejects requests that arrived before the drain was visible.
        engine.hand_back().await;
        let rest = timeout.saturating_sub(clock::now().since(start)).max(LAST_WRITES);
        if !within(rest, || self.is_busy()).await {
            tracing::warn!(timeout_s = timeout.as_secs(), "drain timed out: unread streams are cut");
        }
    }
}

/// Whether requests run or wait, including those without a reader: a router may still attach.
fn has_work(engine: &EngineHandle) -> bool {
    let load = engine.log().load();
    load.running + load.waiting > 0
}

/// False if it is still busy after `time`.
async fn within(time: Duration, is_busy: impl Fn() -> bool) -> bool {
    let ends = async {
        while is_busy() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    tokio::time::timeout(time, ends).await.is_ok()
}
