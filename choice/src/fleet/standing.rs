//! State of each worker that a choice needs, in one array, because a choice reads all of it while the workers
//! themselves are scattered in memory. Pure.

use skein_node::clock::Timestamp;
use skein_proto::version::Version;

use crate::backlog::Backlog;
use crate::limits::ModelLimits;
use crate::policy::WorkerView;
use crate::worker_id::WorkerId;

#[cfg(test)]
thread_local! {
    /// Sum of the states over all searches.
    pub(super) static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// State of a worker for a choice. A time-dependent state is stored as the time of its change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Id, load and limits of the worker, without hits.
    pub view: WorkerView,
    /// Index in the results of the prefix index.
    pub column: u32,
    /// Version of the model that it serves, and since when, in milliseconds since 1970.
    pub version: Version,
    pub serving_since_ms: u64,
    /// Fingerprint of the worker's grammars.
    pub grammar_fingerprint: u64,
    /// Longest requests and largest token ids that it accepts.
    pub limits: ModelLimits,
    /// It can serve until this time; then it counts as silent, or its engine as stuck.
    pub able_until: Timestamp,
    /// From this time it may soon count as lost.
    pub doubtful_at: Timestamp,
    /// From this time its breaker lets requests through.
    pub open_at: Timestamp,
    /// It counts as full until this time: it refused a request, and no seat has become free since.
    pub full_until: Timestamp,
    /// Prompt tokens that it has still to compute.
    pub backlog: Backlog,
}

impl Standing {
    /// Whether it can serve a request now, disregarding its breaker.
    #[inline]
    pub fn is_able(&self, now: Timestamp) -> bool {
        now < self.able_until
    }

    /// Whether it accepts requests now.
    #[inline]
    pub fn takes(&self, now: Timestamp) -> bool {
        self.is_able(now) && now >= self.open_at
    }

    /// Whether it may soon count as lost.
    #[inline]
    pub fn is_doubtful(&self, now: Timestamp) -> bool {
        now >= self.doubtful_at
    }

    /// Its view now for a prompt of `prompt_tokens` of which it holds `blocks`.
    #[inline]
    pub fn seen(&self, now: Timestamp, blocks: u32, prompt_tokens: u32) -> WorkerView {
        let mut view = self.view;
        // The last prompt token is always computed, because its logits give the first output token.
        view.hit_tokens = (blocks * view.block_size).min(prompt_tokens.saturating_sub(1));
        view.load.queued_uncached_tokens = self.backlog.left(now);
        view
    }
}

/// The workers that serve one version.
#[derive(Debug, Clone, Copy)]
struct VersionSeats {
    /// Sum of the sequences that run at once.
    count: u64,
    /// When the first of them put it into service.
    since_ms: u64,
}

impl VersionSeats {
    fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, since_ms: self.since_ms.min(other.since_ms) }
    }
}

/// What follows from all states together, and is true until one of them changes or a time comes. So a choice
/// need not read them all for it.
#[derive(Debug, Clone, Copy)]
struct Summary {
    main_version: Version,
    /// Limits that all workers accept that accept requests of this version.
    limits: (Version, Option<ModelLimits>),
    since: Timestamp,
    until: Timestamp,
}

impl Summary {
    fn holds(&self, now: Timestamp) -> bool {
        self.since <= now && now < self.until
    }

    /// Whether it stays true if a state changes. It does if the worker takes requests to the end, before and
    /// after, and serves the same; or if it takes none at all.
    fn survives(&self, before: &Standing, after: &Standing) -> bool {
        let served = |standing: &Standing| {
            let &Standing { version, serving_since_ms, limits, open_at, view, .. } = standing;
            (version, serving_since_ms, limits, open_at, view.max_num_seqs)
        };
        let is_out = before.able_until.max(after.able_until) <= self.since;
        is_out || before.able_until.min(after.able_until) >= self.until && served(before) == served(after)
    }
}

/// States of all workers, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Standings {
    all: Vec<Standing>,
    summary: Option<Summary>,
}

