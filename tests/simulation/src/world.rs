//! One life: everybody who takes part, and who watches over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::etcd::Etcd;
use crate::network::{Host, Network};
use crate::plan::Plan;
use crate::process::Process;
use crate::random::Random;
use crate::report::Log;
use crate::router::RouterLife;
use crate::worker::WorkerLife;
use crate::{router, worker};

/// Everything of one life.
pub struct World {
    /// What was decided before.
    pub plan: Plan,
    /// What happens.
    pub log: Arc<Log>,
    /// The wires.
    pub network: Arc<Network>,
    /// The store of who belongs.
    pub etcd: Arc<Etcd>,
    /// Draws of what happens to processes.
    pub random: Random,
    people: Mutex<People>,
    /// Lives begun so far: each worker's life has another epoch.
    lives: AtomicU64,
}

#[derive(Default)]
struct People {
    workers: BTreeMap<Host, Arc<WorkerLife>>,
    routers: BTreeMap<Host, Arc<RouterLife>>,
    downtimes: BTreeMap<Host, Downtime>,
    /// Their next life has other weights.
    other_weights: BTreeSet<Host>,
}

/// What follows a process's end.
#[derive(Debug, Clone, Copy)]
pub struct Downtime {
    /// Until it is started anew.
    pub lasts: Duration,
    /// Its machine has lost power: its peers are not told.
    pub dark: bool,
}

impl Default for Downtime {
    fn default() -> Self {
        Self { lasts: Duration::from_millis(500), dark: false }
    }
}

impl World {
    /// Everybody is off.
    pub fn new(plan: Plan, log: Arc<Log>) -> Arc<Self> {
        let random = |name| Random::new(plan.seed, name);
        let network = Network::new(plan.network.clone(), random("network"), log.clone());
        let etcd = Etcd::new(network.clone(), log.clone());
        let random = random("processes");
        let (people, lives) = Default::default();
        Arc::new(Self { plan, log, network, etcd, random, people, lives })
    }

    /// Starts everybody, and starts them again whenever they end.
    pub fn start(self: &Arc<Self>) {
        self.etcd.start();
        for &host in &self.plan.workers {
            tokio::spawn(self.clone().supervise_worker(host));
        }
        for &host in &self.plan.routers {
            tokio::spawn(self.clone().supervise_router(host));
        }
    }

    fn people(&self) -> MutexGuard<'_, People> {
        self.people.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the worker at `host`, if it runs.
    pub fn worker(&self, host: Host) -> Option<Arc<WorkerLife>> {
        self.people().workers.get(host).cloned()
    }

    /// The life of the router at `host`, if it runs.
    pub fn router(&self, host: Host) -> Option<Arc<RouterLife>> {
        self.people().routers.get(host).cloned()
    }

    /// The process at `host`, if it runs.
    pub fn process(&self, host: Host) -> Option<Process> {
        let people = self.people();
        let worker = people.workers.get(host).map(|life| life.process.clone());
        worker.or_else(|| people.routers.get(host).map(|life| life.process.clone()))
    }

    /// What is to follow the next end of the process at `host`.
    pub fn plan_downtime(&self, host: Host, downtime: Downtime) {
        self.people().downtimes.insert(host, downtime);
    }

    /// The next life of the worker at `host` has other weights.
    pub fn swap_weights(&self, host: Host) {
        self.people().other_weights.insert(host);
    }

    /// All lives that begin from now on have the right weights.
    pub fn right_weights(&self) {
        self.people().other_weights.clear();
    }

    /// Whether the life that begins now at `host` has other weights.
    pub fn takes_other_weights(&self, host: Host) -> bool {
        self.people().other_weights.remove(host)
    }

    /// A process for a new life.
    pub fn new_process(&self) -> (Process, u64) {
        let life = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        let random = Random::new(self.plan.seed ^ life.rotate_left(32), "process");
        (Process::new(random, self.plan.put_off), life)
    }

    async fn supervise_worker(self: Arc<Self>, host: Host) {
        loop {
            let life = worker::start(&self, host);
            self.people().workers.insert(host, life.clone());
            life.process.ended().await;
            self.people().workers.remove(host);
            self.bury(host, &life.process).await;
        }
    }

    async fn supervise_router(self: Arc<Self>, host: Host) {
        loop {
            let life = router::start(&self, host);
            self.people().routers.insert(host, life.clone());
            life.process.ended().await;
            self.people().routers.remove(host);
            life.bury();
            self.bury(host, &life.process).await;
        }
    }

    async fn bury(self: &Arc<Self>, host: Host, process: &Process) {
        self.log.disturbed();
        let Downtime { lasts, dark } = self.people().downtimes.remove(host).unwrap_or_default();
        self.log.say(host, format_args!("has ended{}", if dark { ", and its machine with it" } else { "" }));
        self.network.process_ended(host, process, dark);
        tokio::time::sleep(lasts).await;
        if dark {
            self.network.lit(host);
        }
    }
}
