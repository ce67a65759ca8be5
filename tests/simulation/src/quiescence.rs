//! When all clients are done and the faults are over, nothing may be left: no request at a router, no
//! sequence in a worker, no block in use.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_router::admission::Running;

use crate::probe;
use crate::router::RouterRun;
use crate::worker::WorkerRun;
use crate::world::World;

/// Longer than any limit on what may outlive a request.
const EVERYTHING_ENDS_WITHIN: Duration = Duration::from_secs(20);
/// A worker reports its load at least this often.
const STATE_WITHIN: Duration = Duration::from_secs(5);

/// Waits until everything should have ended, and checks that it has.
pub async fn check(world: &Arc<World>) {
    tokio::time::sleep(EVERYTHING_ENDS_WITHIN).await;
    probe::check(world).await;
    for &host in &world.plan.routers {
        match world.router(host) {
            Some(run) => check_router(world, &run),
            None => world.log.violated(host, format_args!("it is not running")),
        }
    }
    for &host in &world.plan.workers {
        match world.worker(host) {
            Some(run) => check_worker(world, &run).await,
            None => world.log.violated(host, format_args!("it is not running")),
        }
    }
}

fn check_router(world: &World, run: &RouterRun) {
    let Some(cluster) = run.cluster() else { return };
    let snapshot = cluster.snapshot();
    let log = &world.log;
    if snapshot.running != Running::default() {
        log.violated(run.host, format_args!("still admits {:?}", snapshot.running));
    }
    if snapshot.workers.len() != world.plan.workers.len() {
        log.violated(run.host, format_args!("knows {} workers", snapshot.workers.len()));
    }
    for worker in snapshot.workers {
        if !worker.is_ready() {
            log.violated(run.host, format_args!("{} is {}", worker.id, worker.state()));
        }
        if worker.load.sequences != 0 || worker.load.queued_uncached_tokens != 0 {
            log.violated(run.host, format_args!("{} still has load {:?}", worker.id, worker.load));
        }
    }
}

async fn check_worker(world: &World, run: &WorkerRun) {
    // To report its load the worker takes a turn, which audits the engine.
    run.at_rest.store(true, Ordering::Relaxed);
    let wait = tokio::time::timeout(STATE_WITHIN, run.load());
    let Ok(Some(load)) = wait.await else {
        return world.log.violated(run.host, format_args!("does not tell its state"));
    };
    let all = world.plan.kv_blocks.blocks;
    if (load.running, load.waiting, load.free_blocks) != (0, 0, all) {
        world.log.violated(run.host, format_args!("is idle with {load:?}; it has {all} blocks"));
    }
}
