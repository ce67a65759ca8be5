//! The network between the router and a worker fails: silence in one direction or both, with the sockets open, or
//! cuts and refusals. Streams go on elsewhere; after the network heals, late bytes change nothing and the worker
//! serves again.

use std::time::Duration;

use super::{Plan, only_one_left, wait_for_streams};
use crate::load::Target;
use crate::nodes::Front;
use crate::proxy::{Conduct, Cut, Proxy, Weather};
use crate::report::{Report, moves};
use crate::seeded::Seeded;

/// A stream that waits longer than that for a worker behind a broken network waits for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What late bytes need to arrive, and the router to be back at the worker.
const AFTERMATH: Duration = Duration::from_secs(3);

/// What goes wrong, one after the other.
const FAULTS: [Fault; 9] = [
    Fault::Weather("partition, late bytes", Weather::both(Conduct::STALL)),
    Fault::Weather("half-open, from the worker", Weather { down: Conduct::SWALLOW, ..Weather::GOOD }),
    Fault::Weather("slow and lossy", Weather::both(POOR)),
    Fault::Cut("reset, then refused", Cut::Reset),
    Fault::Weather("half-open, both", Weather::both(Conduct::SWALLOW)),
    Fault::Weather("one way, late bytes from the worker", Weather { down: Conduct::STALL, ..Weather::GOOD }),
    Fault::Cut("closed, then refused", Cut::Finish),
    Fault::Weather("half-open, to the worker", Weather { up: Conduct::SWALLOW, ..Weather::GOOD }),
    Fault::Weather("one way, late bytes to the worker", Weather { up: Conduct::STALL, ..Weather::GOOD }),
];

/// Nothing is lost on it, and nobody should lose patience with it.
const POOR: Conduct =
    Conduct { delay: Duration::from_millis(30), bandwidth: Some(500_000), loss: 0.02, ..Conduct::GOOD };

#[derive(Debug, Clone, Copy)]
enum Fault {
    Weather(&'static str, Weather),
    Cut(&'static str, Cut),
}

impl Fault {
    fn strike(self, proxy: &Proxy) -> &'static str {
        match self {
            Self::Weather(name, weather) => {
                proxy.set(weather);
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

/// Runs it.
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
    let mut dice = Seeded::new(plan.seed ^ 0x7061_7274);
    let mut report = Report::new(format!("partition and half-open, seed {}", plan.seed));
    let mut victim = 0;
    for round in 0..plan.rounds as usize {
        wait_for_streams(plan, &load, &mut dice).await;
        victim = dice.below(workers.len());
        let name = FAULTS[round % FAULTS.len()].strike(&proxies[victim]);
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
    report
        .require(alone.passed(), || format!("the worker behind the healed network does not serve: {alone}"));
    report
}
