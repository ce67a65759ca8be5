//! The short forms of the scenarios: real processes with every fault we know, under streams that are compared
//! one by one with undisturbed runs. `tests/chaos` runs the long forms.

use std::time::Duration;

use skein_tests::load::Arrivals;
use skein_tests::report::Report;
use skein_tests::scenario::{self, Plan};

use crate::{SKEIN, block_on};

/// Prints the report; panics if the scenario failed.
fn judge(report: &Report) {
    println!("{report}");
    assert!(report.passed(), "{report}");
}

/// Prints the report, or what was skipped and why.
fn judge_or_skip(report: Option<Report>, why: &str) {
    match report {
        Some(report) => judge(&report),
        None => eprintln!("SKIPPED: {why}"),
    }
}

#[test]
fn killed_workers_lose_nothing_under_open_load() {
    let plan = Plan { rounds: 8, workers: 4, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::worker_kill::run(&plan)));
}

#[test]
fn killed_routers_lose_nothing_when_clients_reconnect() {
    let plan = Plan { rounds: 4, workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::router_kill::run(&plan)));
}

#[test]
fn killed_routers_go_unnoticed_behind_a_gateway() {
    let plan = Plan { rounds: 4, workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::gateway::run(&plan)));
}

#[test]
fn a_stopped_worker_is_left_and_taken_back() {
    let plan = Plan { rounds: 1, workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::wedge::run(&plan)));
}

#[test]
fn partitions_and_half_open_connections_lose_nothing() {
    let plan = Plan { rounds: 3, workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::partition::run(&plan)));
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let pause = (Duration::from_millis(200), Duration::from_millis(200));
    let arrivals = Arrivals::Closed(40);
    let plan = Plan { rounds: 1, pause, arrivals, max_tokens: 64, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::rolling::run(&plan)));
}

#[test]
fn a_cluster_grows_under_load_and_loses_its_first_worker() {
    judge(&block_on(scenario::scale_out::run(&Plan::short(SKEIN))));
}

#[test]
fn a_full_disk_under_the_logs_loses_nothing() {
    let plan = Plan { workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::exhaustion::full_disk(&plan)));
}

#[test]
fn a_disk_that_fills_up_under_the_logs_loses_nothing() {
    let plan = Plan { workers: 2, ..Plan::short(SKEIN) };
    judge_or_skip(
        block_on(scenario::exhaustion::filling_disk(&plan)),
        "a tmpfs cannot be mounted here, so no disk was filled",
    );
}

#[test]
fn without_file_descriptors_what_was_accepted_ends_whole() {
    let plan = Plan { workers: 2, ..Plan::short(SKEIN) };
    judge(&block_on(scenario::exhaustion::descriptors(&plan)));
}

#[test]
fn a_link_that_goes_down_loses_nothing() {
    let plan = Plan { rounds: 1, workers: 2, ..Plan::short(SKEIN) };
    judge_or_skip(
        block_on(scenario::namespace::run(&plan)),
        "network namespaces are not allowed here, so no link went down",
    );
}

#[test]
fn an_etcd_that_is_away_fails_no_request() {
    let plan = Plan { workers: 2, ..Plan::short(SKEIN) };
    judge_or_skip(
        block_on(scenario::etcd::outage(&plan)),
        "no etcd here (install it, or name it by TEST_ETCD)",
    );
}

#[test]
fn an_etcd_that_loses_its_leader_fails_no_request() {
    let plan = Plan { workers: 2, rounds: 1, ..Plan::short(SKEIN) };
    judge_or_skip(
        block_on(scenario::etcd::leader(&plan)),
        "no etcd here (install it, or name it by TEST_ETCD)",
    );
}
