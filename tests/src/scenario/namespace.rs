//! A worker in its own network namespace, so that its packets pass through the kernel's TCP. Its link goes
//! down without any notification. Needs root.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Plan, only_one_left, wait_for_streams};
use crate::load::Target;
use crate::nodes::{Extras, Front, Worker, lasting_address};
use crate::report::{Report, moves};
use crate::seeded::SeededRng;

/// A stream that waits longer than this for a worker behind a dead link counts as hung.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time for retransmissions to arrive and for the router to use the worker again.
const AFTERMATH: Duration = Duration::from_secs(4);

/// Runs the scenario; `None` if namespaces are not permitted.
pub async fn run(plan: &Plan) -> Option<Report> {
    let space = Namespace::new()?;
    let mut workers = vec![Worker::start(&plan.binary, &space.inside(plan)).await];
    for _ in 1..plan.workers {
        workers.push(Worker::start(&plan.binary, &plan.worker_extras()).await);
    }
    let router = Front::router(&plan.binary, &super::addresses(&workers), &plan.front_extras()).await;
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "namespace");
    let mut rng = SeededRng::new(plan.seed ^ 0x6e65_746e);
    let mut report = Report::new(format!("a network namespace whose link goes down, seed {}", plan.seed));
    let mut rounds = 0;
    while plan.strikes_again(rounds, || !moves(&router.process.log()).is_empty()) {
        rounds += 1;
        wait_for_streams(plan, &load, &mut rng).await;
        space.link("down");
        let ended = load.all_begun_have_ended(LONGEST_WAIT).await;
        report.require(ended.is_some(), || format!("streams hang {LONGEST_WAIT:?} after the link went down"));
        space.link("up");
        tokio::time::sleep(AFTERMATH).await;
    }
    let tally = load.finish().await;
    report.say("link down and up", rounds);
    report.streams(&tally);
    report.must_have_moved(&moves(&router.process.log()), &tally, plan);
    let alone = only_one_left(plan, &corpus, &router.url, &mut workers, 0).await;
    report.say("alone afterwards", format!("served after {}", alone.value("served alone after")));
    report.require(alone.passed(), || format!("the worker behind the link does not serve again: {alone}"));
    Some(report)
}

/// A network namespace with a pair of virtual links to ours; removed when dropped.
struct Namespace {
    name: String,
    subnet: u8,
}

impl Namespace {
    /// `None` if creating it is not permitted.
    fn new() -> Option<Self> {
        let subnet = (std::process::id() % 250) as u8;
        let space = Self { name: format!("skein{}", std::process::id()), subnet };
        let (outer, inner, name) = (space.outer(), space.inner(), space.name.as_str());
        let host = format!("10.213.{subnet}.1/24");
        let guest = format!("10.213.{subnet}.2/24");
        let made = ip(&["netns", "add", name])
            && ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner])
            && ip(&["link", "set", &inner, "netns", name])
            && ip(&["addr", "add", &host, "dev", &outer])
            && ip(&["link", "set", &outer, "up"])
            && ip(&["-n", name, "addr", "add", &guest, "dev", &inner])
            && ip(&["-n", name, "link", "set", &inner, "up"])
            && ip(&["-n", name, "link", "set", "lo", "up"]);
        made.then_some(space)
    }

    fn outer(&self) -> String {
        format!("sko{}", std::process::id())
    }

    fn inner(&self) -> String {
        format!("ski{}", std::process::id())
    }

    /// Settings that start a worker inside the namespace.
    fn inside(&self, plan: &Plan) -> Extras {
        let address = Ipv4Addr::new(10, 213, self.subnet, 2);
        Extras {
            prefix: ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec(),
            listen: Some(SocketAddr::from((address, lasting_address().port()))),
            ..plan.worker_extras()
        }
    }

    /// Changes the worker's end of the link. Our end and the route stay, and packets vanish.
    fn link(&self, state: &str) {
        assert!(ip(&["-n", &self.name, "link", "set", &self.inner(), state]), "a link of ours obeys");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Creation may have failed half-way.
        ip(&["link", "del", &self.outer()]);
        ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let status = Command::new("ip").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
