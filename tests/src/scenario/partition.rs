//! The network between the router and a worker fails: silence in one direction or both with open sockets, or
//! cut and refused connections. Streams move to other workers. After the network heals, late bytes change
//! nothing and the worker serves again.

use std::time::Duration;

use super::{Plan, only_one_left, wait_for_streams};
use crate::load::Target;
use crate::nodes::Front;
use crate::proxy::{Cut, Link, Network, Proxy};
use crate::report::{Report, moves};
use crate::seeded::SeededRng;

/// A stream that waits longer than this for a worker behind a broken network counts as hung.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time for late bytes to arrive and for the router to use the worker again.
const AFTERMATH: Duration = Duration::from_secs(3);

/// The faults, in order.
const FAULTS: [Fault; 9] = [
    Fault::Network("partition, late bytes", Network::both(Link::STALL)),
    Fault::Network("half-open, from the worker", Network { down: Link::SWALLOW, ..Network::GOOD }),
    Fault::Network("slow and lossy", Network::both(POOR)),
    Fault::Cut("reset, then refused", Cut::Reset),
    Fault::Network("half-open, both", Network::both(Link::SWALLOW)),
    Fault::Network("one way, late bytes from the worker", Network { down: Link::STALL, ..Network::GOOD }),
    Fault::Cut("closed, then refused", Cut::Finish),
    Fault::Network("half-open, to the worker", Network { up: Link::SWALLOW, ..Network::GOOD }),
    Fault::Network("one way, late bytes to the worker", Network { up: Link::STALL, ..Network::GOOD }),
];

/// Slow and lossy, but every byte arrives, so no stream should move.
const POOR: Link =
    Link { delay: Duration::from_millis(30), bandwidth: Some(500_000), loss: 0.02, ..Link::GOOD };

#[derive(Debug, Clone, Copy)]
enum Fault {
    Network(&'static str, Network),
    Cut(&'static str, Cut),
}

impl Fault {
    fn strike(self, proxy: &Proxy) -> &'static str {
        match self {
            Self::Network(name, network) => {
                proxy.set(network);
                name
            }
            Self::Cut(name, cut) => {
                proxy.refuse(true);
                proxy.cut(cut);
                name
            }
        }
    }
}

/// Runs the scenario.
pub async fn run(plan: &Plan) -> Report {
    let mut workers = plan.start_workers().await;
    let mut proxies = Vec::new();
    for worker in &workers {
        proxies.push(Proxy::start(worker.address, plan.seed).await);
    }
    let doors: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    let router = Front::router(&plan.binary, &doors, &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "partition");
    let mut rng = SeededRng::new(plan.seed ^ 0x7061_7274);
    let mut report = Report::new(format!("partition and half-open, seed {}", plan.seed));
    let mut victim = 0;
    let mut rounds = 0;
    while plan.strikes_again(rounds, || !moves(&router.process.log()).is_empty()) {
        wait_for_streams(plan, &load, &mut rng).await;
        victim = rng.below(workers.len());
        let name = FAULTS[rounds as usize % FAULTS.len()].strike(&proxies[victim]);
        rounds += 1;
        let ended = load.all_begun_have_ended(LONGEST_WAIT).await;
        report.require(ended.is_some(), || format!("{name}: streams hang after {LONGEST_WAIT:?}"));
        report.say(
            name,
            format!("all streams had ended {} ms later", ended.unwrap_or(LONGEST_WAIT).as_millis()),
        );
        proxies[victim].heal();
        tokio::time::sleep(AFTERMATH).await;
    }
    let tally = load.finish().await;
    report.streams(&tally);
    report.must_have_moved(&moves(&router.process.log()), &tally, plan);

    let alone = only_one_left(plan, &corpus, &router.url, &mut workers, victim).await;
    report.say("alone afterwards", format!("served after {}", alone.value("served alone after")));
    report
        .require(alone.passed(), || format!("the worker behind the healed network does not serve: {alone}"));
    report
}
