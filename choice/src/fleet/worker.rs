//! One worker as the fleet sees it: whether it accepts requests, and the position in its log.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_node::discovery::Member;
use skein_proto::info::WorkerInfo;
use skein_proto::load::LoadReport;
use skein_proto::version::Version;
use skein_proto::watch::{WatchBody, WatchEvent};
use xxhash_rust::xxh3::xxh3_64;

use super::loss::Loss;
use super::standing::Standing;
use crate::breaker::{Breaker, Outcome};
use crate::ledger::{Cost, Ledger};
use crate::limits::ModelLimits;
use crate::policy::WorkerView;
use crate::worker_id::WorkerId;

/// How long a worker that refused a request as full is not tried unless it reports a free seat.
const FULL_FOR: Duration = Duration::from_secs(1);
/// After a stream broke, reports within this time may have been sent before and do not prove the worker
/// alive.
const REPORTS_ON_THEIR_WAY: Duration = Duration::from_millis(50);
/// A step processes at most its full token budget at the measured rate; this many times as long means a
/// wedge.
const WEDGED_AFTER_STEPS: f64 = 4.0;
/// Shortest time without a step that counts as a wedge, unless configured.
const SHORTEST_WEDGE: Duration = Duration::from_secs(5);
/// Longest time a step may take, and the time allowed while no rate is measured: a big model on a slow CPU is
/// not dead.
const UNMEASURED_WEDGE: Duration = Duration::from_secs(60);

/// When a worker counts as lost.
#[derive(Debug, Clone, Copy)]
pub struct HealthLimits {
    /// Time without a message from it.
    pub worker_timeout: Duration,
    /// Time without a step while it has work; `None` = derived from its measured rates.
    pub wedge_timeout: Option<Duration>,
}

/// A position in a worker's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Epoch of the worker that writes the log.
    pub epoch: u64,
    /// Number of its next event.
    pub next_sequence: u64,
}

/// Why a worker accepts no requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum NotReady {
    #[error("connecting")]
    Connecting,
    /// Its model does not match, for this reason.
    #[error("{0}")]
    Mismatch(Arc<str>),
    #[error("starting or out of contact")]
    NotHeardFrom,
    #[error("silent")]
    Silent,
    #[error("draining")]
    Draining,
    #[error("a stream broke; waiting for a report")]
    StreamBroke,
    #[error("its engine makes no progress")]
    StandsStill,
    #[error("paused after repeated faults")]
    Paused,
}

/// State of one worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub member: Member,
    /// Hash of its name, equal in every router.
    name_hash: u64,
    /// Id of the member, shared with spans and log lines.
    pub name: Arc<str>,
    pub info: Option<WorkerInfo>,
    /// Why its model cannot be used; `None` = it can.
    mismatch: Option<Arc<str>>,
    /// Its watch is open and has delivered an event.
    pub watching: bool,
    /// Discovery no longer lists it; it is kept while its link lives.
    pub departed: bool,
    /// It was found lost and has not come back since.
    pub lost: bool,
    /// It handed a request back at this epoch, so it drains, even if delayed reports say otherwise.
    handed_back: bool,
    position: Position,
    pub ledger: Ledger,
    pub breaker: Breaker,
    /// When a stream broke, until the worker is heard from again.
    suspect_since: Option<Timestamp>,
    /// When its step counter last changed or it last had no work.
    stepped_at: Timestamp,
    heard_at: Timestamp,
    /// It refused a request as full and is not tried before this time, unless a seat becomes free.
    full_until: Timestamp,
    /// Its sequences when it refused, including that request's.
    full_with: u32,
    /// Silence is counted from this time at the earliest.
    excused_at: Timestamp,
}

/// The position in a worker's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Unknown; a snapshot comes first.
    Unknown,
    /// Number of the next event.
    Next(u64),
}

/// How an event fits the position in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogFit {
    /// It is the next one.
    Next,
    /// It was applied before.
    Old,
    /// An event before it was lost.
    Gap,
}

