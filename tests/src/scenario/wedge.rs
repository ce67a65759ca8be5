//! SIGSTOP on a worker: its sockets stay open, and nothing arrives. Its streams move to other workers. After
//! SIGCONT its late messages change nothing, and it serves again.

use std::time::Duration;

use super::{Plan, addresses, only_one_left, wait_for_streams};
use crate::load::Target;
use crate::nodes::Front;
use crate::report::{Report, moves};
use crate::seeded::SeededRng;

/// A stream that waits longer than this for a stopped worker counts as hung.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time for late messages to arrive.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "wedge");
    let mut rng = SeededRng::new(plan.seed ^ 0x7374_6f70);
    let mut report = Report::new(format!("worker SIGSTOP and SIGCONT, seed {}", plan.seed));
    let mut victim = 0;
    let mut rounds = 0;
    while plan.strikes_again(rounds, || !moves(&router.process.log()).is_empty()) {
        rounds += 1;
        wait_for_streams(plan, &load, &mut rng).await;
        victim = rng.below(workers.len());
        workers[victim].process.signal("STOP");
        let ended = load.all_begun_have_ended(LONGEST_WAIT).await;
        report.require(ended.is_some(), || format!("streams hang {LONGEST_WAIT:?} after a SIGSTOP"));
        workers[victim].process.signal("CONT");
        tokio::time::sleep(AFTERMATH).await;
    }
    let tally = load.finish().await;
    report.say("stops", format!("{rounds} of {} workers", plan.workers));
    report.streams(&tally);
    report.must_have_moved(&moves(&router.process.log()), &tally, plan);

    let alone = only_one_left(plan, &corpus, &router.url, &mut workers, victim).await;
    report.say("alone afterwards", format!("served after {}", alone.value("served alone after")));
    report.require(alone.passed(), || format!("the woken worker does not serve alone: {alone}"));
    report
}
