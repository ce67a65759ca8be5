//! What the requests of this process share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use skein_node::clock::{self, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use super::fleet::{Fleet, Health, Placement, Unavailable};
use super::metrics::UpstreamMetrics;
use super::pool::Pool;
use super::routes::Call;
use super::{UpstreamConfig, WorkerUrl, health};
use crate::drain::Drain;
use crate::fleet::breaker::Outcome;
use crate::gateway::ApiKeys;
use crate::refusal::Refusal;

/// Pause before a waiting request asks again for a worker.
const WAIT: Duration = Duration::from_millis(50);
/// What a client should wait when no worker is up.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A router before OpenAI servers; cheap to clone.
#[derive(Clone)]
pub struct Upstreams(pub(super) Arc<Shared>);

/// State of the process.
pub(super) struct Shared {
    pub config: UpstreamConfig,
    pub keys: ApiKeys,
    pub drain: Drain,
    pub metrics: UpstreamMetrics,
    pub links: Vec<Link>,
    /// Begins the hashes of prompts; no client knows it.
    pub seed: u64,
    core: Mutex<Core>,
}

struct Core {
    fleet: Fleet,
    rng: StdRng,
}

/// A worker's address and connections.
pub(super) struct Link {
    pub url: WorkerUrl,
    pub name: String,
    pub pool: Pool,
    lost: AtomicBool,
}

impl Link {
    /// Whether health checks found the worker lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Upstreams {
    /// Starts the health checks. Needs a tokio runtime.
    pub fn start(config: UpstreamConfig) -> Self {
        let link = |url: &WorkerUrl| Link {
            url: url.clone(),
            name: url.to_string(),
            pool: Pool::new(url.clone()),
            lost: AtomicBool::new(false),
        };
        let links: Vec<Link> = config.workers.iter().map(link).collect();
        let names = links.iter().map(|link| xxh3_64(link.name.as_bytes()));
        let fleet = Fleet::new(names, config.router.policy, config.router.recovery.max_index_bytes);
        let random = RandomState::new();
        let shared = Arc::new(Shared {
            keys: ApiKeys::new(&config.router.api_keys),
            drain: Drain::default(),
            metrics: UpstreamMetrics::new(),
            seed: random.hash_one("marks"),
            core: Mutex::new(Core { fleet, rng: StdRng::seed_from_u64(random.hash_one("choices")) }),
            links,
            config,
        });
        health::start(&shared);
        Self(shared)
    }

    /// Waits until some worker is up.
    pub async fn wait_ready(&self) {
        while !self.0.fleet(|fleet| fleet.is_up()) {
            tokio::time::sleep(WAIT).await;
        }
    }
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the fleet.
    pub fn fleet<T>(&self, work: impl FnOnce(&mut Fleet) -> T) -> T {
        work(&mut self.core().fleet)
    }

    /// Records a worker's new health.
    pub fn health_changed(&self, worker: u32, health: Health) {
        let Some(link) = self.links.get(worker as usize) else { return };
        link.lost.store(health == Health::Lost, Ordering::Relaxed);
        if health == Health::Lost {
            link.pool.clear();
        }
        match health {
            Health::Up => tracing::info!(worker = link.name, "worker is up"),
            _ => tracing::warn!(worker = link.name, state = health.word(), "worker is down"),
        }
    }

    /// When a request that waits from now on for a worker gives up.
    pub fn give_up_at(&self) -> Timestamp {
        clock::now() + self.config.router.recovery.queue_timeout
    }

    /// Chooses a worker, and waits until `give_up` while none has room, or while none is up after one was.
    pub async fn place(
        self: &Arc<Self>,
        call: &Call,
        tried: &[u32],
        give_up: Timestamp,
    ) -> Result<Seat, Refusal> {
        loop {
            match self.try_place(call, tried) {
                Ok(seat) => return Ok(seat),
                Err(why) if !self.may_wait(why) || clock::now() >= give_up => return Err(self.refusal(why)),
                Err(_) => call.check()?,
            }
            tokio::time::sleep(WAIT).await;
        }
    }

    fn try_place(self: &Arc<Self>, call: &Call, tried: &[u32]) -> Result<Seat, Unavailable> {
        let Core { fleet, rng } = &mut *self.core();
        let placement = fleet.choose(clock::now(), &call.prompt, tried, rng)?;
        if let Some(receipts) = &call.receipts {
            let name = |worker: u32| self.links.get(worker as usize).map(|link| link.name.as_str().into());
            receipts.add(fleet.explain(&call.prompt, &placement, name));
        }
        Ok(Seat { shared: self.clone(), placement, outcome: Outcome::Neutral, began: false })
    }

    fn may_wait(&self, why: Unavailable) -> bool {
        why == Unavailable::Full || self.fleet(|fleet| fleet.was_up())
    }

    /// What a client hears when there is no worker for it.
    pub fn refusal(&self, why: Unavailable) -> Refusal {
        let states = self.fleet(|fleet| fleet.states(clock::now()));
        let up = states.iter().filter(|state| state.health == Health::Up).count();
        match why {
            Unavailable::Full => Refusal::Overloaded {
                reason: format!("all {up} workers that are up are full"),
                retry_after: RETRY_AFTER,
            },
            Unavailable::NoneUp => {
                let first = states.first().map_or("", |state| state.health.word());
                let reason = match states.len() {
                    1 => format!("the only one is {first}"),
                    all if up == 0 => format!("none of {all} is up, the first is {first}"),
                    all => format!("none of the {up} of {all} that are up serves this"),
                };
                Refusal::NoReadyWorker { reason, retry_after: RETRY_AFTER }
            }
        }
    }
}

/// A request's place at a worker; freed when dropped.
pub(super) struct Seat {
    shared: Arc<Shared>,
    placement: Placement,
    outcome: Outcome,
    began: bool,
}

impl Seat {
    /// Position of the worker.
    pub fn worker(&self) -> u32 {
        self.placement.worker
    }

    /// Connections to the worker.
    pub fn link(&self) -> &Link {
        &self.shared.links[self.placement.worker as usize]
    }

    /// Records that the answer has begun; returns whether that is new.
    pub fn begin(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.began, true);
        if is_new {
            let placement = &mut self.placement;
            self.shared.core().fleet.began(clock::now(), placement);
        }
        is_new
    }

    /// Frees the place with what the request says about the worker.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.core().fleet.ended(clock::now(), self.placement, self.outcome);
    }
}
