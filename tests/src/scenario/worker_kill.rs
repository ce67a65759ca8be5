//! `kill -9` on workers at random times under steady load. Each is restarted at once.

use std::time::Duration;

use super::{Plan, addresses, wait_until};
use crate::load::Target;
use crate::nodes::{Front, Worker};
use crate::report::{Report, moves};
use crate::seeded::SeededRng;

/// Workers that must be up before the next kill, so that streams can move to one.
const MUST_STAND: usize = 2;
/// How long a killed worker may take to be up again.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "kill");
    let mut rng = SeededRng::new(plan.seed ^ 0x6b69_6c6c);
    let mut rounds = 0;
    while plan.strikes_again(rounds, || !moves(&router.process.log()).is_empty()) {
        rounds += 1;
        tokio::time::sleep(rng.between(plan.pause.0, plan.pause.1)).await;
        let victim = pick(&mut workers, &mut rng).await;
        workers[victim].process.restart();
    }
    let tally = load.finish().await;

    let mut report = Report::new(format!("worker kill -9, seed {}", plan.seed));
    report.say("kills", format!("{rounds} of {} workers", plan.workers));
    report.streams(&tally);
    report.must_have_moved(&moves(&router.process.log()), &tally, plan);
    report
}

/// Picks a worker that is up, once enough others are.
async fn pick(workers: &mut [Worker], rng: &mut SeededRng) -> usize {
    let mut up = Vec::new();
    let stands = wait_until(BACK_WITHIN, || {
        up = (0..workers.len()).filter(|&index| workers[index].is_ready()).collect();
        up.len() > MUST_STAND.min(workers.len() - 1)
    });
    assert!(stands.await, "only workers {up:?} are up {BACK_WITHIN:?} after the last kill");
    up[rng.below(up.len())]
}
