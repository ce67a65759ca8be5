//! `kill -9` on one of two routers behind a gateway. Its clients do not reconnect: a broken connection is a
//! failure.

use super::router_kill::{kill_in_turn, two_routers};
use super::{Plan, addresses};
use crate::load::Target;
use crate::nodes::Front;
use crate::report::{Report, moves};

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let workers = plan.start_workers().await;
    let mut routers = two_routers(plan, &addresses(&workers)).await;
    let behind: Vec<_> = routers.iter().map(|router| router.address).collect();
    let gateway = Front::gateway(&plan.binary, &behind, &plan.front_extras()).await;
    let corpus = plan.record(&gateway).await;
    let load = plan.load(&corpus, Target::plain(&gateway.url), "gateway");
    let has_hit = || !moves(&gateway.process.log()).is_empty();
    let kills = kill_in_turn(plan, &mut routers, has_hit).await;
    let tally = load.finish().await;

    let mut report =
        Report::new(format!("router kill -9 behind a gateway, plain clients, seed {}", plan.seed));
    report.say("kills", format!("{kills} of {} routers", routers.len()));
    report.streams(&tally);
    // To a gateway a router is one large worker, and it logs moves with the same message.
    report.must_have_moved(&moves(&gateway.process.log()), &tally, plan);
    report
}
