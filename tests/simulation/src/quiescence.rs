//! When all clients are gone and nothing is disturbed, nothing is left: no request in a router's books, no sequence at
//! a worker, no block held.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use skein_proto::worker::v1 as wire;
use skein_router::admission::Running;
use skein_router::links::transport::Transport;
use wire::worker_event::Event;

use crate::network::Direct;
use crate::probe;
use crate::router::RouterLife;
use crate::worker::WorkerLife;
use crate::world::World;

/// Every bound on what outlives a request is shorter than this.
const EVERYTHING_ENDS_WITHIN: Duration = Duration::from_secs(20);
/// A worker tells its state at least this often.
const STATE_WITHIN: Duration = Duration::from_secs(5);

/// Waits until everything should have ended, and looks whether it has.
pub async fn check(world: &Arc<World>) {
    tokio::time::sleep(EVERYTHING_ENDS_WITHIN).await;
    probe::check(world).await;
    for &host in &world.plan.routers {
        match world.router(host) {
            Some(life) => check_router(world, &life),
            None => world.log.violated(host, format_args!("it is not running")),
        }
    }
    for &host in &world.plan.workers {
        match world.worker(host) {
            Some(life) => check_worker(world, &life).await,
            None => world.log.violated(host, format_args!("it is not running")),
        }
    }
}

fn check_router(world: &World, life: &RouterLife) {
    let Some(cluster) = life.cluster() else { return };
    let snapshot = cluster.snapshot();
    let log = &world.log;
    if snapshot.running != Running::default() {
        log.violated(life.host, format_args!("still lets in {:?}", snapshot.running));
    }
    if snapshot.workers.len() != world.plan.workers.len() {
        log.violated(life.host, format_args!("knows {} workers", snapshot.workers.len()));
    }
    for worker in snapshot.workers {
        if !worker.is_ready() {
            log.violated(life.host, format_args!("{} is {}", worker.id, worker.state()));
        }
        if worker.load.sequences != 0 || worker.load.queued_uncached_tokens != 0 {
            log.violated(life.host, format_args!("{} still carries {:?}", worker.id, worker.load));
        }
    }
}

async fn check_worker(world: &World, life: &WorkerLife) {
    // To tell its state it takes a turn, and looks.
    life.at_rest.store(true, Ordering::Relaxed);
    let wait = tokio::time::timeout(STATE_WITHIN, load(life));
    let Ok(Some(load)) = wait.await else {
        return world.log.violated(life.host, format_args!("does not tell its state"));
    };
    let all = world.plan.kv_blocks;
    if (load.running, load.waiting, load.free_blocks) != (0, 0, all) {
        world.log.violated(life.host, format_args!("is idle with {load:?}; it has {all} blocks"));
    }
}

/// What a worker says of itself.
pub(crate) async fn load(life: &WorkerLife) -> Option<wire::Load> {
    let worker = Direct(life.service.clone());
    let request = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 0 };
    let mut events = worker.watch(request).await.ok()?;
    loop {
        if let Some(Event::Load(load)) = events.next().await?.ok()?.event {
            return Some(load);
        }
    }
}
