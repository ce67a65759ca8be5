//! One worker as the fleet knows it: whether it takes requests, and where its log stands.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_node::discovery::Member;
use skein_proto::info::WorkerInfo;
use skein_proto::load::LoadReport;
use skein_proto::watch::{WatchBody, WatchEvent};

use super::breaker::{Breaker, Outcome};
use super::ledger::Ledger;

/// After a stream broke, reports that were already on their way for this long do not prove the worker alive.
const REPORTS_ON_THEIR_WAY: Duration = Duration::from_millis(50);
/// A step takes up to its full token budget at the measured rate; this many times that is no step any more.
const STEPS_TO_BE_WEDGED: f64 = 4.0;
/// Floor of the time after which a step counter that stands still means a wedge, when nobody has set one.
const WEDGED_AFTER: Duration = Duration::from_secs(5);
/// While nothing is measured, a first step may take this long: a big model on a slow CPU is not dead.
const UNMEASURED_WEDGE: Duration = Duration::from_secs(60);

/// After what time a worker counts as lost.
#[derive(Debug, Clone, Copy)]
pub struct HealthLimits {
    /// Without a word from it.
    pub worker_timeout: Duration,
    /// With work and a step counter that stands still; `None` = by its measured rates.
    pub wedge_timeout: Option<Duration>,
}

/// Why a worker takes no requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum Refused {
    #[error("connecting")]
    Connecting,
    /// Its model cannot be used here, for this reason.
    #[error("{0}")]
    Mismatch(Arc<str>),
    #[error("not heard from")]
    NotHeardFrom,
    #[error("silent")]
    Silent,
    #[error("draining")]
    Draining,
    #[error("a stream broke; waiting for a sign of life")]
    StreamBroke,
    #[error("its engine stands still")]
    StandsStill,
    #[error("paused after repeated faults")]
    Paused,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub member: Member,
    pub info: Option<WorkerInfo>,
    /// Why its model cannot be used here.
    mismatch: Option<Arc<str>>,
    /// Its watch is open and has said something.
    pub watching: bool,
    /// Discovery does not name it any more; it is kept while its link lives.
    pub departed: bool,
    /// It was found lost, and has not come back since.
    pub lost: bool,
    /// It gave a request back at this epoch: it drains, whatever reports that are still on their way say.
    handed_back: bool,
    position: Position,
    pub ledger: Ledger,
    pub breaker: Breaker,
    /// A stream broke then, and the worker has not been heard since.
    suspect_since: Option<Timestamp>,
    /// When its step counter last moved, or it had nothing to do.
    moved_at: Timestamp,
    heard_at: Timestamp,
    /// Silence counts from then on at the earliest.
    excused_at: Timestamp,
}

/// Where the worker's log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Nothing is known; a snapshot comes first.
    Unknown,
    /// The next entry has this number.
    Next(u64),
}

/// How an event fits the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is the next one.
    Next,
    /// It is known already.
    Old,
    /// Something before it was lost.
    Gap,
}

/// What all workers of a fleet have to serve. Its name is the router's; the rest is that of the first worker seen.
#[derive(Debug)]
pub struct Model {
    pub name: String,
    pub fingerprint: Option<u64>,
}

impl Model {
    /// Why a worker's requests cannot be moved to and from others; `None` = they can.
    fn differs_from(&self, info: &WorkerInfo) -> Option<Arc<str>> {
        let (name, served) = (&self.name, &info.model);
        if served != name {
            let reason = format!(
                "serves `{served}`, this router serves `{name}`; start both with one served model name"
            );
            return Some(reason.into());
        }
        (self.fingerprint != Some(info.fingerprint)).then(|| {
            format!(
                "serves other weights or another config.json as `{name}` than the workers before it; give all \
                 workers equal copies, and restart the router when the model changes"
            )
            .into()
        })
    }
}

impl Worker {
    pub fn new(member: Member, now: Timestamp) -> Self {
        Self {
            member,
            info: None,
            mismatch: None,
            watching: false,
            departed: false,
            lost: false,
            handed_back: false,
            position: Position::Unknown,
            ledger: Ledger::default(),
            breaker: Breaker::default(),
            suspect_since: None,
            moved_at: now,
            heard_at: now,
            excused_at: now,
        }
    }

    /// Whether the worker is at this epoch.
    pub fn lives(&self, epoch: u64) -> bool {
        self.info.as_ref().is_some_and(|info| info.epoch == epoch)
    }

    /// Why its model cannot be used here.
    pub fn mismatch(&self) -> Option<Refused> {
        self.mismatch.clone().map(Refused::Mismatch)
    }

    /// Whether its tokens are those of the other workers.
    pub fn serves_our_model(&self) -> bool {
        self.mismatch.is_none()
    }

    /// Why the worker takes no requests now; `None` = it does.
    pub fn refuses(&self, now: Timestamp, limits: &HealthLimits) -> Option<Refused> {
        let paused = || (!self.breaker.allows(now)).then_some(Refused::Paused);
        self.cannot(now, limits).or_else(paused)
    }

    /// Why the worker could not serve a request now, whatever its breaker says; `None` = it could.
    pub fn cannot(&self, now: Timestamp, limits: &HealthLimits) -> Option<Refused> {
        if self.info.is_none() {
            Some(Refused::Connecting)
        } else if let Some(mismatch) = &self.mismatch {
            Some(Refused::Mismatch(mismatch.clone()))
        } else if !self.watching {
            Some(Refused::NotHeardFrom)
        } else if self.is_silent(now, limits.worker_timeout) {
            Some(Refused::Silent)
        } else if self.handed_back || self.ledger.last_report().draining {
            Some(Refused::Draining)
        } else if self.suspect_since.is_some() {
            Some(Refused::StreamBroke)
        } else if self.is_frozen(now, limits) {
            Some(Refused::StandsStill)
        } else {
            None
        }
    }