/// The model that all workers of a fleet must serve, in any version.
#[derive(Debug)]
pub struct Model {
    pub name: String,
    /// Fingerprint of its tokenizer.json; 0 = unknown until a worker says it.
    pub tokenizer: u64,
    /// Fingerprint of the router's grammars; 0 = unknown.
    pub grammars: u64,
}

impl Model {
    /// Whether the worker allows other tokens for a grammar than this router, as far as both are known.
    pub fn has_other_grammars(&self, info: &WorkerInfo) -> bool {
        self.grammars != 0 && ![0, self.grammars].contains(&info.grammar_fingerprint)
    }

    /// Why this worker cannot be used; `None` = it can.
    fn differs_from(&self, info: &WorkerInfo) -> Option<Arc<str>> {
        let (name, served) = (&self.name, &info.model);
        if served != name {
            let reason = format!(
                "serves `{served}`, this router serves `{name}`; start both with one served model name"
            );
            return Some(reason.into());
        }
        (![0, self.tokenizer].contains(&info.tokenizer_fingerprint) && self.tokenizer != 0).then(|| {
            format!(
                "serves `{name}` with another tokenizer.json than this router's; give both equal copies, and start a \
                 new router for a model with another tokenizer"
            )
            .into()
        })
    }
}

impl Worker {
    pub fn new(member: Member, now: Timestamp) -> Self {
        Self {
            name_hash: xxh3_64(member.id.as_bytes()),
            name: member.id.as_str().into(),
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
            stepped_at: now,
            heard_at: now,
            full_until: Timestamp::ZERO,
            full_with: 0,
            excused_at: now,
        }
    }

    /// Whether the worker is at this epoch.
    pub fn is_at(&self, epoch: u64) -> bool {
        self.info.as_ref().is_some_and(|info| info.epoch == epoch)
    }

    /// Why its model cannot be used.
    pub fn mismatch(&self) -> Option<NotReady> {
        self.mismatch.clone().map(NotReady::Mismatch)
    }

    /// Version of the model that it serves, if it can be used.
    pub fn usable_version(&self) -> Option<Version> {
        self.info.as_ref().filter(|_| self.mismatch.is_none()).map(WorkerInfo::model_version)
    }

    /// Why the worker accepts no requests now; `None` = it does.
    pub fn refuses(&self, now: Timestamp, limits: &HealthLimits) -> Option<NotReady> {
        let paused = || (!self.breaker.allows(now)).then_some(NotReady::Paused);
        self.cannot(now, limits).or_else(paused)
    }

    /// Why the worker cannot serve a request now, apart from its breaker; `None` = it can.
    pub fn cannot(&self, now: Timestamp, limits: &HealthLimits) -> Option<NotReady> {
        let silent = || self.is_silent(now, limits.worker_timeout).then_some(NotReady::Silent);
        let frozen = || self.is_frozen(now, limits).then_some(NotReady::StandsStill);
        match self.is_out() {
            Some(out @ (NotReady::Draining | NotReady::StreamBroke)) => silent().or(Some(out)),
            Some(out) => Some(out),
            None => silent().or_else(frozen),
        }
    }

    /// Why it cannot serve a request, independent of time.
    fn is_out(&self) -> Option<NotReady> {
        if self.info.is_none() {
            Some(NotReady::Connecting)
        } else if let Some(mismatch) = &self.mismatch {
            Some(NotReady::Mismatch(mismatch.clone()))
        } else if !self.watching {
            Some(NotReady::NotHeardFrom)
        } else if self.is_draining() {
            Some(NotReady::Draining)
        } else if self.suspect_since.is_some() {
            Some(NotReady::StreamBroke)
        } else {
            None
        }
    }

    pub fn connected(&mut self, now: Timestamp, info: WorkerInfo, model: &Model) {
        if !self.is_at(info.epoch) {
            self.ledger.restart(info.kv_blocks);
            self.breaker = Breaker::default();
            self.position = Position::Unknown;
            self.handed_back = false;
        }
        self.suspect_since = None;
        (self.stepped_at, self.heard_at) = (now, now);
        self.info = Some(info);
        self.compare(model);
    }

