//! `kill -9` on one of two routers at random times. Clients reconnect to the other with the id of the last
//! event they saw and continue from there.

use std::net::SocketAddr;

use super::{Plan, addresses};
use crate::load::{Tally, Target};
use crate::nodes::Front;
use crate::report::Report;
use crate::seeded::SeededRng;

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let workers = plan.start_workers().await;
    let mut routers = two_routers(plan, &addresses(&workers)).await;
    let corpus = plan.record(&routers[0]).await;
    let urls = routers.iter().map(|router| router.url.clone()).collect();
    let load = plan.load(&corpus, Target { urls, reconnects: true }, "router");
    let kills = kill_in_turn(plan, &mut routers, || load.reconnects() > 0).await;
    let tally = load.finish().await;

    let mut report = Report::new(format!("router kill -9, clients reconnect, seed {}", plan.seed));
    report.say("kills", format!("{kills} of {} routers", routers.len()));
    say_reconnects(&mut report, plan, &tally);
    report
}

/// Two routers over the same workers.
pub(super) async fn two_routers(plan: &Plan, workers: &[SocketAddr]) -> Vec<Front> {
    let extras = plan.front_extras();
    let spawn = || Front::spawn_router(&plan.binary, workers, &extras);
    let mut routers = vec![spawn(), spawn()];
    for router in &mut routers {
        router.wait_ready().await;
    }
    routers
}

/// Kills random routers at random times; each is back before the next kill. Returns the number of kills.
pub(super) async fn kill_in_turn(plan: &Plan, routers: &mut [Front], has_hit: impl Fn() -> bool) -> u32 {
    let mut rng = SeededRng::new(plan.seed ^ 0x726f_7574);
    let mut kills = 0;
    while plan.strikes_again(kills, &has_hit) {
        kills += 1;
        tokio::time::sleep(rng.between(plan.pause.0, plan.pause.1)).await;
        let victim = rng.below(routers.len());
        routers[victim].process.restart();
        routers[victim].wait_ready().await;
    }
    kills
}

fn say_reconnects(report: &mut Report, plan: &Plan, tally: &Tally) {
    let hit: Vec<_> = tally.ended.iter().filter(|ended| ended.reconnects > 0).collect();
    let times: u32 = hit.iter().map(|ended| ended.reconnects).sum();
    report.say("streams reconnected", format!("{}, {times} times", hit.len()));
    report.streams(tally);
    report.gaps(
        "longest gap, reconnected",
        hit.iter().map(|ended| ended.longest_gap).collect(),
        plan.gap_p99,
    );
    report.require(!hit.is_empty(), || "no kill hit a stream, so this proves nothing".into());
}
