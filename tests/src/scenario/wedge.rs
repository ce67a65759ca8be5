//! SIGSTOP on a worker: it is there, its sockets are open, and nothing comes. Its streams go on elsewhere; when it is
//! woken, what it then says too late changes nothing, and it serves again.

use std::time::Duration;

use super::{Plan, addresses, only_one_left, wait_for_streams};
use crate::load::Target;
use crate::nodes::Front;
use crate::report::{Report, gaps_of, moves};
use crate::seeded::Seeded;

/// A stream that waits for a stopped worker longer than that waits for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What late words need to arrive.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Runs it.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.open_loop(&corpus, Target::plain(&router.url), "wedge");
    let mut dice = Seeded::new(plan.seed ^ 0x7374_6f70);
    let mut report = Report::new(format!("worker SIGSTOP and SIGCONT, seed {}", plan.seed));
    let mut victim = 0;
    for _ in 0..plan.rounds {
        wait_for_streams(plan, &load, &mut dice).await;
        victim = dice.below(workers.len());
        workers[victim].process.signal("STOP");
        let ended = load.all_begun_have_ended(LONGEST_WAIT).await;
        report.require(ended.is_some(), || format!("streams hang {LONGEST_WAIT:?} after a SIGSTOP"));
        workers[victim].process.signal("CONT");
        tokio::time::sleep(AFTERMATH).await;
    }
    let tally = load.finish().await;
    let moves = moves(&router.process.log());
    report.say("stops", format!("{} of {} workers", plan.rounds, plan.workers));
    report.say("streams moved", format!("{}, {} moves", moves.len(), moves.values().sum::<u32>()));
    report.streams(&tally);
    report.gaps("longest gap, moved", gaps_of(&moves, &tally.ended), plan.gap_p99);
    report.require(!moves.is_empty(), || "no stop hit a stream: this shows nothing".into());

    let alone = only_one_left(plan, &corpus, &router.url, &mut workers, victim).await;
    report.require(alone.passed(), || format!("the woken worker does not serve alone: {alone}"));
    report
}
