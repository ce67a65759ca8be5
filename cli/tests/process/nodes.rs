//! Workers on several nodes, here processes that connect over loopback. They generate the tokens of one rank,
//! whichever rank or node ends or stops; a node with other settings is refused.
//!
//! The long form: `TEST_NODE_ROUNDS=25 cargo test -p skein --test process nodes -- --nocapture`

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;
use skein_tests::nodes::lasting_address;
use skein_tests::pki::{Pair, Pki};
use skein_tests::process::{Cluster, children_of, send_signal, shipped_model};

use crate::chaos::{STREAMS, difference, run_all};
use crate::groups::{is_alive, wait_for_end};
use crate::{SKEIN, block_on, wide_model};

/// A node whose ranks belong to a leader elsewhere.
pub struct Node {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Node {
    fn start(model: &Path, arguments: &[&str]) -> Self {
        Self::start_by(Command::new(SKEIN), "cpu", model, arguments)
    }

    /// Starts the node in another network namespace.
    fn start_in(network: &Network, model: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.name, SKEIN]);
        Self::start_by(command, "cpu", model, arguments)
    }

    /// Starts the node by a command that runs `skein`, on `device`.
    pub fn start_by(mut command: Command, device: &str, model: &Path, arguments: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = command
            .args(["worker", model.to_str().unwrap(), "--device", device])
            .args(arguments)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Process ids of all ranks: leader, its other ranks, and those of the node. `each` ranks run on a node.
pub async fn wait_for_group(cluster: &Cluster, node: &Node, each: usize) -> Vec<u32> {
    for _ in 0..3000 {
        if let [leader] = cluster.worker_pids()[..] {
            let (here, there) = (children_of(leader), children_of(node.pid()));
            if cluster.is_ready().await && here.len() + 1 == each && there.len() == each {
                return std::iter::once(leader).chain(here).chain(there).collect();
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the group did not come back:\n{}\nnode 1:\n{}", cluster.log(), node.log());
}

fn check(seen: &[skein_tests::client::History], expected: &[skein_tests::client::History], logs: &str) {
    let differences: Vec<String> =
        (0..STREAMS).filter_map(|index| difference(index, &seen[index], &expected[index])).collect();
    assert!(differences.is_empty(), "{}\n{logs}", differences.join("\n"));
}

/// Runs streams over a group of two nodes while each of its ranks in turn receives its signal.
async fn run(shape: &[&str], each: usize, signals: &[(&str, usize)]) {
    run_locked(shape, each, signals, [&[]; 2]).await;
}

/// [`run`], with flags for the leader's node and for the other one.
async fn run_locked(shape: &[&str], each: usize, signals: &[(&str, usize)], [here, there]: [&[&str]; 2]) {
    let client = reqwest::Client::new();
    let model = wide_model::write();
    let served = [model.path().to_str().unwrap(), "--served-model-name", "skein-7m", "--device", "cpu"];
    let alone = Cluster::serve(SKEIN, &[&served[..], &["--workers", "1"]].concat()).await;
    let expected = run_all(&client, &alone.url).await;
    drop(alone);
    let leader = lasting_address().to_string();
    let group = ["--nnodes", "2", "--leader", &leader];
    let node = Node::start(model.path(), &[&group[..], &["--node-rank", "1"], there].concat());
    let arguments = [&served[..], &["--threads", "2"], shape, &group[..], here].concat();
    let cluster = Cluster::serve(SKEIN, &arguments).await;
    let logs = |cluster: &Cluster| format!("{}\nnode 1:\n{}", cluster.log(), node.log());
    wait_for_group(&cluster, &node, each).await;
    let start = clock::now();
    check(&run_all(&client, &cluster.url).await, &expected, &logs(&cluster));
    let undisturbed = clock::now().since(start);
    let rounds = std::env::var("TEST_NODE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    for (round, (signal, rank)) in signals.repeat(rounds).iter().enumerate() {
        let group = wait_for_group(&cluster, &node, each).await;
        let (seen, ended) = tokio::join!(run_all(&client, &cluster.url), async {
            tokio::time::sleep(undisturbed * (20 + 15 * (round % 4) as u32) / 100).await;
            assert!(group.iter().all(|pid| is_alive(*pid)), "{group:?} ended early\n{}", logs(&cluster));
            send_signal(group[*rank], signal);
            let ended = wait_for_end(&group).await;
            ended.unwrap_or_else(|threads| panic!("{signal} of {rank}:\n{threads}\n{}", logs(&cluster)))
        });
        println!("{shape:?}: {signal} of rank {rank}: the group had ended after {ended:?}");
        check(&seen, &expected, &logs(&cluster));
    }
    wait_for_group(&cluster, &node, each).await;
}

#[test]
fn a_layer_over_two_nodes_draws_the_tokens_of_one_rank_whatever_rank_ends() {
    // Ranks 0 and 1 run on the leader's node, ranks 2 and 3 on the other.
    let signals = [("KILL", 3), ("KILL", 1), ("KILL", 0), ("KILL", 2), ("STOP", 2)];
    block_on(run(&["-tp", "4"], 2, &signals));
}

#[test]
fn stages_on_two_nodes_draw_the_tokens_of_one_rank_whatever_rank_ends() {
    let signals = [("KILL", 3), ("KILL", 0), ("STOP", 2)];
    block_on(run(&["-tp", "2", "-pp", "2"], 2, &signals));
}

/// Flags with a node's certificate.
fn identity(pki: &Pki, node: &str) -> Vec<String> {
    let Pair { cert, key } = pki.node(node);
    let files = [("--cluster-ca", pki.ca()), ("--cluster-cert", cert), ("--cluster-key", key)];
    files.into_iter().flat_map(|(flag, path)| [flag.into(), path.display().to_string()]).collect()
}

#[test]
fn nodes_with_certificates_draw_the_tokens_of_one_rank_whatever_rank_ends() {
    let pki = Pki::new();
    let identities = ["a", "b"].map(|node| identity(&pki, node));
    let [here, there] =
        identities.each_ref().map(|flags| flags.iter().map(String::as_str).collect::<Vec<_>>());
    // Exchanges and links between nodes, and a peer that ends or falls silent.
    let signals = [("KILL", 3), ("STOP", 2)];
    block_on(run_locked(&["-tp", "2", "-pp", "2"], 2, &signals, [&here, &there]));
    block_on(run_locked(&["-tp", "2"], 1, &[("KILL", 1)], [&here, &there]));
}

#[test]
fn a_node_without_a_certificate_of_the_cluster_does_not_join() {
    let (pki, other) = (Pki::new(), Pki::new());
    let leader = lasting_address().to_string();
    let group = ["--nnodes", "2", "--leader", &leader];
    let start = |flags: &[String], rank| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Node::start(&shipped_model(), &[&group[..], &flags, &["--node-rank", rank, "-tp", "2"]].concat())
    };
    let leading = start(&identity(&pki, "a"), "0");
    let told = |node: Node, expected: &str| {
        let began = clock::now();
        while !node.log().contains(expected) {
            assert!(clock::now().since(began) < Duration::from_secs(30), "{}\n{}", node.log(), leading.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!leading.log().contains("a node joined"), "{}", leading.log());
    };
    told(start(&identity(&other, "c"), "1"), "the leader at");
    told(start(&[], "1"), "the leader at");
    let joining = start(&identity(&pki, "b"), "1");
    let began = clock::now();
    while !leading.log().contains("a node joined") {
        assert!(clock::now().since(began) < Duration::from_secs(30), "{}\n{}", joining.log(), leading.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace with a link to this one; deleted when dropped.
struct Network {
    name: String,
    /// Name of this end of the link.
    link: String,
    /// Addresses of this end and of the other.
    addresses: [String; 2],
}

impl Network {
    /// Creates the namespace; `None` if this process lacks the permission.
    fn new() -> Option<Self> {
        let id = std::process::id() % 10_000;
        let (name, link, other) = (format!("skein-{id}"), format!("sk{id}a"), format!("sk{id}b"));
        let addresses = [1, 2].map(|end| format!("10.{}.{}.{end}", 200 + id / 256 % 50, id % 256));
        let network = Self { name, link, addresses };
        let Self { name, link, addresses: [here, there] } = &network;
        let made = ip(&["netns", "add", name])
            && ip(&["link", "add", link, "type", "veth", "peer", "name", &other, "netns", name])
            && ip(&["addr", "add", &format!("{here}/30"), "dev", link])
            && ip(&["link", "set", link, "up"])
            && ip(&["-n", name, "addr", "add", &format!("{there}/30"), "dev", &other])
            && ip(&["-n", name, "link", "set", &other, "up"])
            && ip(&["-n", name, "link", "set", "lo", "up"]);
        made.then_some(network)
    }

    fn set(&self, state: &str) {
        assert!(ip(&["link", "set", &self.link, state]), "the link is set {state}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.name]);
        ip(&["link", "del", &self.link]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let quiet = Command::new("ip").args(arguments).stderr(Stdio::null()).stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

#[test]
fn a_cut_link_ends_the_group_and_it_comes_back_when_the_link_is_whole() {
    let Some(network) = Network::new() else {
        eprintln!("SKIPPED: no network namespaces here (that needs root and `ip`); no link was cut");
        return;
    };
    block_on(async {
        let (client, model) = (reqwest::Client::new(), wide_model::write());
        let served = [model.path().to_str().unwrap(), "--served-model-name", "skein-7m", "--device", "cpu"];
        let alone = Cluster::serve(SKEIN, &[&served[..], &["--workers", "1"]].concat()).await;
        let expected = run_all(&client, &alone.url).await;
        drop(alone);
        let leader = format!("{}:{}", network.addresses[0], lasting_address().port());
        let group = ["--nnodes", "2", "--leader", &leader, "--group-secret", "a secret"];
        let node = Node::start_in(&network, model.path(), &[&group[..], &["--node-rank", "1"]].concat());
        let cluster = Cluster::serve(SKEIN, &[&served[..], &["-tp", "2"], &group[..]].concat()).await;
        let logs = || format!("{}\nnode 1:\n{}", cluster.log(), node.log());
        let group = wait_for_group(&cluster, &node, 1).await;
        let start = clock::now();
        check(&run_all(&client, &cluster.url).await, &expected, &logs());
        let undisturbed = clock::now().since(start);
        let (seen, ended) = tokio::join!(run_all(&client, &cluster.url), async {
            tokio::time::sleep(undisturbed * 3 / 10).await;
            network.set("down");
            let ended = wait_for_end(&group).await;
            let ended = ended.unwrap_or_else(|threads| panic!("{threads}\n{}", logs()));
            tokio::time::sleep(Duration::from_secs(1)).await;
            network.set("up");
            ended
        });
        println!("the link was cut: all ranks had ended after {ended:?}");
        check(&seen, &expected, &logs());
        wait_for_group(&cluster, &node, 1).await;
    });
}

#[test]
fn nodes_that_disagree_are_refused_with_both_named() {
    block_on(async {
        let other = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(shipped_model()).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), other.path().join(file.file_name())).unwrap();
        }
        let config = other.path().join("config.json");
        let changed = std::fs::read_to_string(&config).unwrap() + "\n";
        std::fs::write(&config, changed).unwrap();
        let leader = lasting_address().to_string();
        let group = ["--nnodes", "2", "--leader", &leader, "--group-secret", "one"];
        let leading = Node::start(&shipped_model(), &[&group[..], &["-tp", "2"]].concat());
        let secret = ["--nnodes", "2", "--leader", &leader, "--group-secret", "two"];
        let shipped = shipped_model();
        for (model, flags, extra, expected) in [
            (other.path(), group, &[][..], ["node 1 has the model", "node 0 has"]),
            (&*shipped, group, &["--block-size", "32"], ["node 1 has --block-size 32", "node 0 has 16"]),
            (&*shipped, group, &["-tp", "4"], ["node 1 has --tensor-parallel-size 4", "node 0 has 2"]),
            (&*shipped, secret, &[], ["a different --group-secret or cluster secret than node 1", "node 0"]),
        ] {
            let mut node = Node::start(model, &[&flags[..], &["--node-rank", "1"], extra].concat());
            let began = clock::now();
            let status = loop {
                if let Some(status) = node.child.try_wait().unwrap() {
                    break status;
                }
                assert!(
                    clock::now().since(began) < Duration::from_secs(30),
                    "{}\n{}",
                    node.log(),
                    leading.log()
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            let log = node.log();
            assert!(!status.success(), "{log}");
            assert!(expected.iter().all(|expected| log.contains(expected)), "{log}");
            assert!(leading.log().contains("refused a node"), "{}", leading.log());
        }
    });
}
