//! State of each worker that a choice needs, in one array, because a choice reads all of it while the workers
//! themselves are scattered in memory. Pure.

use skein_node::clock::Timestamp;
use skein_proto::version::Version;

use crate::backlog::Backlog;
use crate::limits::ModelLimits;
use crate::policy::WorkerView;
use crate::worker_id::WorkerId;

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

/// States of all workers, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Standings(Vec<Standing>);

impl Standings {
    /// Inserts or replaces a worker's state.
    pub fn set(&mut self, standing: Standing) {
        match self.find(standing.view.id) {
            Ok(at) => self.0[at] = standing,
            Err(at) => self.0.insert(at, standing),
        }
    }

    /// Removes a worker.
    pub fn remove(&mut self, id: WorkerId) {
        if let Ok(at) = self.find(id) {
            self.0.remove(at);
        }
    }

    /// Workers that accept requests of `version`; unknown = any. If there are none, those that only their
    /// breaker excludes: its pause is useful only if there is a better worker.
    #[inline]
    pub fn takers(&self, now: Timestamp, version: Version) -> impl Iterator<Item = &Standing> + Clone {
        let serving = self.0.iter().filter(move |standing| standing.version.fits(version));
        let any_takes = serving.clone().any(|standing| standing.takes(now));
        serving.filter(move |standing| standing.takes(now) || !any_takes && standing.is_able(now))
    }

    /// The version that most of the seats of workers that accept requests serve; among equals, the one that
    /// came into service last. Unknown if no worker says what it serves.
    ///
    /// So a rolling update of a fleet moves new requests when half of it has been replaced, and never to a
    /// single new worker.
    pub fn main_version(&self, now: Timestamp) -> Version {
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
        self.0.binary_search_by_key(&id, |standing| standing.view.id)
    }
}
