//! Scale-out under load: a cluster of one worker gets more, and then loses the first one for good.

use std::time::Duration;

use super::{Plan, wait_until};
use crate::load::Target;
use crate::nodes::{Extras, Front, Worker, lasting_address};
use crate::report::{Report, moves};

/// How soon the router must see a worker that is ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let addresses: Vec<_> = (0..plan.workers).map(|_| lasting_address()).collect();
    let extras = |index: usize| Extras { listen: Some(addresses[index]), ..plan.worker_extras() };
    let mut workers = vec![Worker::start(&plan.binary, &extras(0)).await];
    let router = Front::router(&plan.binary, &addresses, &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "scale-out");
    let mut report = Report::new(format!("scale-out under load, seed {}", plan.seed));
    for index in 1..plan.workers {
        tokio::time::sleep(plan.pause.0).await;
        workers.push(Worker::start(&plan.binary, &extras(index)).await);
        let start = skein_node::clock::now();
        let seen = wait_until(SEEN_WITHIN, || connected(&router) > index).await;
        let took = skein_node::clock::now().since(start);
        report.say(&format!("worker {} seen after", index + 1), format!("{} ms", took.as_millis()));
        report.require(seen, || format!("worker {} was not seen within {SEEN_WITHIN:?}", index + 1));
    }
    workers[0].process.kill();
    tokio::time::sleep(plan.pause.1).await;
    let tally = load.finish().await;
    report.streams(&tally);
    report.moved(&moves(&router.process.log()), &tally, plan);
    report
}

fn connected(router: &Front) -> usize {
    router.process.log().matches("worker connected").count()
}
