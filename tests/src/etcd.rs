//! Real etcd servers, alone or as a cluster, that tests start, stop, kill, wipe and restart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;
use skein_node::discovery::etcd::{EtcdApi, EtcdClient, EtcdSettings};

use crate::child::{Process, Spec};
use crate::nodes::lasting_address;

/// How long a server may take until it answers, or a cluster until it has a leader.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time limit of a status request; a server that exceeds it counts as stopped or cut off.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Interval at which a server is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments for tests that wait for elections and for leases to expire: half of etcd's defaults.
pub const FAST_TIMING: [&str; 4] = ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// The server's program: `TEST_ETCD`, else `etcd` in the path. If there is none, prints that tests
/// are skipped.
pub fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("TEST_ETCD").map(PathBuf::from);
    let in_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file())
    };
    let found = named.or_else(in_path);
    if found.is_none() {
        eprintln!("SKIPPED: no etcd server on this machine; install etcd-server, or name one in TEST_ETCD");
    }
    found
}

/// One server; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    /// `host:port` for clients.
    pub endpoint: String,
    data: tempfile::TempDir,
}

impl Etcd {
    /// A single server with [`FAST_TIMING`] and `extra` arguments, not started yet. Clients use `scheme`.
    pub fn prepare(program: &Path, scheme: &str, extra: &[String]) -> Self {
        let peer = peer_url();
        let extra = [&FAST_TIMING.map(str::to_owned), extra].concat();
        Self::member(program, "etcd", scheme, &peer, &format!("etcd={peer}"), &extra)
    }

    /// A single server with [`FAST_TIMING`] that is ready.
    pub async fn start(program: &Path) -> Self {
        let mut etcd = Self::prepare(program, "http", &[]);
        etcd.launch();
        etcd.wait_ready(&etcd.settings()).await;
        etcd
    }

    fn member(program: &Path, name: &str, scheme: &str, peer: &str, all: &str, extra: &[String]) -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        let endpoint = lasting_address().to_string();
        let (url, directory) = (format!("{scheme}://{endpoint}"), data.path().display().to_string());
        let arguments = [
            ["--name", name],
            ["--data-dir", &directory],
            ["--listen-client-urls", &url],
            ["--advertise-client-urls", &url],
            ["--listen-peer-urls", peer],
            ["--initial-advertise-peer-urls", peer],
            ["--initial-cluster", all],
        ];
        let arguments =
            arguments.concat().into_iter().map(str::to_owned).chain(extra.iter().cloned()).collect();
        let binary = program.display().to_string();
        let process = Process::prepare(Spec { name: name.to_owned(), binary, arguments, ..Spec::default() });
        Self { process, endpoint, data }
    }

    /// How to reach this server, without user and TLS.
    pub fn settings(&self) -> EtcdSettings {
        EtcdSettings { endpoints: vec![self.endpoint.clone()], ..EtcdSettings::default() }
    }

    /// Starts the process, the first time or again with the data it has.
    pub fn launch(&mut self) {
        self.process.restart();
    }

    /// Waits until a linearizable read succeeds.
    pub async fn wait_ready(&self, settings: &EtcdSettings) {
        self.wait_ready_as(settings, "/").await;
    }

    /// Waits until a linearizable read succeeds for a user that may only read `prefix`.
    pub async fn wait_ready_as(&self, settings: &EtcdSettings, prefix: &str) {
        let client = EtcdClient::new(settings.clone(), 0).await.expect("good settings");
        let start = clock::now();
        while let Err(error) = client.list(prefix).await {
            let waited = clock::now().since(start);
            assert!(waited < READY_WITHIN, "etcd is not ready: {error}\n{}", self.process.log());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a signal by name: "STOP", "CONT".
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Kills the process with SIGKILL; its data stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Deletes the data of a server that does not run.
    pub fn wipe(&self) {
        assert_eq!(self.process.pid(), None, "a running server keeps its data");
        std::fs::remove_dir_all(self.data.path()).expect("its data can be removed");
    }

    /// The server's own member id and its leader's, if it answers.
    async fn status(&self, http: &reqwest::Client) -> Option<(String, String)> {
        let url = format!("http://{}/v3/maintenance/status", self.endpoint);
        let request = http.post(url).json(&json!({})).timeout(ANSWERS_WITHIN);
        let answer: Value = request.send().await.ok()?.json().await.ok()?;
        let id = answer["header"]["member_id"].as_str()?.to_owned();
        Some((id, answer["leader"].as_str()?.to_owned()))
    }
}

/// Several servers that form one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    /// At least one.
    pub servers: Vec<Etcd>,
    http: reqwest::Client,
}

impl EtcdCluster {
    /// Starts `count` servers with `extra` arguments and waits until they have a leader.
    pub async fn start(program: &Path, count: usize, extra: &[&str]) -> Self {
        let peers: Vec<String> = (0..count).map(|_| peer_url()).collect();
        let named = peers.iter().enumerate().map(|(index, peer)| (format!("etcd-{index}"), peer));
        let all: Vec<String> = named.clone().map(|(name, peer)| format!("{name}={peer}")).collect();
        let extra: Vec<String> = extra.iter().map(|&argument| argument.to_owned()).collect();
        let member = |(name, peer): (String, &String)| {
            Etcd::member(program, &name, "http", peer, &all.join(","), &extra)
        };
        let mut cluster = Self { servers: named.map(member).collect(), http: reqwest::Client::new() };
        cluster.servers.iter_mut().for_each(Etcd::launch);
        cluster.wait_leader(None).await;
        cluster
    }

    /// How to reach all servers, without user and TLS.
    pub fn settings(&self) -> EtcdSettings {
        let endpoints = self.servers.iter().map(|server| server.endpoint.clone()).collect();
        EtcdSettings { endpoints, ..EtcdSettings::default() }
    }

    /// The value of `--discovery` for this cluster.
    pub fn source(&self) -> String {
        format!("etcd://{}", self.settings().endpoints.join(","))
    }

    /// Index of the server that a majority considers the leader, if there is one.
    pub async fn leader(&self) -> Option<usize> {
        let mut ids = Vec::new();
        let mut votes = Vec::new();
        for server in &self.servers {
            let status = server.status(&self.http).await;
            let (id, vote) = status.map_or((None, None), |(id, leader)| (Some(id), Some(leader)));
            ids.push(id);
            votes.extend(vote);
        }
        let majority = self.servers.len() / 2 + 1;
        let leads = |id: &String| votes.iter().filter(|&vote| vote == id).count() >= majority;
        ids.iter().position(|id| id.as_ref().is_some_and(leads))
    }

    /// Waits for a leader other than `not`.
    ///
    /// # Panics
    /// If there is none in time; the message holds the logs.
    pub async fn wait_leader(&self, not: Option<usize>) -> usize {
        let start = clock::now();
        while clock::now().since(start) < READY_WITHIN {
            match self.leader().await {
                Some(leader) if Some(leader) != not => return leader,
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
        let logs: Vec<String> = self.servers.iter().map(|server| server.process.log()).collect();
        panic!("etcd has no leader after {READY_WITHIN:?}:\n{}", logs.join("\n\n"));
    }
}

fn peer_url() -> String {
    format!("http://{}", lasting_address())
}
