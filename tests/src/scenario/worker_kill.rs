//! `kill -9` on workers at random moments, under streams that keep coming. Each is started again at once.

use std::time::Duration;

use super::{Plan, addresses, wait_until};
use crate::load::Target;
use crate::nodes::{Front, Worker};
use crate::report::{Report, moves};
use crate::seeded::Seeded;

/// Workers that must be up when the next one is killed: with none there is nothing to go on at.
const MUST_STAND: usize = 2;
/// How long a killed worker may take to be back.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Runs it.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "kill");
    let mut dice = Seeded::new(plan.seed ^ 0x6b69_6c6c);
    for _ in 0..plan.rounds {
        tokio::time::sleep(dice.between(plan.pause.0, plan.pause.1)).await;
        let victim = pick(&mut workers, &mut dice).await;
        workers[victim].process.start_again();
    }
    let tally = load.finish().await;

    let mut report = Report::new(format!("worker kill -9, seed {}", plan.seed));
    report.say("kills", format!("{} of {} workers", plan.rounds, plan.workers));
    report.streams(&tally);
    report.must_have_moved(&moves(&router.process.log()), &tally, plan);
    report
}

/// A worker that is up, once enough others are.
async fn pick(workers: &mut [Worker], dice: &mut Seeded) -> usize {
    let mut up = Vec::new();
    let stands = wait_until(BACK_WITHIN, || {
        up = (0..workers.len()).filter(|&index| workers[index].is_ready()).collect();
        up.len() > MUST_STAND.min(workers.len() - 1)
    });
    assert!(stands.await, "only workers {up:?} are up {BACK_WITHIN:?} after the last kill");
    up[dice.below(up.len())]
}
