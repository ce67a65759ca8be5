//! Sends the log to one router: first the entries it missed, then new ones as they appear, with load
//! reports in between.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use skein_node::signal::Listener;
use skein_proto::adapter::{AdapterInfo, AdapterRecord};
use skein_proto::totals::Total;
use skein_proto::watch::{Snapshot, WatchBody, WatchEvent};
use skein_proto::worker::v1 as wire;
use tokio::sync::mpsc;
use tonic::Status;

use crate::adapters::Adapters;
use crate::engine::{self, EngineHandle};
use crate::metrics::Metrics;

/// Events queued for a router. If it reads more slowly than the log moves, it falls behind and
/// gets a snapshot.
pub(super) const EVENT_QUEUE: usize = 64;

/// Least time between load reports; a change waits for it.
const LOAD_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Longest time between load reports while there is work; they show the router that steps continue.
const LOAD_INTERVAL_BUSY: Duration = Duration::from_millis(250);
/// Most time between load reports while idle.
const LOAD_INTERVAL_IDLE: Duration = Duration::from_secs(1);
/// Shortest interval between reports with totals: shorter than any scrape interval.
const TOTALS_INTERVAL: Duration = Duration::from_secs(4);

/// What routers are told about.
pub(super) struct Sources {
    pub engine: EngineHandle,
    /// `None` = not enabled.
    pub adapters: Option<Adapters>,
    /// Counters to report; `None` = nothing is counted.
    pub metrics: Option<Arc<Metrics>>,
}

/// Sends the log to `events` until the router or the engine is gone.
pub(super) async fn follow(
    Sources { engine, adapters, metrics }: Sources,
    epoch: u64,
    request: wire::WatchRequest,
    events: mpsc::Sender<Result<wire::WorkerEvent, Status>>,
) {
    let next = if request.epoch == epoch { request.next_sequence } else { 0 };
    let mut follower = Follower {
        engine,
        epoch,
        router: request.router_id,
        next,
        events,
        load_sent: None,
        metrics,
        totals_sent: None,
        told_drain: (false, false),
        adapter_changes: adapters.as_ref().map(Adapters::subscribe),
        adapters,
        told_adapters: None,
    };
    let ended = async { while follower.turn().await.is_some() {} };
    ended.await;
}

struct Follower {
    engine: EngineHandle,
    epoch: u64,
    router: u64,
    /// Number of the next log entry to send; 0 = start with a snapshot.
    next: u64,
    events: mpsc::Sender<Result<wire::WorkerEvent, Status>>,
    load_sent: Option<Timestamp>,
    /// Counters to report; `None` = nothing is counted.
    metrics: Option<Arc<Metrics>>,
    totals_sent: Option<Timestamp>,
    /// The drain state in the last report; see [`Self::drain`].
    told_drain: (bool, bool),
    adapters: Option<Adapters>,
    adapter_changes: Option<Listener>,
    /// The adapters and their changes as they were last sent.
    told_adapters: Option<(Vec<AdapterInfo>, Vec<AdapterRecord>)>,
}

impl Follower {
    /// Sends what is new, then waits for more; `None` at the end.
    async fn turn(&mut self) -> Option<()> {
        // Subscribes before looking, so that no change is missed between the look and the wait.
        let mut changes = self.engine.log().subscribe();
        self.adapter_changes.as_mut().into_iter().for_each(Listener::mark_unchanged);
        self.send_adapters().await?;
        self.send_entries().await?;
        let wait = match self.load_due_in() {
            wait if wait.is_zero() => {
                self.send_load().await?;
                self.interval()
            }
            wait => wait,
        };
        tokio::select! {
            biased;
            () = changes.changed() => {}
            () = changed(self.adapter_changes.as_mut()) => {}
            () = tokio::time::sleep(wait) => {}
            () = self.events.closed() => return None,
            () = self.engine.ended() => return None,
        }
        Some(())
    }

    /// Sends all adapters if they have changed, and all changes at run time if there is a new one.
    async fn send_adapters(&mut self) -> Option<()> {
        let Some(adapters) = &self.adapters else { return Some(()) };
        let now = (adapters.list(), adapters.records());
        if self.told_adapters.as_ref() == Some(&now) {
            return Some(());
        }
        let told = self.told_adapters.replace(now.clone()).map_or_else(Vec::new, |(_, records)| records);
        let (list, records) = now;
        self.send(WatchBody::Adapters(list, (records != told).then_some(records))).await
    }

