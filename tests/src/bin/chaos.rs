//! The long forms of the scenarios with real processes. `tests/chaos` builds and runs this.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use skein_node::clock;
use skein_tests::load::Arrivals;
use skein_tests::report::Report;
use skein_tests::scenario::long::SCENARIOS;
use skein_tests::scenario::{self, Plan};

const ABOUT: &str = "Breaks a cluster of real processes under load and compares every stream with its undisturbed run.

Times are for two cores and a release build of skein. Ends with 0 when nothing was lost, repeated or altered, no request
failed, and all bounds held; with 1 otherwise. TEST_CHAOS_LOGS names a directory for the logs of all processes.";

/// Scenarios that can serve another model than the shipped one.
const TAKES_MODEL: [&str; 4] = ["worker-kill", "router-kill", "wedge", "rolling"];

fn main() -> ExitCode {
    let matches = command().get_matches();
    let Some((name, arguments)) = matches.subcommand() else { return ExitCode::FAILURE };
    let plan = plan(name, arguments);
    eprintln!("{name}: {plan:?}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let start = clock::now();
    let report = runtime.expect("a runtime starts").block_on(run(name, &plan));
    match report {
        Some(report) => {
            println!("{report}\n  took {:.0} s", clock::now().since(start).as_secs_f64());
            if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        None => {
            println!(
                "{name}: SKIPPED: this machine does not allow it (mounts and namespaces need root, etcd scenarios an etcd)"
            );
            ExitCode::SUCCESS
        }
    }
}

fn command() -> Command {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u64)).help(help)
    };
    let flags = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FLAGS").help(help).allow_hyphen_values(true)
    };
    let rate = Arg::new("per-second").long("per-second").value_name("X").value_parser(value_parser!(f64));
    let mut command =
        Command::new("tests/chaos").about(ABOUT).subcommand_required(true).arg_required_else_help(true);
    for scenario in SCENARIOS {
        command = command.subcommand(
            Command::new(scenario.name)
                .about(scenario.help)
                .arg(number("rounds", "Kills, stops, partitions or rounds of restarts"))
                .arg(number("workers", "Worker processes"))
                .arg(
                    rate.clone()
                        .conflicts_with("clients")
                        .help("Streams that arrive per second, independent of answers (open loop)"),
                )
                .arg(number("clients", "Clients, each with one stream at a time (closed loop)"))
                .arg(number(
                    "requests",
                    "Send at least this many requests (rolling); lines of the batch (run-batch)",
                ))
                .arg(number("max-tokens", "Length of the streams"))
                .arg(number("seed", "Seed of arrivals, victims and times"))
                .arg(number("lasts-s", "Shortest run in seconds (serve-kill, serve-freeze, soak)"))
                .arg(number("outage-s", "Length of the etcd outage in seconds"))
                .arg(number("gap-p99-ms", "Limit for the 99th percentile of gaps of streams that were hit"))
                .arg(number("silence-ms", "Limit for the longest silence of any stream that was hit"))
                .args(TAKES_MODEL.contains(&scenario.name).then(|| {
                    Arg::new("model")
                        .long("model")
                        .value_name("DIR")
                        .help("Serve this model, with the shipped one's tokenizer (skein-dev make-model)")
                }))
                .arg(flags("front-flags", "More flags for routers and gateways, as one word"))
                .arg(flags("worker-flags", "More flags for workers, as one word")),
        );
    }
    command
}

/// The scenario's long form, changed by the command line's flags.
fn plan(name: &str, arguments: &ArgMatches) -> Plan {
    let base = Plan { arrivals: Arrivals::Open(8.0), cases: 54, ..Plan::short("skein") };
    let known = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let mut plan = (known.expect("clap knows only these").plan)(base);
    let number = |name: &str| arguments.get_one::<u64>(name).copied();
    let words = |name: &str| arguments.get_one::<String>(name).map(|words| words.split_whitespace());
    plan.rounds = number("rounds").map_or(plan.rounds, |rounds| rounds as u32);
    plan.workers = number("workers").map_or(plan.workers, |workers| workers as usize);
    plan.arrivals = number("clients").map_or(plan.arrivals, |clients| Arrivals::Closed(clients as usize));
    plan.requests = number("requests").unwrap_or(plan.requests);
    plan.max_tokens = number("max-tokens").map_or(plan.max_tokens, |tokens| tokens as u32);
    plan.seed = number("seed").unwrap_or(plan.seed);
    plan.arrivals = arguments.get_one("per-second").map_or(plan.arrivals, |&rate| Arrivals::Open(rate));
    plan.lasts = number("lasts-s").map_or(plan.lasts, Duration::from_secs);
    plan.outage = number("outage-s").map_or(plan.outage, Duration::from_secs);
    plan.gap_p99 = number("gap-p99-ms").map(Duration::from_millis).or(plan.gap_p99);
    plan.silence = number("silence-ms").map(Duration::from_millis).or(plan.silence);
    plan.model = arguments.try_get_one::<String>("model").ok().flatten().cloned();
    plan.front_flags.extend(words("front-flags").into_iter().flatten().map(str::to_owned));
    plan.worker_flags.extend(words("worker-flags").into_iter().flatten().map(str::to_owned));
    plan
}

async fn run(name: &str, plan: &Plan) -> Option<Report> {
    Some(match name {
        "worker-kill" => scenario::worker_kill::run(plan).await,
        "serve-kill" | "soak" => scenario::serve::kills(plan).await,
        "serve-freeze" => scenario::serve::freezes(plan).await,
        "router-kill" => scenario::router_kill::run(plan).await,
        "gateway" => scenario::gateway::run(plan).await,
        "run-batch" => scenario::run_batch::run(plan).await,
        "wedge" => scenario::wedge::run(plan).await,
        "partition" => scenario::partition::run(plan).await,
        "rolling" => scenario::rolling::run(plan).await,
        "etcd-outage" => scenario::etcd::outage(plan).await?,
        "etcd-leader" => scenario::etcd::leader(plan).await?,
        "scale-out" => scenario::scale_out::run(plan).await,
        "full-disk" => scenario::exhaustion::full_disk(plan).await,
        "filling-disk" => scenario::exhaustion::filling_disk(plan).await?,
        "descriptors" => scenario::exhaustion::descriptors(plan).await,
        "namespace" => scenario::namespace::run(plan).await?,
        other => unreachable!("{other} is in the table and not here"),
    })
}
