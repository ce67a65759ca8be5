//! etcd goes away under load, or loses its leader: no request fails, nobody restarts, and who comes afterwards is seen
//! within seconds.

use std::time::Duration;

use skein_node::clock;

use super::{Plan, wait_until};
use crate::etcd_process::Etcd;
use crate::load::Target;
use crate::nodes::{Extras, Front, Worker};
use crate::report::{Report, moves};

/// How long after etcd is back a new worker may take until the router sees it.
const JOINS_WITHIN: Duration = Duration::from_secs(15);

/// A cluster whose members meet in etcd.
struct Meeting {
    etcd: Etcd,
    workers: Vec<Worker>,
    router: Front,
}

impl Meeting {
    /// `None` where no etcd is installed.
    async fn start(plan: &Plan, servers: usize) -> Option<Self> {
        let etcd = Etcd::start(servers).await?;
        let mut workers = Vec::new();
        for _ in 0..plan.workers {
            workers.push(Worker::start(&plan.binary, &with_source(&etcd, &plan.worker_flags)).await);
        }
        let mut router = Front::spawn_router(&plan.binary, &[], &with_source(&etcd, &plan.front_flags));
        router.wait_ready().await;
        let meeting = Self { etcd, workers, router };
        assert!(
            meeting.all_seen().await,
            "the router does not see all workers:\n{}",
            meeting.router.process.log()
        );
        Some(meeting)
    }

    async fn all_seen(&self) -> bool {
        let addresses: Vec<String> = self.workers.iter().map(|worker| worker.address.to_string()).collect();
        wait_until(JOINS_WITHIN, || {
            let log = self.router.process.log();
            addresses.iter().all(|address| log.lines().any(|line| is_connection(line, address)))
        })
        .await
    }

    /// Starts one more worker and waits for the router to see it.
    async fn join(&mut self, plan: &Plan, report: &mut Report, when: &str) {
        self.workers.push(Worker::start(&plan.binary, &with_source(&self.etcd, &plan.worker_flags)).await);
        let start = clock::now();
        let seen = self.all_seen().await;
        report.say(
            &format!("a worker joins {when}"),
            format!("seen after {} ms", clock::now().since(start).as_millis()),
        );
        report.require(seen, || format!("a worker that joins {when} is not seen within {JOINS_WITHIN:?}"));
    }

    /// Nobody may have ended.
    fn all_run(&mut self, report: &mut Report) {
        let ended =
            self.workers.iter_mut().map(|worker| usize::from(!worker.process.is_running())).sum::<usize>();
        report.require(ended == 0, || format!("{ended} workers ended"));
        report.require(self.router.process.is_running(), || "the router ended".into());
    }
}

fn with_source(etcd: &Etcd, flags: &[String]) -> Extras {
    let flags = [flags, &["--discovery".into(), etcd.source()]].concat();
    Extras { flags, ..Extras::default() }
}

fn is_connection(line: &str, address: &str) -> bool {
    line.contains("worker connected") && line.contains(&format!("\"{address}\""))
}

/// etcd is killed and stays away for the plan's outage; a worker is killed meanwhile. `None` = no etcd here.
pub async fn outage(plan: &Plan) -> Option<Report> {
    let mut meeting = Meeting::start(plan, 1).await?;
    let corpus = plan.record(&meeting.router).await;
    let load = plan.load(&corpus, Target::plain(&meeting.router.url), "outage");
    let mut report = Report::new(format!("etcd is gone for {:?} under load", plan.outage));
    tokio::time::sleep(plan.pause.0).await;
    meeting.etcd.servers[0].kill();
    tokio::time::sleep(plan.outage / 2).await;
    // Membership does not change by that: it comes back at its address, and the router knows it.
    meeting.workers[0].process.start_again();
    tokio::time::sleep(plan.outage / 2).await;
    let without = load.counts().1;
    meeting.etcd.servers[0].start_again();
    meeting.etcd.wait_leader(None).await;
    meeting.join(plan, &mut report, "once etcd is back").await;
    tokio::time::sleep(plan.pause.1).await;
    meeting.all_run(&mut report);
    let tally = load.finish().await;
    report.say("streams ended by the end of the outage", without);
    report.streams(&tally);
    report.moved(&moves(&meeting.router.process.log()), &tally, plan);
    Some(report)
}

/// Three servers, of which the leader is killed, again and again. `None` = no etcd here.
pub async fn leader(plan: &Plan) -> Option<Report> {
    let mut meeting = Meeting::start(plan, 3).await?;
    let corpus = plan.record(&meeting.router).await;
    let load = plan.load(&corpus, Target::plain(&meeting.router.url), "leader");
    let mut report = Report::new("three etcd servers lose their leader under load");
    for round in 1..=plan.rounds {
        tokio::time::sleep(plan.pause.0).await;
        let leader = meeting.etcd.wait_leader(None).await;
        meeting.etcd.servers[leader].kill();
        let start = clock::now();
        meeting.etcd.wait_leader(Some(leader)).await;
        report.say(&format!("election {round}"), format!("{} ms", clock::now().since(start).as_millis()));
        meeting.join(plan, &mut report, &format!("after election {round}")).await;
        meeting.etcd.servers[leader].start_again();
    }
    meeting.all_run(&mut report);
    let tally = load.finish().await;
    report.streams(&tally);
    report.moved(&moves(&meeting.router.process.log()), &tally, plan);
    Some(report)
}