    pub fn connected(&mut self, now: Timestamp, info: WorkerInfo, model: &Model) {
        if !self.lives(info.epoch) {
            self.ledger.restart(info.kv_blocks);
            self.breaker = Breaker::default();
            self.position = Position::Unknown;
            self.handed_back = false;
        }
        self.suspect_since = None;
        (self.moved_at, self.heard_at) = (now, now);
        self.mismatch = model.differs_from(&info);
        self.info = Some(info);
    }

    /// Fits an event into the log.
    ///
    /// A snapshot stands before the entry of its own number, as a load report does: neither uses one up.
    pub fn follow(&mut self, now: Timestamp, event: &WatchEvent) -> Step {
        self.watching = true;
        self.heard_at = now;
        if self.suspect_since.is_some_and(|since| now.since(since) >= REPORTS_ON_THEIR_WAY) {
            self.suspect_since = None;
        }
        match (&event.body, self.position) {
            (WatchBody::Snapshot { .. }, _) => self.position = Position::Next(event.sequence),
            (WatchBody::Load(_), Position::Unknown) => {}
            (WatchBody::Load(_), Position::Next(next)) if event.sequence > next => return Step::Gap,
            (WatchBody::Load(_), Position::Next(_)) => {}
            (_, Position::Unknown) => return Step::Gap,
            (_, Position::Next(next)) if event.sequence < next => return Step::Old,
            (_, Position::Next(next)) if event.sequence > next => return Step::Gap,
            (_, Position::Next(next)) => self.position = Position::Next(next + 1),
        }
        Step::Next
    }

    pub fn watch_from(&self) -> (u64, u64) {
        match (&self.info, self.position) {
            (Some(info), Position::Next(next)) => (info.epoch, next),
            _ => (0, 0),
        }
    }

    pub fn ask_for_snapshot(&mut self) {
        self.position = Position::Unknown;
    }

    pub fn report(&mut self, now: Timestamp, report: LoadReport) {
        if report.load.running == 0 || report.step != self.ledger.last_report().step {
            self.moved_at = now;
        }
        self.ledger.report(report);
    }

    pub fn dispatched(&mut self, now: Timestamp, epoch: u64, outcome: Outcome) {
        if self.lives(epoch) {
            self.breaker.record(now, outcome);
            match outcome {
                Outcome::Fault => self.suspect_since = Some(now),
                // Tokens are as good a sign of life as a report.
                Outcome::Success => self.suspect_since = None,
                Outcome::Backpressure | Outcome::Neutral => {}
            }
        }
    }

    /// Whether it drains and wants its streams to go on elsewhere.
    pub fn is_giving_back(&self) -> bool {
        self.watching && self.ledger.last_report().giving_back
    }

    /// The worker has given a request back at `epoch`.
    pub fn handed_back(&mut self, epoch: u64) {
        self.handed_back |= self.lives(epoch);
    }

    /// This router itself stood still for a while: what it did not hear meanwhile says nothing.
    pub fn excuse(&mut self, now: Timestamp) {
        (self.excused_at, self.moved_at) = (now, now);
    }

    /// Whether nothing more is to be expected of it: silence, or an engine that stands still.
    pub fn is_lost(&self, now: Timestamp, limits: &HealthLimits) -> bool {
        self.is_silent(now, limits.worker_timeout) || self.is_frozen(now, limits)
    }

    /// Whether nothing was heard of it for `time`.
    pub fn is_silent(&self, now: Timestamp, time: Duration) -> bool {
        now.since(self.heard_at.max(self.excused_at)) >= time
    }

    /// Whether a stream silent since `silent_since` will stay so.
    pub fn is_stuck(&self, now: Timestamp, limits: &HealthLimits, silent_since: Timestamp) -> bool {
        let wedge_limit = self.wedge_limit(limits);
        let load = self.ledger.last_report().load;
        let silent_for = now.since(silent_since);
        // It has reported since, and knows of no work at all: it does not have the request any more.
        let forgot = load.running == 0
            && load.waiting == 0
            && silent_for >= wedge_limit
            && self.heard_at.since(silent_since) >= wedge_limit / 2;
        // A stream that still flows while only the reports are missing is left alone.
        let timeout = limits.worker_timeout;
        let cut_off = self.is_silent(now, timeout) && silent_for >= timeout / 2;
        forgot || cut_off || self.is_frozen(now, limits)
    }

    fn is_frozen(&self, now: Timestamp, limits: &HealthLimits) -> bool {
        self.ledger.last_report().load.running > 0 && now.since(self.moved_at) >= self.wedge_limit(limits)
    }

    fn wedge_limit(&self, limits: &HealthLimits) -> Duration {
        if let Some(limit) = limits.wedge_timeout {
            return limit;
        }
        let rate = f64::from(self.ledger.last_report().load.prefill_tokens_per_second);
        let budget = self.info.as_ref().map_or(0, |info| info.max_num_batched_tokens);
        if rate > 0.0 {
            let step = Duration::try_from_secs_f64(f64::from(budget) / rate).unwrap_or(UNMEASURED_WEDGE);
            step.min(UNMEASURED_WEDGE).mul_f64(STEPS_TO_BE_WEDGED).clamp(WEDGED_AFTER, UNMEASURED_WEDGE)
        } else {
            UNMEASURED_WEDGE
        }
    }
}
