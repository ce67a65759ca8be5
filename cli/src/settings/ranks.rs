//! Reads how many ranks share a worker's model, and on which nodes they run. Where flags are missing, the
//! variables of a LeaderWorkerSet's pods apply.

use skein_kernels::leaves::MAX_LEAVES;
use skein_node::config::{Origin, Settings, count, text};
use skein_worker::config::{GroupSecret, NodesConfig, RanksConfig, Setting, WorkerConfig};

use super::guards;
use super::table::{FLAGS, Flag, WORKER};

/// Upper bound of the number of stages and of the number of nodes.
const MAX_STAGES: u64 = 64;
/// Default port of the leader if a LeaderWorkerSet provides its host.
const LEADER_PORT: u16 = 9801;
/// Variables of a LeaderWorkerSet's pods: the leader's host, the number of pods, and this pod's number.
const LWS: [&str; 3] = ["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"];

/// Reads the ranks; `variable` reads the environment. Problems are recorded in `settings`.
pub fn ranks(settings: &mut Settings, variable: impl Fn(&str) -> Option<String>) -> RanksConfig {
    let here = ranks_here(settings);
    RanksConfig { nodes: nodes(settings, variable), ..here }
}

/// Reads the ranks of a command that runs on one machine.
pub fn ranks_here(settings: &mut Settings) -> RanksConfig {
    let mut number = |name, most| settings.value(name, count(1..=most)).map_or(1, |count| count as u32);
    let tensor_parallel = number("tensor-parallel-size", MAX_LEAVES as u64);
    let pipeline_parallel = number("pipeline-parallel-size", MAX_STAGES);
    RanksConfig { tensor_parallel, pipeline_parallel, nodes: NodesConfig::default(), command: None }
}

fn nodes(settings: &mut Settings, variable: impl Fn(&str) -> Option<String>) -> NodesConfig {
    let [host, size, index] = LWS.map(|name| variable(name).filter(|value| !value.is_empty()));
    let mut number = |name: &'static str, least, variable: Option<String>| {
        let given = settings.value(name, count(least..=MAX_STAGES));
        let from_pod = variable.and_then(|value| count(least..=MAX_STAGES)(&value).ok());
        given.or(from_pod).map_or(least as u32, |count| count as u32)
    };
    let (count, rank) = (number("nnodes", 1, size), number("node-rank", 0, index));
    let leader = settings.value("leader", address).or(host.map(|host| format!("{host}:{LEADER_PORT}")));
    let secret = settings.value("group-secret", text).unwrap_or_default();
    if count == 1 {
        return NodesConfig::default();
    }
    let tls = guards::identity(settings);
    let of_cluster = if secret.is_empty() { guards::secret(settings) } else { None };
    let secret = of_cluster.map_or(secret, |secret| secret.expose().to_owned());
    if rank >= count {
        settings.problem(format!("node-rank = {rank}, but nnodes is {count}: it is 0 to {}", count - 1));
    }
    let leader = leader.unwrap_or_default();
    if leader.is_empty() {
        settings.problem(format!("nnodes = {count} needs --leader HOST:PORT, the address of node 0"));
    } else if secret.is_empty()
        && tls.is_none()
        && !is_loopback(&leader)
        && !settings.switch("insecure-cluster")
    {
        settings.problem(
            "nnodes above 1 needs --cluster-ca, --cluster-cert and --cluster-key (`skein certs` makes them), which also \
             encrypt what nodes exchange, or --cluster-secret-file, or --group-secret, the same on all nodes, so that \
             no other process joins the group",
        );
    }
    NodesConfig { count, rank, leader, secret: GroupSecret(secret), tls, settings: Vec::new() }
}

fn address(given: &str) -> Result<String, String> {
    let port =
        given.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(given.to_owned()),
        _ => Err(format!("`{given}` is not HOST:PORT, such as 10.0.0.1:{LEADER_PORT}")),
    }
}

