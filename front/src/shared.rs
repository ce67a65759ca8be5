//! What the requests of this process share.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use skein_choice::breaker::Outcome;
use skein_node::clock::{self, Timestamp};
use skein_node::random;
use skein_router::api::http::keys::ApiKeys;
use skein_router::drain::Drain;
use skein_router::refusal::Refusal;
use xxhash_rust::xxh3::xxh3_64;

use super::config::UpstreamConfig;
use super::link::{AddressPlaces, Link, Spot};
use super::metrics::UpstreamMetrics;
use super::routes::Call;
use super::servers::{Assignment, Health, Servers, Unavailable};

/// Pause before a waiting request asks again for a worker.
pub(super) const WAIT: Duration = Duration::from_millis(50);
/// What a client should wait when no worker is up.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    servers: Servers,
    rng: StdRng,
}

impl Shared {
    /// The state of a process with these workers, before any request.
    pub fn new(config: UpstreamConfig, links: Vec<Link>, servers: Servers) -> Self {
        Self {
            keys: ApiKeys::of(&config.router),
            drain: Drain::default(),
            metrics: UpstreamMetrics::new(config.router.keys_file.clone(), config.router.usage_log.clone()),
            seed: random::seed(),
            core: Mutex::new(Core { servers, rng: StdRng::seed_from_u64(random::seed()) }),
            links,
            config,
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the servers.
    pub fn servers<T>(&self, work: impl FnOnce(&mut Servers) -> T) -> T {
        work(&mut self.core().servers)
    }

    /// Records a worker's new health, and for the log the reason why it is not up.
    pub fn health_changed(&self, worker: u32, health: Health, reason: &str) {
        let Some(link) = self.links.get(worker as usize) else { return };
        link.lost.store(health == Health::Lost, Ordering::Relaxed);
        if health == Health::Lost {
            link.pool.clear();
        }
        match health {
            Health::Up => tracing::info!(worker = &*link.name(), "worker is up"),
            _ => tracing::warn!(worker = &*link.name(), state = health.word(), reason, "worker is down"),
        }
    }

    /// Gives an address of a name a free place; false if there is none.
    pub fn appeared(&self, places: &AddressPlaces, address: SocketAddr) -> bool {
        let name: Arc<str> = places.url.at(address).into();
        let place = self.servers(|servers| {
            let place = places.places.clone().find(|at| servers.is_free(*at))?;
            let link = self.links.get(place as usize)?;
            // Before a request can be placed there.
            *link.spot() = Spot { name: name.clone(), address: Some(address) };
            link.lost.store(false, Ordering::Relaxed);
            link.pool.move_to(Some(address));
            servers.appeared(place, name_hash(&name));
            Some(link)
        });
        place.inspect(|link| link.appeared.notify_one()).is_some()
    }

    /// Frees the place of an address that its name no longer has.
    pub fn vanished(&self, places: &AddressPlaces, address: SocketAddr) {
        let place = places
            .places
            .clone()
            .find(|at| self.links.get(*at as usize).is_some_and(|link| link.address() == Some(address)));
        let Some((place, link)) = place.and_then(|at| Some((at, self.links.get(at as usize)?))) else {
            return;
        };
        self.servers(|servers| servers.vanished(place));
        link.spot().address = None;
        link.pool.clear();
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
        let Core { servers, rng } = &mut *self.core();
        let assignment = servers.choose(clock::now(), &call.prompt, tried, rng)?;
        if let Some(receipts) = &call.receipts {
            let name = |worker: u32| self.links.get(worker as usize).map(Link::name);
            receipts.add(servers.explain(&call.prompt, &assignment, name));
        }
        Ok(Seat { shared: self.clone(), assignment, outcome: Outcome::Neutral, began: false })
    }

    fn may_wait(&self, why: Unavailable) -> bool {
        why == Unavailable::Full || self.servers(|servers| servers.was_up())
    }

    /// What a client hears when there is no worker for it.
    pub fn refusal(&self, why: Unavailable) -> Refusal {
        let mut states = self.servers(|servers| servers.states(clock::now()));
        states.retain(|state| state.health != Health::Absent);
        let up = states.iter().filter(|state| state.health == Health::Up).count();
        match why {
            Unavailable::Full => Refusal::Overloaded {
                reason: format!("all {up} workers that are up are full"),
                retry_after: RETRY_AFTER,
            },
            Unavailable::NoneUp => {
                let first = states.first().map_or("", |state| state.health.word());
                let reason = match states.len() {
                    0 => "their name has no address yet".to_owned(),
                    1 => format!("the only one is {first}"),
                    all if up == 0 => format!("none of {all} is up, the first is {first}"),
                    all => format!("none of the {up} of {all} that are up serves this"),
                };
                Refusal::NoReadyWorker { reason, retry_after: RETRY_AFTER }
            }
        }
    }
}

/// Hash of a worker's name, for choices.
pub(super) fn name_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// A request's place at a worker; freed when dropped.
pub(super) struct Seat {
    shared: Arc<Shared>,
    assignment: Assignment,
    outcome: Outcome,
    began: bool,
}

impl Seat {
    /// Position of the worker.
    pub fn worker(&self) -> u32 {
        self.assignment.worker
    }

    /// Connections to the worker.
    pub fn link(&self) -> &Link {
        &self.shared.links[self.assignment.worker as usize]
    }

    /// Records that the answer has begun; returns whether that is new.
    pub fn begin(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.began, true);
        if is_new {
            let assignment = &mut self.assignment;
            self.shared.core().servers.began(clock::now(), assignment);
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
        self.shared.core().servers.ended(clock::now(), self.assignment, self.outcome);
    }
}
