//! The end of a worker that was told to end: nothing new, then everything finished or given back, then nobody left.

use std::time::Duration;

use skein_node::clock;

use super::WorkerService;
use crate::engine::EngineHandle;

/// How often a drain looks whether the last stream has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// What was given back gets at least this long to be written, however little of the timeout is left.
const LAST_WRITES: Duration = Duration::from_millis(500);

impl WorkerService {
    /// Refuses what is new, lets what runs go on for `grace`, then asks routers to take the rest elsewhere. What has no
    /// elsewhere goes on. Shortly before `timeout` whatever is left is given back; then every stream is written to its
    /// end. The engine still runs afterwards.
    pub async fn drain(&self, grace: Duration, timeout: Duration) {
        let Some(ready) = self.ready.get() else { return };
        let engine = &ready.engine;
        let start = clock::now();
        engine.log().set_draining();
        within(grace.min(timeout), || self.is_busy() || has_work(engine)).await;
        engine.log().set_giving_back();
        let rest = timeout.saturating_sub(clock::now().since(start) + LAST_WRITES);
        within(rest, || self.is_busy()).await;
        // What came just before it was refused, too.
        engine.hand_back().await;
        let rest = timeout.saturating_sub(clock::now().since(start)).max(LAST_WRITES);
        if !within(rest, || self.is_busy()).await {
            tracing::warn!(timeout_s = timeout.as_secs(), "drain timed out: streams nobody reads are cut");
        }
    }
}

/// Whether requests run or wait, those without a reader included: a router may come for them.
fn has_work(engine: &EngineHandle) -> bool {
    let load = engine.log().load();
    load.running + load.waiting > 0
}

/// False when it is still busy after `time`.
async fn within(time: Duration, is_busy: impl Fn() -> bool) -> bool {
    let ends = async {
        while is_busy() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    tokio::time::timeout(time, ends).await.is_ok()
}
