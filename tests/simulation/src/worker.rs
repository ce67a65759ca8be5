//! A worker's process: the product's service and engine over a simulated device, registered in the simulated
//! etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use skein_node::discovery::etcd::{LEASE_TTL, Record, Registration, register};
use skein_proto::version::Version;
use skein_proto::worker::v1 as wire;
use skein_router::links::transport::Transport;
use skein_worker::adapters::Adapters;
use skein_worker::backend::KvBlocks;
use skein_worker::backend::fake::FakeOptions;
use skein_worker::config::WorkerConfig;
use skein_worker::engine::{Engine, Turn};
use skein_worker::load::LoadedBackend;
use skein_worker::service::{WorkerService, without_io};
use tokio::sync::Notify;
use wire::worker_event::Event;

use crate::device::{Device, SimulatedBackend};
use crate::etcd::Link;
use crate::model::{MODEL, VOCAB_SIZE};
use crate::names::address_of;
use crate::network::{Direct, Host};
use crate::plan::Plan;
use crate::process::Process;
use crate::report::Log;
use crate::served::Served;
use crate::world::World;

/// Versions of the model, by the weights.
pub const USUAL_VERSION: Version = Version(7);
/// Version of workers with other weights.
pub const OTHER_VERSION: Version = Version(8);
/// How long a server that shuts down waits for connections to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// One run of a worker's process.
pub struct WorkerRun {
    /// Host that it runs on.
    pub host: Host,
    /// The process that owns its tasks.
    pub process: Process,
    /// The simulated device.
    pub device: Arc<Device>,
    /// The worker's gRPC service.
    pub service: WorkerService,
    /// Notified when the worker receives SIGTERM.
    pub told_to_end: Arc<Notify>,
    /// Whether it serves a different model under the same name.
    pub other_weights: bool,
    /// Whether an idle engine must be empty.
    pub at_rest: Arc<AtomicBool>,
}

impl WorkerRun {
    /// The load that the worker reports.
    pub(crate) async fn load(&self) -> Option<wire::Load> {
        let worker = Direct(self.service.clone());
        let request = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 0 };
        let mut events = worker.watch(request).await.ok()?;
        loop {
            if let Some(Event::Load(load)) = events.next().await?.ok()?.event {
                return Some(load);
            }
        }
    }
}

/// Starts a worker at `host`.
pub fn start(world: &Arc<World>, host: Host) -> Arc<WorkerRun> {
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
    let served = Served { worker: Some(service.clone()), front: None };
    world.network.listen(host, &process, served);
    let (told_to_end, at_rest) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let run = WorkerRun { host, process, device, service, told_to_end, other_weights, at_rest };
    let turning = Turning {
        engine,
        device: run.device.clone(),
        at_rest: run.at_rest.clone(),
        host,
        log: world.log.clone(),
    };
    run.process.spawn(turning.work(run.process.clone()));
    run.process.spawn(serve(world.clone(), host, epoch, run.service.clone(), run.told_to_end.clone()));
    Arc::new(run)
}

/// Settings of a worker to build.
pub struct Make<'a> {
    /// Host that it runs on.
    pub host: Host,
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Settings of the worker itself.
    pub config: &'a WorkerConfig,
    /// Number of KV blocks.
    pub kv_blocks: KvBlocks,
    /// Whether it serves a different model under the same name.
    pub other_weights: bool,
}

/// A worker with its engine, which the caller must drive.
pub fn build(make: &Make<'_>, epoch: u64, device: &Arc<Device>, log: &Arc<Log>) -> (WorkerService, Engine) {
    let &Make { host, plan, config, kv_blocks, other_weights } = make;
    // The simulated processes have no other clock that they share.
    let config = &WorkerConfig { serving_since_ms: Some(epoch), ..config.clone() };
    let limits = config.scheduler.clone();
    let (block_size, cost) = (limits.block_size, plan.cost);
    let habits = plan.habits.clone();
    let options = FakeOptions {
        vocab_size: VOCAB_SIZE,
        block_size,
        kv_blocks: kv_blocks.blocks,
        window_blocks: kv_blocks.window,
        state_slots: kv_blocks.states,
        cost,
        habits,
        ..FakeOptions::default()
    };
    let backend = SimulatedBackend::new(host, options, limits, other_weights, device.clone(), log.clone());
    let adapters = || Adapters::new(&config.adapters, None).expect("there is no model that they must fit");
    let loaded = LoadedBackend {
        adapters: config.adapters.is_enabled.then(adapters),
        eos_token_ids: vec![0],
        fingerprint: if other_weights { OTHER_VERSION.0 } else { USUAL_VERSION.0 },
        ..LoadedBackend::fake(backend, VOCAB_SIZE, 1 << 20)
    };
    without_io(config, loaded, epoch).expect("the plan's settings can work")
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
                // An engine that has ended no longer frees anything.
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
        // Lets the last messages be sent.
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

/// The process apart from its engine, like the worker command: registered until SIGTERM, then drained.
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