fn is_loopback(leader: &str) -> bool {
    let host = leader.rsplit_once(':').map_or(leader, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The settings that must be equal on all nodes of a group, with this node's values.
pub fn same_on_nodes(settings: &Settings, worker: &WorkerConfig) -> Vec<Setting> {
    let config = serde_json::to_value(worker)
        .unwrap_or_else(|error| unreachable!("each setting has a form in JSON: {error}"));
    let of_flag = |flag: &Flag| {
        let (name, pointer) = (flag.key.name, flag.same_on_nodes?);
        let value = config.pointer(pointer)?.to_string();
        let is_given = !matches!(settings.origin(name), Origin::Default);
        let shown = match settings.shown(name) {
            text if !text.is_empty() => text,
            _ if value == "null" => "its default".to_owned(),
            _ => value.clone(),
        };
        Some(Setting { name: name.into(), value, shown, is_given })
    };
    FLAGS.iter().filter(|flag| flag.commands & WORKER != 0).filter_map(of_flag).collect()
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::settings::{EngineSettings, load, with_flags};

    fn read(line: &str, pod: [&str; 3]) -> (RanksConfig, Vec<String>) {
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let matches = command.try_get_matches_from(line.split_whitespace()).expect("the flags parse");
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let variable = |name: &str| {
            let index = LWS.iter().position(|known| *known == name)?;
            Some(pod[index].to_owned())
        };
        let ranks = ranks(&mut settings, variable);
        (ranks, settings.finish().map_or_else(|problems| problems.0, |()| Vec::new()))
    }

    #[test]
    fn flags_come_before_the_variables_of_a_pod() {
        let pod = ["leader.example", "3", "2"];
        let check = |line: &str, pod, count, rank, leader: &str| {
            let (ranks, problems) = read(line, pod);
            assert_eq!(problems, Vec::<String>::new(), "{line}");
            let NodesConfig { count: nodes, rank: node, leader: address, .. } = ranks.nodes;
            assert_eq!((nodes, node, &*address), (count, rank, leader), "{line}");
        };
        check("", ["", "", ""], 1, 0, "");
        check("--group-secret s", pod, 3, 2, "leader.example:9801");
        check("--group-secret s --nnodes 2 --node-rank 1 --leader a:1", pod, 2, 1, "a:1");
        check("--nnodes 2 --leader 127.0.0.1:5", ["", "", ""], 2, 0, "127.0.0.1:5");
        check("--nnodes 1", pod, 1, 0, "");
        let tls = "--nnodes 2 --leader 10.0.0.1:5 --cluster-ca a --cluster-cert b --cluster-key c";
        check(tls, ["", "", ""], 2, 0, "10.0.0.1:5");
        check("--nnodes 2 --leader 10.0.0.1:5 --insecure-cluster", ["", "", ""], 2, 0, "10.0.0.1:5");
        check("", ["leader.example", "1", "0"], 1, 0, "");
        assert_eq!(
            read("-h=1".replace("-h=1", "--pipeline-parallel-size 3").as_str(), pod).0.pipeline_parallel,
            3
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        for (line, expected) in [
            ("--nnodes 2", "needs --leader HOST:PORT"),
            ("--nnodes 2 --leader 10.0.0.1:80", "needs --cluster-ca, --cluster-cert and --cluster-key"),
            ("--nnodes 2 --leader 10.0.0.1:80 --cluster-ca a", "--cluster-cert and --cluster-key is missing"),
            ("--nnodes 2 --leader 10.0.0.1", "is not HOST:PORT"),
            (
                "--nnodes 2 --node-rank 2 --leader localhost:80",
                "node-rank = 2, but nnodes is 2: it is 0 to 1",
            ),
        ] {
            let (_, problems) = read(line, ["", "", ""]);
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{line}: {problems:?}");
        }
    }

    #[test]
    fn only_settings_that_were_given_are_compared() {
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let matches = command.try_get_matches_from(["--block-size", "32", "--dtype", "float32"]).unwrap();
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let engine = EngineSettings::read(&mut settings);
        let shared = same_on_nodes(&settings, &engine.worker);
        let marked = FLAGS.iter().filter(|flag| flag.same_on_nodes.is_some()).count();
        assert_eq!(shared.len(), marked, "each pointer of the table finds a value");
        let given: Vec<_> =
            shared.iter().filter(|it| it.is_given).map(|it| (&*it.name, &*it.shown)).collect();
        assert_eq!(given, [("block-size", "32"), ("dtype", "float32")]);
    }
}
