//! A rolling restart under load: SIGTERM to one worker after the other, each restarted when it has ended.
//! Every client always has a stream in flight. No request fails.

use std::time::Duration;

use super::{Plan, addresses};
use crate::load::Target;
use crate::nodes::{Front, Worker};
use crate::report::{Report, moves};

/// How long a worker may take to end; its own drain ends after 120 s.
const ENDS_WITHIN: Duration = Duration::from_secs(130);

/// Runs the scenario: restarts every worker in each round, until enough requests were sent.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "rolling");
    let mut report = Report::new(format!("rolling restart of all workers, seed {}", plan.seed));
    let (mut restarts, mut rounds, mut ends) = (0, 0, Vec::new());
    while rounds < plan.rounds || load.counts().1 < plan.requests {
        for worker in &mut workers {
            tokio::time::sleep(plan.pause.0).await;
            ends.push(restart(worker, &mut report).await);
            restarts += 1;
        }
        rounds += 1;
    }
    let tally = load.finish().await;
    report.say("restarts", format!("{restarts}, {rounds} rounds of {} workers", plan.workers));
    report.say("arrivals", format!("{:?}", plan.arrivals));
    report.gaps("SIGTERM to exit", ends, None);
    report.streams(&tally);
    report.moved(&moves(&router.process.log()), &tally, plan);
    report
}

/// Ends a worker as an orchestrator does and restarts it; returns how long it took to end.
async fn restart(worker: &mut Worker, report: &mut Report) -> Duration {
    let start = skein_node::clock::now();
    worker.process.signal("TERM");
    let code = worker.process.wait_end(ENDS_WITHIN).await;
    let took = skein_node::clock::now().since(start);
    report.require(code == Some(0), || format!("a worker ended with {code:?} after SIGTERM, not with 0"));
    worker.process.restart();
    worker.wait_ready().await;
    took
}
