//! What a router says of itself to gateways: an empty cache, and its load again and again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::worker_event::Event;

use super::readers::Readers;
use crate::app::App;

/// Between reports while something runs, and while nothing does.
const BUSY_INTERVAL: Duration = Duration::from_millis(250);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// And this often while it waits for its own workers: a router that has just started takes requests a moment later, and
/// streams of the one it replaces may wait for that.
const UNREADY_INTERVAL: Duration = Duration::from_millis(50);
/// Gateways whose last placement is remembered.
const MAX_GATEWAYS: usize = 256;
/// The log of a router has no entries: its reports carry the number of the one that never comes.
const NEXT_SEQUENCE: u64 = 1;

/// The last placement seen of each gateway.
#[derive(Debug, Default)]
pub struct Placements(Mutex<BTreeMap<u64, u64>>);

impl Placements {
    /// A request was placed here.
    pub fn note(&self, placement: wire::Placement) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= MAX_GATEWAYS && !last.contains_key(&placement.router_id) {
            // Whichever goes: its gateway counts what it placed until it ends.
            last.pop_first();
        }
        let sequence = last.entry(placement.router_id).or_default();
        *sequence = placement.sequence.max(*sequence);
    }

    fn last(&self, router_id: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&router_id).copied().unwrap_or(0)
    }
}

/// The reports for one gateway, until it leaves.
pub fn follow(
    app: App,
    epoch: u64,
    router_id: u64,
    placements: Arc<Placements>,
    readers: Readers,
) -> impl Stream<Item = wire::WorkerEvent> + Send {
    let event = move |event| wire::WorkerEvent { epoch, sequence: NEXT_SEQUENCE, event: Some(event) };
    async_stream::stream! {
        yield event(Event::Snapshot(wire::CacheSnapshot::default()));
        for step in 1.. {
            let load = load(&app, step, placements.last(router_id), readers.count());
            let interval = if load.draining && !app.drain.is_draining() {
                UNREADY_INTERVAL
            } else if load.running > 0 {
                BUSY_INTERVAL
            } else {
                IDLE_INTERVAL
            };
            let draining = load.draining;
            yield event(Event::Load(load));
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                // Told at once, so that nobody is sent here in vain.
                () = app.drain.began(), if !draining => {}
                () = app.drain.over() => break,
            }
        }
    }
}

/// `step` rises with every report: a router that reports is not stuck, and it watches over its own workers.
fn load(app: &App, step: u64, last_placement_sequence: u64, readers: usize) -> wire::Load {
    let readers = u32::try_from(readers).unwrap_or(u32::MAX);
    let capacity = app.ready().and_then(|()| app.generator.capacity());
    let Ok(capacity) = capacity else {
        // Nothing can be taken now. What runs waits for a worker.
        return wire::Load {
            running: readers,
            step,
            last_placement_sequence,
            draining: true,
            ..wire::Load::default()
        };
    };
    wire::Load {
        queued_uncached_tokens: capacity.queued_uncached_tokens,
        waiting: 0,
        running: capacity.sequences.max(readers),
        free_blocks: capacity.free_blocks,
        prefill_tokens_per_second: capacity.prefill_tokens_per_second,
        decode_tokens_per_second: capacity.decode_tokens_per_second,
        step,
        last_placement_sequence,
        draining: false,
        giving_back: false,
    }
}
