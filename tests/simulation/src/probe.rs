//! Checks that a cancelled request's blocks are freed as soon as the worker can know of it, not after its
//! linger time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use skein_proto::sampling::SamplingParams;
use skein_router::request::TokenRequest;

use crate::client;
use crate::model::MODEL;
use crate::names::CLIENT;
use crate::network::Host;
use crate::process::Process;
use crate::random::Random;
use crate::served::Ask;
use crate::world::World;

/// Steps are slowed down to at least this long, so that the request would run for a long time.
const STEP: Duration = Duration::from_millis(200);
/// Within this time the worker has heard that the client left, and has finished its current step.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// Limit for the first token on an idle cluster.
const FIRST_TOKEN_WITHIN: Duration = Duration::from_secs(60);

/// Sends a request to each router and cancels it.
pub async fn check(world: &Arc<World>) {
    let fixed = world.plan.cost.fixed.as_millis().max(1) as u32;
    let slowness = STEP.as_millis() as u32 / fixed + 1;
    set_slowness(world, slowness);
    for &router in &world.plan.routers {
        let asked = tokio::time::timeout(FIRST_TOKEN_WITHIN, ask_and_leave(world, router)).await;
        if asked.is_err() {
            world.log.violated(router, format_args!("no first token on an idle cluster"));
        }
        tokio::time::sleep(HEARD_WITHIN).await;
        for &host in &world.plan.workers {
            let Some(run) = world.worker(host) else { continue };
            let Some(load) = run.load().await else { continue };
            if load.running + load.waiting > 0 {
                world.log.violated(host, format_args!("still computes a cancelled request: {load:?}"));
            }
        }
    }
    set_slowness(world, 1);
}

fn set_slowness(world: &World, slowness: u32) {
    for &host in &world.plan.workers {
        world.worker(host).inspect(|run| run.device.slowness.store(slowness, Ordering::Relaxed));
    }
}

async fn ask_and_leave(world: &Arc<World>, router: Host) {
    let process = Process::new(Random::new(0, "probe"), 0);
    let Ok(connection) = world.network.connect(CLIENT, &process, router).await else {
        return world.log.violated(router, format_args!("cannot be reached"));
    };
    let ask = Ask { request: long_request(router), stop_after: vec![None], has: vec![0] };
    let start = move |served| async move { Ok(client::answers(served, ask).await) }.boxed();
    let Ok(mut messages) = world.network.call(connection, Box::new(start)).await else {
        return world.log.violated(router, format_args!("does not answer"));
    };
    match messages.next().await {
        Some(Ok(Ok(_))) => world.log.say(router, format_args!("the probe has its first token and cancels")),
        Some(Ok(Err(refusal))) => world.log.violated(router, format_args!("refuses a probe: {refusal}")),
        _ => world.log.violated(router, format_args!("gives no token")),
    }
}

/// A request with the longest output that the model allows.
fn long_request(router: Host) -> TokenRequest {
    let sampling = SamplingParams { max_tokens: 1000, ignore_eos: true, ..SamplingParams::default() };
    TokenRequest::new(format!("probe-{router}"), MODEL, [1, 2, 3], sampling)
}