impl Standings {
    /// Inserts or replaces a worker's state.
    pub fn set(&mut self, standing: Standing) {
        match self.find(standing.view.id) {
            Ok(at) => {
                let before = std::mem::replace(&mut self.all[at], standing);
                self.summary = self.summary.filter(|summary| summary.survives(&before, &standing));
            }
            Err(at) => {
                self.all.insert(at, standing);
                self.summary = None;
            }
        }
    }

    /// Removes a worker.
    pub fn remove(&mut self, id: WorkerId) {
        if let Ok(at) = self.find(id) {
            self.all.remove(at);
            self.summary = None;
        }
    }

    /// Prepares [`main_version`](Self::main_version), and [`limits`](Self::limits) of the version that
    /// `current` makes of it.
    pub fn summarise(&mut self, now: Timestamp, current: impl Fn(Version) -> Version) {
        if self.summary.is_some_and(|summary| summary.holds(now)) {
            return;
        }
        let changes = self.all.iter().flat_map(|standing| [standing.able_until, standing.open_at]);
        let until = changes.filter(|&at| at > now).min().unwrap_or(now);
        let main_version = self.main_version(now);
        let version = current(main_version);
        let limits = (version, self.limits(now, version));
        self.summary = Some(Summary { main_version, limits, since: now, until });
    }

    /// Limits that all workers accept that accept requests of `version`; `None` if there is none.
    pub fn limits(&self, now: Timestamp, version: Version) -> Option<ModelLimits> {
        let summary = self.summary.filter(|summary| summary.holds(now) && summary.limits.0 == version);
        let limits = || self.takers(now, version).map(|standing| standing.limits).reduce(ModelLimits::and);
        summary.map_or_else(limits, |summary| summary.limits.1)
    }

    /// Workers that accept requests of `version`; unknown = any. If there are none, those that only their
    /// breaker excludes: its pause is useful only if there is a better worker.
    #[inline]
    pub fn takers(&self, now: Timestamp, version: Version) -> impl Iterator<Item = &Standing> + Clone {
        #[cfg(test)]
        VISITS.set(VISITS.get() + self.all.len());
        let serving = self.all.iter().filter(move |standing| standing.version.fits(version));
        let any_takes = serving.clone().any(|standing| standing.takes(now));
        serving.filter(move |standing| standing.takes(now) || !any_takes && standing.is_able(now))
    }

    /// The version that most of the seats of workers that accept requests serve; among equals, the one that
    /// came into service last. Unknown if no worker says what it serves.
    ///
    /// So a rolling update of a fleet moves new requests when half of it has been replaced, and never to a
    /// single new worker.
    pub fn main_version(&self, now: Timestamp) -> Version {
        if let Some(summary) = self.summary.filter(|summary| summary.holds(now)) {
            return summary.main_version;
        }
        let mut seats: Vec<(Version, VersionSeats)> = Vec::new();
        // Nearly always there is one.
        let mut last = 0;
        for standing in self.takers(now, Version::UNKNOWN).filter(|standing| standing.version.is_known()) {
            let own = VersionSeats {
                count: u64::from(standing.view.max_num_seqs),
                since_ms: standing.serving_since_ms,
            };
            if seats.get(last).is_none_or(|(version, _)| *version != standing.version) {
                let known = seats.iter().position(|(version, _)| *version == standing.version);
                last = known.unwrap_or_else(|| {
                    seats.push((standing.version, VersionSeats { count: 0, since_ms: u64::MAX }));
                    seats.len() - 1
                });
            }
            seats[last].1 = seats[last].1.and(own);
        }
        let main = seats.into_iter().max_by_key(|(version, seats)| (seats.count, seats.since_ms, *version));
        main.map_or(Version::UNKNOWN, |(version, _)| version)
    }

    fn find(&self, id: WorkerId) -> Result<usize, usize> {
        self.all.binary_search_by_key(&id, |standing| standing.view.id)
    }
}

#[cfg(test)]
mod tests;
