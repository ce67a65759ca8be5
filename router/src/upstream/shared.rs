//! What the requests of this process share.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use skein_node::clock::{self, Timestamp};
use skein_node::discovery::Change;
use skein_node::discovery::dns::{self, DnsName};
use skein_node::random;
use tokio::sync::{Notify, mpsc};
use xxhash_rust::xxh3::xxh3_64;

use super::fleet::{Fleet, Health, Placement, Unavailable};
use super::metrics::UpstreamMetrics;
use super::names::MAX_ADDRESSES;
use super::pool::Pool;
use super::routes::Call;
use super::tls::Tls;
use super::{UpstreamConfig, WorkerUrl, health, names};
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

/// A worker's address and connections, or a place for an address of a name.
pub(super) struct Link {
    pub url: WorkerUrl,
    pub pool: Pool,
    /// Wakes the health checks of a place that gets an address.
    pub appeared: Arc<Notify>,
    lost: AtomicBool,
    spot: Mutex<Spot>,
}

/// What a link leads to now.
#[derive(Clone)]
struct Spot {
    name: Arc<str>,
    /// Address, if the URL is that of a name.
    address: Option<SocketAddr>,
}

/// Places of a name's addresses among the workers.
#[derive(Debug, Clone)]
pub(super) struct Named {
    url: WorkerUrl,
    places: Range<u32>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl Link {
    fn new(url: &WorkerUrl, tls: Option<&Tls>) -> Self {
        Self {
            url: url.clone(),
            pool: Pool::new(url.clone(), tls.cloned()),
            appeared: Arc::default(),
            lost: AtomicBool::new(false),
            spot: Mutex::new(Spot { name: url.to_string().into(), address: None }),
        }
    }

    fn spot(&self) -> MutexGuard<'_, Spot> {
        self.spot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name for logs and metrics.
    pub fn name(&self) -> Arc<str> {
        self.spot().name.clone()
    }

    /// Address, if the URL is that of a name.
    pub fn address(&self) -> Option<SocketAddr> {
        self.spot().address
    }

    /// Whether health checks found the worker lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Upstreams {
    /// Starts the health checks and looks names up. Needs a tokio runtime.
    pub fn start(config: UpstreamConfig) -> Self {
        Self::start_with(config, |name| names::resolved(name, random::seed()))
    }

    /// As [`start`](Self::start), with another source of the addresses of each name.
    pub fn start_with(
        mut config: UpstreamConfig,
        addresses: impl Fn(DnsName) -> mpsc::Receiver<Change>,
    ) -> Self {
        if config.workers.iter().any(WorkerUrl::is_tls) {
            config.tls.get_or_insert_with(Tls::of_system);
        }
        let (mut links, mut named) = (Vec::new(), Vec::new());
        for url in &config.workers {
            let first = links.len();
            let places = if url.is_name() { MAX_ADDRESSES } else { 1 };
            links.extend((0..places).map(|_| Link::new(url, config.tls.as_ref())));
            if url.is_name() {
                named.push(Named { url: url.clone(), places: first as u32..links.len() as u32 });
            }
        }
        let names = links.iter().map(|link| name_hash(&link.name()));
        let mut fleet = Fleet::new(names, config.router.policy, config.router.recovery.max_index_bytes);
        named.iter().flat_map(|named| named.places.clone()).for_each(|at| fleet.vanished(at));
        let shared = Arc::new(Shared {
            keys: ApiKeys::new(&config.router.api_keys),
            drain: Drain::default(),
            metrics: UpstreamMetrics::new(),
            seed: random::seed(),
            core: Mutex::new(Core { fleet, rng: StdRng::seed_from_u64(random::seed()) }),
            links,
            config,
        });
        health::start(&shared);
        for named in named {
            let (host, port) = named.url.endpoint();
            let name = DnsName { host: host.to_owned(), port, interval: dns::INTERVAL };
            names::follow(&shared, named, addresses(name));
        }
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
    pub fn appeared(&self, named: &Named, address: SocketAddr) -> bool {
        let name: Arc<str> = named.url.at(address).into();
        let place = self.fleet(|fleet| {
            let place = named.places.clone().find(|at| fleet.is_free(*at))?;
            let link = self.links.get(place as usize)?;
            // Before a request can be placed there.
            *link.spot() = Spot { name: name.clone(), address: Some(address) };
            link.lost.store(false, Ordering::Relaxed);
            link.pool.move_to(Some(address));
            fleet.appeared(place, name_hash(&name));
            Some(link)
        });
        place.inspect(|link| link.appeared.notify_one()).is_some()
    }

    /// Frees the place of an address that its name no longer has.
    pub fn vanished(&self, named: &Named, address: SocketAddr) {
        let place = named
            .places
            .clone()
            .find(|at| self.links.get(*at as usize).is_some_and(|link| link.address() == Some(address)));
        let Some((place, link)) = place.and_then(|at| Some((at, self.links.get(at as usize)?))) else {
            return;
        };
        self.fleet(|fleet| fleet.vanished(place));
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
        let Core { fleet, rng } = &mut *self.core();
        let placement = fleet.choose(clock::now(), &call.prompt, tried, rng)?;
        if let Some(receipts) = &call.receipts {
            let name = |worker: u32| self.links.get(worker as usize).map(Link::name);
            receipts.add(fleet.explain(&call.prompt, &placement, name));
        }
        Ok(Seat { shared: self.clone(), placement, outcome: Outcome::Neutral, began: false })
    }

    fn may_wait(&self, why: Unavailable) -> bool {
        why == Unavailable::Full || self.fleet(|fleet| fleet.was_up())
    }

    /// What a client hears when there is no worker for it.
    pub fn refusal(&self, why: Unavailable) -> Refusal {
        let mut states = self.fleet(|fleet| fleet.states(clock::now()));
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

fn name_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
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
