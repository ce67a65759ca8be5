//! A worker's process: the product's service and engine over a simulated device, registered in the simulated etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skein_node::discovery::etcd::{LEASE_TTL, Record, Registration, register};
use skein_worker::backend::fake::FakeOptions;
use skein_worker::config::WorkerConfig;
use skein_worker::engine::{Engine, Turn};
use skein_worker::service::{LoadedBackend, WorkerService, detached};
use tokio::sync::Notify;

use crate::device::{Device, SimulatedBackend};
use crate::etcd::Link;
use crate::names::address_of;
use crate::network::{Direct, Host};
use crate::plan::{MODEL, Plan};
use crate::process::Process;
use crate::report::Log;
use crate::served::Served;
use crate::workload::VOCAB_SIZE;
use crate::world::World;

/// What a server waits at its end for connections to close by themselves.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// One life of a worker.
pub struct WorkerLife {
    /// Which machine.
    pub host: Host,
    /// Its tasks.
    pub process: Process,
    /// What it computes on.
    pub device: Arc<Device>,
    /// What it serves.
    pub service: WorkerService,
    /// SIGTERM.
    pub told_to_end: Arc<Notify>,
    /// Its model is another one of the same name.
    pub other_weights: bool,
    /// Nothing may be left in its engine when that is idle.
    pub at_rest: Arc<AtomicBool>,
}

/// Starts a worker at `host`.
pub fn start(world: &Arc<World>, host: Host) -> Arc<WorkerLife> {
    let (process, epoch) = world.new_process();
    let device = Arc::new(Device::default());
    let other_weights = world.takes_other_weights(host);
    let make = Make {
        host,
        plan: &world.plan,
        config: &world.plan.worker,
        kv_blocks: world.plan.kv_blocks,
        other_weights,
    };
    let (service, engine) = build(&make, epoch, &device, &world.log);
    world.log.say(host, format_args!("starts as worker, epoch {epoch}"));
    let served = Served { worker: Some(Arc::new(Direct(service.clone()))), front: None };
    world.network.listen(host, &process, served);
    let (told_to_end, at_rest) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let life = WorkerLife { host, process, device, service, told_to_end, other_weights, at_rest };
    let turning = Turning {
        engine,
        device: life.device.clone(),
        at_rest: life.at_rest.clone(),
        host,
        log: world.log.clone(),
    };
    life.process.spawn(turning.work(life.process.clone()));
    life.process.spawn(serve(world.clone(), host, epoch, life.service.clone(), life.told_to_end.clone()));
    Arc::new(life)
}

/// What kind of worker.
pub struct Make<'a> {
    /// Where.
    pub host: Host,
    /// Of which life.
    pub plan: &'a Plan,
    /// Its settings.
    pub config: &'a WorkerConfig,
    /// Its blocks.
    pub kv_blocks: u32,
    /// Its model is another one of the same name.
    pub other_weights: bool,
}

/// A worker that nobody turns yet.
pub fn build(make: &Make<'_>, epoch: u64, device: &Arc<Device>, log: &Arc<Log>) -> (WorkerService, Engine) {
    let &Make { host, plan, config, kv_blocks, other_weights } = make;
    let limits = config.scheduler.clone();
    let (block_size, cost) = (limits.block_size, plan.cost);
    let options =
        FakeOptions { vocab_size: VOCAB_SIZE, block_size, kv_blocks, cost, ..FakeOptions::default() };
    let backend = SimulatedBackend::new(host, options, limits, other_weights, device.clone(), log.clone());
    let loaded = LoadedBackend {
        eos_token_ids: vec![0],
        fingerprint: if other_weights { 8 } else { 7 },
        ..LoadedBackend::fake(backend, VOCAB_SIZE, 1 << 20)
    };
    detached(config, loaded, epoch).expect("the plan's settings can work")
}

struct Turning {
    engine: Engine,
    device: Arc<Device>,
    at_rest: Arc<AtomicBool>,
    host: Host,
    log: Arc<Log>,
}

impl Turning {
    async fn work(mut self, process: Process) {
        loop {
            self.device.unstuck().await;
            let turn = self.engine.turn();
            match &turn {
                Ok(Turn::Worked) => self.audit(false),
                Ok(Turn::Idle) => self.audit(true),
                // An engine that has ended lets go of nothing any more.
                _ => {}
            }
            match turn {
                Ok(Turn::Worked) => tokio::time::sleep(self.device.take_time()).await,
                Ok(Turn::Idle) => self.engine.wait().await,
                Ok(Turn::Ended) => break,
                Err(error) => {
                    self.log.disturbed();
                    self.log.say(self.host, format_args!("its engine ends: {error}"));
                    break;
                }
            }
        }
        // What it said before its end gets out.
        tokio::time::sleep(CLOSE_WITHIN).await;
        process.kill();
    }

    fn audit(&self, idle: bool) {
        let at_rest = idle && self.at_rest.load(Ordering::Relaxed);
        let found = if at_rest { self.engine.audit_at_rest() } else { self.engine.audit() };
        if let Err(broken) = found {
            self.log.violated(self.host, format_args!("{broken}; {:?}", self.engine.counts()));
        }
    }
}

/// The life of the process beside its engine, as the command has it: registered until it is told to end, then drained.
async fn serve(world: Arc<World>, host: Host, epoch: u64, service: WorkerService, told_to_end: Arc<Notify>) {
    stay_registered(world.etcd.link(host), host, epoch, told_to_end.notified()).await;
    world.log.say(host, format_args!("drains"));
    service.drain(world.plan.worker.drain_grace, world.plan.worker.shutdown_timeout).await;
    world.network.stop_listening(host);
    tokio::time::sleep(CLOSE_WITHIN).await;
    world.log.say(host, format_args!("is drained"));
    world.process(host).inspect(Process::kill);
}

async fn stay_registered(etcd: Link, host: Host, epoch: u64, told_to_end: impl Future<Output = ()>) {
    let record = Record {
        id: host.to_owned(),
        address: address_of(host),
        model: MODEL.to_owned(),
        epoch: Some(epoch),
        version: String::new(),
        leaving: false,
    };
    let registration = Registration { cluster: MODEL.to_owned(), record, ttl: LEASE_TTL, seed: epoch };
    register(&etcd, registration, told_to_end).await;
}
