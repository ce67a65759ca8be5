//! etcd goes down under load, or loses its leader. No request fails, nothing restarts, and new workers are
//! discovered within seconds afterwards.

use std::time::Duration;

use skein_node::clock;

use super::{Plan, wait_until};
use crate::etcd::{self, EtcdCluster};
use crate::load::Target;
use crate::nodes::{Extras, Front, Worker};
use crate::report::{Report, moves};

/// How soon the router must see a new worker once etcd is back.
const JOINS_WITHIN: Duration = Duration::from_secs(15);

/// A cluster with discovery through etcd.
struct DiscoveredCluster {
    etcd: EtcdCluster,
    workers: Vec<Worker>,
    router: Front,
}

impl DiscoveredCluster {
    /// `None` if no etcd is installed.
    async fn start(plan: &Plan, servers: usize) -> Option<Self> {
        let etcd = EtcdCluster::start(&etcd::binary()?, servers, &[]).await;
        let mut workers = Vec::new();
        for _ in 0..plan.workers {
            workers.push(Worker::start(&plan.binary, &with_source(&etcd, &plan.worker_flags)).await);
        }
        let mut router = Front::spawn_router(&plan.binary, &[], &with_source(&etcd, &plan.front_flags));
        router.wait_ready().await;
        let cluster = Self { etcd, workers, router };
        assert!(
            cluster.all_seen().await,
            "the router does not see all workers:\n{}",
            cluster.router.process.log()
        );
        Some(cluster)
    }

    async fn all_seen(&self) -> bool {
        let addresses: Vec<String> = self.workers.iter().map(|worker| worker.address.to_string()).collect();
        wait_until(JOINS_WITHIN, || {
            let log = self.router.process.log();
            addresses.iter().all(|address| log.lines().any(|line| is_connection(line, address)))
        })
        .await
    }

    /// Starts one more worker and waits until the router sees it.
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

    /// Requires that no process has ended.
    fn all_run(&mut self, report: &mut Report) {
        let ended =
            self.workers.iter_mut().map(|worker| usize::from(!worker.process.is_running())).sum::<usize>();
        report.require(ended == 0, || format!("{ended} workers ended"));
        report.require(self.router.process.is_running(), || "the router ended".into());
    }
}

fn with_source(etcd: &EtcdCluster, flags: &[String]) -> Extras {
    let flags = [flags, &["--discovery".into(), etcd.source()]].concat();
    Extras { flags, ..Extras::default() }
}

fn is_connection(line: &str, address: &str) -> bool {
    line.contains("worker connected") && line.contains(&format!("\"{address}\""))
}

/// Kills etcd for the plan's outage and restarts a worker during it. `None` if no etcd is installed.
pub async fn outage(plan: &Plan) -> Option<Report> {
    let mut cluster = DiscoveredCluster::start(plan, 1).await?;
    let corpus = plan.record(&cluster.router).await;
    let load = plan.load(&corpus, Target::plain(&cluster.router.url), "outage");
    let mut report = Report::new(format!("etcd is gone for {:?} under load", plan.outage));
    tokio::time::sleep(plan.pause.0).await;
    cluster.etcd.servers[0].kill();
    tokio::time::sleep(plan.outage / 2).await;
    // This does not change membership: the worker returns at the address that the router knows.
    cluster.workers[0].process.restart();
    tokio::time::sleep(plan.outage / 2).await;
    let without = load.counts().1;
    cluster.etcd.servers[0].launch();
    cluster.etcd.wait_leader(None).await;
    cluster.join(plan, &mut report, "once etcd is back").await;
    tokio::time::sleep(plan.pause.1).await;
    cluster.all_run(&mut report);
    let tally = load.finish().await;
    report.say("streams ended by the end of the outage", without);
    report.streams(&tally);
    report.moved(&moves(&cluster.router.process.log()), &tally, plan);
    Some(report)
}

/// Kills the leader of three servers, again and again. `None` if no etcd is installed.
pub async fn leader(plan: &Plan) -> Option<Report> {
    let mut cluster = DiscoveredCluster::start(plan, 3).await?;
    let corpus = plan.record(&cluster.router).await;
    let load = plan.load(&corpus, Target::plain(&cluster.router.url), "leader");
    let mut report = Report::new("three etcd servers lose their leader under load");
    for round in 1..=plan.rounds {
        tokio::time::sleep(plan.pause.0).await;
        let leader = cluster.etcd.wait_leader(None).await;
        cluster.etcd.servers[leader].kill();
        let start = clock::now();
        cluster.etcd.wait_leader(Some(leader)).await;
        report.say(&format!("election {round}"), format!("{} ms", clock::now().since(start).as_millis()));
        cluster.join(plan, &mut report, &format!("after election {round}")).await;
        cluster.etcd.servers[leader].launch();
    }
    cluster.all_run(&mut report);
    let tally = load.finish().await;
    report.streams(&tally);
    report.moved(&moves(&cluster.router.process.log()), &tally, plan);
    Some(report)
}
