//! Sends the log to one router: first the entries it missed, then new ones, with load reports in between.
//!
//! What the router must know at once is sent at once: requests of other routers, a drain, adapters. The
//! rest waits up to 50 ms and travels together, because a router before a thousand workers spends more on
//! receiving messages than on reading them, and knows already what it sent here itself.

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

/// Most time that a change waits for others before it is sent with the load.
const CHANGES_WAIT: Duration = Duration::from_millis(50);
/// The same while the worker has nothing to do and only this router gave it something: the router knows.
const CHANGES_WAIT_IDLE: Duration = Duration::from_millis(250);
/// Most entries that wait: they fit into the queue.
const ENTRIES_WAIT: u64 = EVENT_QUEUE as u64;
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
        changed_at: None,
        has_others: false,
        unseen: next,
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
    /// When the first change came that was not sent yet.
    changed_at: Option<Timestamp>,
    /// Another router gave the worker something since the router was last told that there is nothing to do.
    has_others: bool,
    /// Number of the first log entry that was not yet looked at.
    unseen: u64,
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
        let is_news = self.is_news();
        let is_due = self.load_due_in().is_zero();
        if is_news || is_due {
            self.send_entries().await?;
        }
        if is_due {
            self.send_load().await?;
        }
        let wait = self.load_due_in();
        tokio::select! {
            biased;
            () = changes.changed() => self.changed_at = self.changed_at.or_else(|| Some(clock::now())),
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

    /// Whether there are entries that must not wait.
    fn is_news(&mut self) -> bool {
        let log = self.engine.log();
        let (first, last) = (self.unseen.max(self.next), log.last_sequence());
        let is_others = log.has_admitted_from_another(first, self.router);
        self.unseen = last + 1;
        self.has_others |= is_others;
        is_others || self.next == 0 || last >= self.next + ENTRIES_WAIT
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

    /// Time until the next load report: it goes out with the changes that wait for it, and otherwise shows
    /// that the worker lives. A change of the drain state goes out at once.
    fn load_due_in(&self) -> Duration {
        let Some(sent) = self.load_sent.filter(|_| self.drain() == self.told_drain) else {
            return Duration::ZERO;
        };
        let load = self.engine.log().load();
        let is_busy = load.running + load.waiting > 0;
        let alive = sent + if is_busy { LOAD_INTERVAL_BUSY } else { LOAD_INTERVAL_IDLE };
        let wait = if is_busy || self.has_others { CHANGES_WAIT } else { CHANGES_WAIT_IDLE };
        let due = self.changed_at.map_or(alive, |changed| alive.min(changed + wait));
        due.since(clock::now())
    }

    async fn send_load(&mut self) -> Option<()> {
        (self.load_sent, self.changed_at) = (Some(clock::now()), None);
        let report = self.engine.log().report(self.router);
        // Their end is told in time, too.
        self.has_others &= report.load.running + report.load.waiting > 0;
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
    use skein_proto::placement::Placement;
    use skein_proto::runs::CacheChange;
    use skein_proto::watch::Admitted;
    use wire::worker_event::Event;

    use super::*;
    use crate::backend::fake::{FakeBackend, FakeOptions};
    use crate::config::SchedulerConfig;
    use crate::engine::{Engine, LogEntry};
    use crate::scheduler::Scheduler;

    /// A follower for router 9 of an engine that never runs, and what it sends.
    fn follower() -> (Engine, Follower, mpsc::Receiver<Result<wire::WorkerEvent, Status>>) {
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 64, 512);
        let backend = FakeBackend::new(FakeOptions { kv_blocks: 64, ..FakeOptions::default() });
        let (of_engine, engine) = Engine::new(scheduler, Box::new(backend), 8);
        let (events, sent) = mpsc::channel(EVENT_QUEUE);
        let follower = Follower {
            engine,
            epoch: 1,
            router: 9,
            next: 1,
            events,
            load_sent: None,
            changed_at: None,
            has_others: false,
            unseen: 1,
            metrics: None,
            totals_sent: None,
            told_drain: (false, false),
            adapters: None,
            adapter_changes: None,
            told_adapters: None,
        };
        (of_engine, follower, sent)
    }

    #[tokio::test]
    async fn a_drain_is_reported_at_once_and_not_at_the_next_interval() {
        clock::simulate(Some(|| Duration::from_secs(1)));
        let (_engine, mut follower, mut sent) = follower();
        let engine = follower.engine.clone();
        let mut is_draining = async || match sent.recv().await?.ok()?.event {
            Some(Event::Load(load)) => Some(load.draining),
            _ => None,
        };
        follower.send_load().await.expect("somebody listens");
        assert_eq!((is_draining().await, follower.load_due_in()), (Some(false), LOAD_INTERVAL_IDLE));
        follower.changed_at = Some(clock::now());
        assert_eq!(follower.load_due_in(), CHANGES_WAIT_IDLE);
        follower.has_others = true;
        assert_eq!(follower.load_due_in(), CHANGES_WAIT);
        engine.log().set_draining();
        assert_eq!(follower.load_due_in(), Duration::ZERO, "a drain is reported at once");
        follower.send_load().await.expect("somebody listens");
        assert_eq!((is_draining().await, follower.load_due_in()), (Some(true), LOAD_INTERVAL_IDLE));
        clock::simulate(None);
    }

    #[test]
    fn only_what_other_routers_sent_is_news() {
        let (_engine, mut follower, _sent) = follower();
        let engine = follower.engine.clone();
        let admitted = |router| {
            let placement = Placement { router, sequence: 1 };
            LogEntry::Admitted(Admitted { placement, depth: 0, hashes: Vec::new(), stream_key: None })
        };
        assert!(!follower.is_news(), "nothing at all");
        engine.log().append(admitted(9));
        engine.log().append(LogEntry::Cache(CacheChange::default()));
        assert!(!follower.is_news(), "it knows of its own");
        engine.log().append(admitted(8));
        engine.log().append(admitted(9));
        assert!(follower.is_news());
        assert!(!follower.is_news(), "said already");
        (0..ENTRIES_WAIT).for_each(|_| engine.log().append(admitted(9)));
        assert!(follower.is_news(), "as many as fit");
    }
}
