//! One run: all members and the supervisor that restarts them.

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
use crate::router::RouterRun;
use crate::worker::WorkerRun;
use crate::{router, worker};

/// Everything in one run.
pub struct World {
    /// The plan drawn from the seed.
    pub plan: Plan,
    /// The log of the run.
    pub log: Arc<Log>,
    /// The simulated network.
    pub network: Arc<Network>,
    /// The simulated etcd.
    pub etcd: Arc<Etcd>,
    /// Randomness for processes.
    pub random: Random,
    members: Mutex<Members>,
    /// Number of processes started; a worker's epoch is its number.
    started: AtomicU64,
}

#[derive(Default)]
struct Members {
    workers: BTreeMap<Host, Arc<WorkerRun>>,
    routers: BTreeMap<Host, Arc<RouterRun>>,
    downtimes: BTreeMap<Host, Downtime>,
    /// Hosts whose next run has other weights.
    other_weights: BTreeSet<Host>,
}

/// What follows the end of a process.
#[derive(Debug, Clone, Copy)]
pub struct Downtime {
    /// Time until it is started again.
    pub lasts: Duration,
    /// Whether its machine lost power, so that its peers are not told.
    pub dark: bool,
}

impl Default for Downtime {
    fn default() -> Self {
        Self { lasts: Duration::from_millis(500), dark: false }
    }
}

impl World {
    /// A world in which nothing runs yet.
    pub fn new(plan: Plan, log: Arc<Log>) -> Arc<Self> {
        let random = |name| Random::new(plan.seed, name);
        let network = Network::new(plan.network.clone(), random("network"), log.clone());
        let etcd = Etcd::new(network.clone(), log.clone());
        let random = random("processes");
        let (members, started) = Default::default();
        Arc::new(Self { plan, log, network, etcd, random, members, started })
    }

    /// Starts all processes, and restarts those that end.
    pub fn start(self: &Arc<Self>) {
        self.etcd.start();
        for &host in &self.plan.workers {
            tokio::spawn(self.clone().supervise_worker(host));
        }
        for &host in &self.plan.routers {
            tokio::spawn(self.clone().supervise_router(host));
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker at `host`, if it runs.
    pub fn worker(&self, host: Host) -> Option<Arc<WorkerRun>> {
        self.members().workers.get(host).cloned()
    }

    /// The router at `host`, if it runs.
    pub fn router(&self, host: Host) -> Option<Arc<RouterRun>> {
        self.members().routers.get(host).cloned()
    }

    /// The process at `host`, if it runs.
    pub fn process(&self, host: Host) -> Option<Process> {
        let members = self.members();
        let worker = members.workers.get(host).map(|run| run.process.clone());
        worker.or_else(|| members.routers.get(host).map(|run| run.process.clone()))
    }

    /// Sets what follows the next end of the process at `host`.
    pub fn plan_downtime(&self, host: Host, downtime: Downtime) {
        self.members().downtimes.insert(host, downtime);
    }

    /// Gives the next run of the worker at `host` other weights.
    pub fn swap_weights(&self, host: Host) {
        self.members().other_weights.insert(host);
    }

    /// Gives all later runs the right weights.
    pub fn right_weights(&self) {
        self.members().other_weights.clear();
    }

    /// Whether the run that starts now at `host` has other weights.
    pub fn takes_other_weights(&self, host: Host) -> bool {
        self.members().other_weights.remove(host)
    }

    /// A new process and its number.
    pub fn new_process(&self) -> (Process, u64) {
        let run = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let random = Random::new(self.plan.seed ^ run.rotate_left(32), "process");
        (Process::new(random, self.plan.put_off), run)
    }

    async fn supervise_worker(self: Arc<Self>, host: Host) {
        loop {
            let run = worker::start(&self, host);
            self.members().workers.insert(host, run.clone());
            run.process.ended().await;
            self.members().workers.remove(host);
            self.bury(host, &run.process).await;
        }
    }

    async fn supervise_router(self: Arc<Self>, host: Host) {
        loop {
            let run = router::start(&self, host);
            self.members().routers.insert(host, run.clone());
            run.process.ended().await;
            self.members().routers.remove(host);
            run.bury();
            self.bury(host, &run.process).await;
        }
    }

    async fn bury(self: &Arc<Self>, host: Host, process: &Process) {
        self.log.disturbed();
        let Downtime { lasts, dark } = self.members().downtimes.remove(host).unwrap_or_default();
        self.log.say(host, format_args!("has ended{}", if dark { ", and its machine with it" } else { "" }));
        self.network.process_ended(host, process, dark);
        tokio::time::sleep(lasts).await;
        if dark {
            self.network.lit(host);
        }
    }
}
