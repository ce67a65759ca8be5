//! A worker's process: the product's service and engine over a simulated device, registered in the simulated etcd.

use std::sync::Arc;

use skein_node::discovery::etcd::{LEASE_TTL, Record, Registration, register};
use skein_worker::backend::fake::FakeOptions;
use skein_worker::config::WorkerConfig;
use skein_worker::engine::{Engine, Turn};
use skein_worker::service::{LoadedBackend, WorkerService, detached};

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
}

/// Starts a worker at `host`.
pub fn start(world: &Arc<World>, host: Host) -> Arc<WorkerLife> {
    let (process, epoch) = world.new_process();
    let device = Arc::new(Device::default());
    let (service, engine) = build(host, &world.plan, &world.plan.worker, world.plan.kv_blocks, epoch, &device, &world.log);
    world.log.say(host, format_args!("starts as worker, epoch {epoch}"));
    let served = Served { worker: Some(Arc::new(Direct(service.clone()))), front: None };
    world.network.listen(host, &process, served);
    process.spawn(work(process.clone(), engine, device.clone(), host, world.log.clone()));
    process.spawn(stay_registered(world.etcd.link(host), host, epoch));
    Arc::new(WorkerLife { host, process, device, service })
}

/// A worker that nobody turns yet.
pub fn build(
    host: Host,
    plan: &Plan,
    config: &WorkerConfig,
    kv_blocks: u32,
    epoch: u64,
    device: &Arc<Device>,
    log: &Arc<Log>,
) -> (WorkerService, Engine) {
    let limits = config.scheduler.clone();
    let options =
        FakeOptions { vocab_size: VOCAB_SIZE, block_size: limits.block_size, kv_blocks, ..FakeOptions::default() };
    let backend = SimulatedBackend::new(host, options, plan.cost, limits, device.clone(), log.clone());
    let loaded = LoadedBackend {
        backend: Box::new(backend),
        vocab_size: VOCAB_SIZE,
        model_len: 1 << 20,
        eos_token_ids: vec![0],
        name: "fake",
        resume_exact: true,
        fingerprint: 7,
        cost: Default::default(),
        gaps: None,
    };
    detached(config, loaded, epoch).expect("the plan's settings can work")
}

async fn work(process: Process, mut engine: Engine, device: Arc<Device>, host: Host, log: Arc<Log>) {
    loop {
        device.unstuck().await;
        match engine.turn() {
            Ok(Turn::Worked) => tokio::time::sleep(device.take_time()).await,
            Ok(Turn::Idle) => engine.wait().await,
            Ok(Turn::Ended) => break,
            Err(error) => {
                log.say(host, format_args!("its engine ends: {error}"));
                break;
            }
        }
    }
    // What it said before its end gets out.
    tokio::task::yield_now().await;
    process.kill();
}

async fn stay_registered(etcd: Link, host: Host, epoch: u64) {
    let record = Record {
        id: host.to_owned(),
        address: address_of(host),
        model: MODEL.to_owned(),
        epoch: Some(epoch),
        version: String::new(),
        leaving: false,
    };
    let registration = Registration { cluster: MODEL.to_owned(), record, ttl: LEASE_TTL, seed: epoch };
    register(&etcd, registration, std::future::pending()).await;
}
