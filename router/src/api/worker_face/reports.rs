//! What a router reports to gateways: an empty cache, and its load at intervals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use skein_proto::load::{Load, LoadReport};
use skein_proto::placement::Placement;
use skein_proto::watch::{Snapshot, WatchBody, WatchEvent};
use skein_proto::worker::v1 as wire;

use super::readers::Readers;
use crate::app::App;

/// Time between reports while requests run.
const BUSY_INTERVAL: Duration = Duration::from_millis(250);
/// Time between reports while none run.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between reports while the router waits for its own workers. It is short because a router that has
/// just started is ready a moment later, and streams of the router that it replaces may be waiting for it.
const UNREADY_INTERVAL: Duration = Duration::from_millis(50);
/// Most gateways whose last placement is remembered.
const MAX_GATEWAYS: usize = 256;
/// A router's cache log is empty, so its reports always carry the number of the first record to come.
const NEXT_SEQUENCE: u64 = 1;

/// The last placement seen from each gateway.
#[derive(Debug, Default)]
pub struct Placements(Mutex<BTreeMap<u64, u64>>);

impl Placements {
    /// Records that a gateway placed a request here.
    pub fn note(&self, placement: Placement) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= MAX_GATEWAYS && !last.contains_key(&placement.router) {
            // Any may go: its gateway then counts its own placements until they end.
            last.pop_first();
        }
        let sequence = last.entry(placement.router).or_default();
        *sequence = placement.sequence.max(*sequence);
    }

    fn last(&self, router_id: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&router_id).copied().unwrap_or(0)
    }
}

/// The reports for one gateway, until the router shuts down.
pub fn follow(
    app: App,
    epoch: u64,
    router_id: u64,
    placements: Arc<Placements>,
    readers: Readers,
) -> impl Stream<Item = wire::WorkerEvent> + Send {
    let event = move |body| WatchEvent { epoch, sequence: NEXT_SEQUENCE, body }.into();
    async_stream::stream! {
        yield event(WatchBody::Snapshot(Snapshot::default()));
        let mut told = (std::sync::Arc::default(), Vec::new());
        for step in 1.. {
            let report = report(&app, step, placements.last(router_id), readers.count());
            let interval = if report.draining && !app.drain.is_draining() {
                UNREADY_INTERVAL
            } else if report.load.running > 0 {
                BUSY_INTERVAL
            } else {
                IDLE_INTERVAL
            };
            let draining = report.draining;
            let now = (app.adapters.known(), app.adapters.records());
            if now != told {
                let records = (now.1 != told.1).then(|| now.1.clone());
                told = now;
                yield event(WatchBody::Adapters(told.0.list.clone(), records));
            }
            // No totals: a gateway would count the same workers once for each of its routers.
            yield event(WatchBody::Load(report, Vec::new()));
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                // Report draining at once, so that no more requests are placed here.
                () = app.drain.began(), if !draining => {}
                () = app.drain.over() => break,
            }
        }
    }
}

/// `step` rises with every report, which tells gateways that the router is alive; it monitors its workers
/// itself.
fn report(app: &App, step: u64, last_placement_sequence: u64, readers: usize) -> LoadReport {
    let readers = u32::try_from(readers).unwrap_or(u32::MAX);
    let capacity = app.ready().and_then(|()| app.fleet.capacity());
    let draining = capacity.is_err();
    let load = match capacity {
        Ok(capacity) => Load {
            queued_uncached_tokens: capacity.queued_uncached_tokens,
            waiting: 0,
            running: capacity.sequences.max(readers),
            free_blocks: capacity.free_blocks,
            prefill_tokens_per_second: capacity.prefill_tokens_per_second,
            decode_tokens_per_second: capacity.decode_tokens_per_second,
            ..Load::default()
        },
        // No worker can take a request now; running streams wait for one.
        Err(_) => Load { running: readers, ..Load::default() },
    };
    LoadReport { load, step, last_placement_sequence, draining, giving_back: false }
}