    /// Compares what it serves with the fleet's model.
    pub fn compare(&mut self, model: &Model) {
        self.mismatch = self.info.as_ref().and_then(|info| model.differs_from(info));
    }

    /// Compares an event with the position in the log, and advances the position.
    ///
    /// Snapshots and load reports carry the number of the next event without using it up.
    pub fn follow(&mut self, now: Timestamp, event: &WatchEvent) -> LogFit {
        self.watching = true;
        self.heard_at = now;
        if self.suspect_since.is_some_and(|since| now.since(since) >= REPORTS_ON_THEIR_WAY) {
            self.suspect_since = None;
        }
        match (&event.body, self.position) {
            (WatchBody::Snapshot { .. }, _) => self.position = Position::Next(event.sequence),
            (WatchBody::Load(..) | WatchBody::Adapters(..), Position::Unknown) => {}
            (WatchBody::Load(..) | WatchBody::Adapters(..), Position::Next(next))
                if event.sequence > next =>
            {
                return LogFit::Gap;
            }
            (WatchBody::Load(..) | WatchBody::Adapters(..), Position::Next(_)) => {}
            (_, Position::Unknown) => return LogFit::Gap,
            (_, Position::Next(next)) if event.sequence < next => return LogFit::Old,
            (_, Position::Next(next)) if event.sequence > next => return LogFit::Gap,
            (_, Position::Next(next)) => self.position = Position::Next(next + 1),
        }
        LogFit::Next
    }

    /// Where a watch starts; `None` = with a snapshot.
    pub fn watch_from(&self) -> Option<LogPosition> {
        match (&self.info, self.position) {
            (Some(info), Position::Next(next_sequence)) => {
                Some(LogPosition { epoch: info.epoch, next_sequence })
            }
            _ => None,
        }
    }

    pub fn request_snapshot(&mut self) {
        self.position = Position::Unknown;
    }

    pub fn report(&mut self, now: Timestamp, report: LoadReport) {
        if report.load.running == 0 || report.step != self.ledger.last_report().step {
            self.stepped_at = now;
        }
        if report.load.running + report.load.waiting < self.full_with.saturating_sub(1) {
            self.seat_freed();
        }
        self.ledger.report(now, report);
    }

    /// Records a request from another router, of which it must compute `blocks` blocks and perhaps the start
    /// of another one.
    pub fn admitted_from_another(&mut self, now: Timestamp, blocks: usize) {
        let block_size = self.info.as_ref().map_or(0, |info| u64::from(info.block_size));
        let uncached_tokens = blocks as u64 * block_size;
        self.ledger.admitted_from_another(now, Cost { uncached_tokens, blocks: blocks as u32, sequences: 1 });
    }

    /// Records that one of its sequences has ended, so it may accept another.
    pub fn seat_freed(&mut self) {
        self.full_until = Timestamp::ZERO;
    }

    /// Whether it is known to be full.
    pub fn is_full(&self, now: Timestamp) -> bool {
        now < self.full_until
    }

    /// Its state for a choice; `None` before its info was read.
    pub fn standing(&self, id: WorkerId, column: u32, limits: &HealthLimits) -> Option<Standing> {
        let info = self.info.as_ref()?;
        let heard = self.heard_at.max(self.excused_at);
        let silent_at = heard + limits.worker_timeout;
        let frozen_at = self.stepped_at + self.wedge_limit(limits);
        let has_work = self.ledger.last_report().load.running > 0;
        let able_until = if has_work { silent_at.min(frozen_at) } else { silent_at };
        Some(Standing {
            view: WorkerView {
                id,
                name_hash: self.name_hash,
                hit_tokens: 0,
                load: self.ledger.current(),
                max_num_seqs: info.max_num_seqs,
                block_size: info.block_size,
                reads_adapter: false,
            },
            column,
            version: info.model_version(),
            serving_since_ms: info.serving_since_ms,
            grammar_fingerprint: info.grammar_fingerprint,
            limits: ModelLimits::of(info),
            able_until: if self.is_out().is_some() { Timestamp::ZERO } else { able_until },
            doubtful_at: heard + limits.worker_timeout / 2,
            open_at: self.breaker.open_at(),
            full_until: self.full_until,
            backlog: self.ledger.backlog(),
        })
    }