    /// Sends entries from `next` on, or a snapshot if the log does not reach back that far.
    async fn send_entries(&mut self) -> Option<()> {
        loop {
            match self.engine.log().entries_from(self.next, EVENT_QUEUE).filter(|_| self.next > 0) {
                Some(entries) if entries.is_empty() => return Some(()),
                Some(entries) => {
                    for entry in entries {
                        self.send(Arc::unwrap_or_clone(entry).into()).await?;
                        self.next += 1;
                    }
                }
                None => {
                    let snapshot = self.engine.snapshot().await?;
                    // Like a load report it carries the number of the next entry without using it up.
                    self.next = snapshot.sequence + 1;
                    let engine::Snapshot { runs, gaps, stream_keys, .. } = snapshot;
                    self.send(WatchBody::Snapshot(Snapshot { runs, gaps, stream_keys })).await?;
                }
            }
        }
    }

    /// Time until the next load report may be sent. Reports are spaced to spare the reader, but a change of
    /// the drain state goes out at once.
    fn load_due_in(&self) -> Duration {
        if self.drain() != self.told_drain {
            return Duration::ZERO;
        }
        let Some(sent) = self.load_sent else { return Duration::ZERO };
        LOAD_INTERVAL_MIN.saturating_sub(clock::now().since(sent))
    }

    fn interval(&self) -> Duration {
        let load = self.engine.log().load();
        if load.running + load.waiting > 0 { LOAD_INTERVAL_BUSY } else { LOAD_INTERVAL_IDLE }
    }

    async fn send_load(&mut self) -> Option<()> {
        self.load_sent = Some(clock::now());
        let report = self.engine.log().report(self.router);
        self.told_drain = (report.draining, report.giving_back);
        let totals = self.totals_due();
        self.send(WatchBody::Load(report, totals)).await
    }

    /// Totals of the worker if [`TOTALS_INTERVAL`] has passed since they were last sent; otherwise empty.
    fn totals_due(&mut self) -> Vec<Total> {
        let now = clock::now();
        let is_due = self.totals_sent.is_none_or(|sent| now.since(sent) >= TOTALS_INTERVAL);
        let Some(metrics) = self.metrics.as_ref().filter(|_| is_due) else { return Vec::new() };
        self.totals_sent = Some(now);
        metrics.totals()
    }

    /// The drain state: whether new requests are refused, and whether running ones should move.
    fn drain(&self) -> (bool, bool) {
        let log = self.engine.log();
        (log.is_draining(), log.is_giving_back())
    }

    async fn send(&self, body: WatchBody) -> Option<()> {
        let event = WatchEvent { epoch: self.epoch, sequence: self.next, body };
        self.events.send(Ok(event.into())).await.ok()
    }
}

/// Waits for a change, for ever if there are no adapters.
async fn changed(changes: Option<&mut Listener>) {
    match changes {
        Some(changes) => changes.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use wire::worker_event::Event;

    use super::*;
    use crate::backend::fake::{FakeBackend, FakeOptions};
    use crate::config::SchedulerConfig;
    use crate::engine::Engine;
    use crate::scheduler::Scheduler;

    #[tokio::test]
    async fn a_drain_is_reported_at_once_and_not_at_the_next_interval() {
        clock::simulate(Some(|| Duration::from_secs(1)));
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 64, 512);
        let backend = FakeBackend::new(FakeOptions { kv_blocks: 64, ..FakeOptions::default() });
        let (_engine, engine) = Engine::new(scheduler, Box::new(backend), 8);
        let (events, mut sent) = mpsc::channel(EVENT_QUEUE);
        let mut follower = Follower {
            engine: engine.clone(),
            epoch: 1,
            router: 9,
            next: 1,
            events,
            load_sent: None,
            metrics: None,
            totals_sent: None,
            told_drain: (false, false),
            adapters: None,
            adapter_changes: None,
            told_adapters: None,
        };
        let mut is_draining = async || match sent.recv().await?.ok()?.event {
            Some(Event::Load(load)) => Some(load.draining),
            _ => None,
        };
        follower.send_load().await.expect("somebody listens");
        assert_eq!((is_draining().await, follower.load_due_in()), (Some(false), LOAD_INTERVAL_MIN));
        engine.log().set_draining();
        assert_eq!(follower.load_due_in(), Duration::ZERO, "a drain is reported at once");
        follower.send_load().await.expect("somebody listens");
        assert_eq!((is_draining().await, follower.load_due_in()), (Some(true), LOAD_INTERVAL_MIN));
        clock::simulate(None);
    }
}