    pub fn dispatched(&mut self, now: Timestamp, epoch: u64, outcome: Outcome) {
        if self.is_at(epoch) {
            self.breaker.record(now, outcome);
            match outcome {
                Outcome::Fault => self.suspect_since = Some(now),
                // Tokens prove the worker alive just like a report.
                Outcome::Success => self.suspect_since = None,
                Outcome::Backpressure => {
                    self.full_until = now + FULL_FOR;
                    self.full_with = self.ledger.current().sequences;
                }
                Outcome::Neutral => {}
            }
        }
    }

    fn is_draining(&self) -> bool {
        self.handed_back || self.ledger.last_report().draining
    }

    /// Whether it drained and had nothing left to do when it was last heard, so that its silence is its end.
    pub fn has_drained(&self) -> bool {
        let load = self.ledger.last_report().load;
        self.is_draining() && load.running == 0 && load.waiting == 0
    }

    /// Whether it drains and wants its streams to continue on other workers.
    pub fn is_giving_back(&self) -> bool {
        self.watching && self.ledger.last_report().giving_back
    }

    /// Records that the worker handed a request back at `epoch`.
    pub fn handed_back(&mut self, epoch: u64) {
        self.handed_back |= self.is_at(epoch);
    }

    /// Restarts the timeouts after a pause of this router, in which it could not have heard the worker.
    pub fn excuse(&mut self, now: Timestamp) {
        (self.excused_at, self.stepped_at) = (now, now);
    }

    /// Whether the worker counts as lost: silent, or its engine makes no progress.
    pub fn is_lost(&self, now: Timestamp, limits: &HealthLimits) -> bool {
        self.is_silent(now, limits.worker_timeout) || self.is_frozen(now, limits)
    }

    /// Why it is lost, if it is.
    pub fn loss(&self, now: Timestamp, limits: &HealthLimits) -> Loss {
        match (self.watching, self.is_silent(now, limits.worker_timeout)) {
            (false, _) => Loss::Unreachable,
            (true, true) => Loss::Silent,
            (true, false) => Loss::Stuck,
        }
    }

    /// Whether nothing was heard from it for `time`.
    pub fn is_silent(&self, now: Timestamp, time: Duration) -> bool {
        now.since(self.heard_at.max(self.excused_at)) >= time
    }

    /// Whether a stream silent since `silent_since` will stay silent.
    pub fn is_stuck(&self, now: Timestamp, limits: &HealthLimits, silent_since: Timestamp) -> bool {
        let wedge_limit = self.wedge_limit(limits);
        let load = self.ledger.last_report().load;
        let silent_for = now.since(silent_since);
        // It has reported since and has no work at all, so it no longer has the request.
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
        self.ledger.last_report().load.running > 0 && now.since(self.stepped_at) >= self.wedge_limit(limits)
    }

    fn wedge_limit(&self, limits: &HealthLimits) -> Duration {
        if let Some(limit) = limits.wedge_timeout {
            return limit;
        }
        let rate = f64::from(self.ledger.last_report().load.prefill_tokens_per_second);
        let budget = self.info.as_ref().map_or(0, largest_step);
        if rate > 0.0 {
            let step = Duration::try_from_secs_f64(f64::from(budget) / rate).unwrap_or(UNMEASURED_WEDGE);
            step.min(UNMEASURED_WEDGE).mul_f64(WEDGED_AFTER_STEPS).clamp(SHORTEST_WEDGE, UNMEASURED_WEDGE)
        } else {
            UNMEASURED_WEDGE
        }
    }
}

/// Most tokens of a step. Where a model makes vectors, all tokens of a prompt may have to be in one.
fn largest_step(info: &WorkerInfo) -> u32 {
    let whole = info.pooled.as_ref().map_or(0, |_| info.max_model_len);
    info.max_num_batched_tokens.max(whole)
}
