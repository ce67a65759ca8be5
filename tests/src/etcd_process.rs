//! Real etcd servers, one or three, that a scenario kills and starts again with their data.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;

use crate::child::{Process, Spec};
use crate::nodes::lasting_address;

/// How long a server may take to be healthy, and a cluster to have a leader.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);
/// A server that is stopped or cut off does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// A cluster of etcd servers on loopback.
#[derive(Debug)]
pub struct Etcd {
    /// One or more.
    pub servers: Vec<Process>,
    urls: Vec<String>,
    http: reqwest::Client,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// Starts `count` servers and waits for their leader; `None` where no etcd is installed: `TEST_ETCD` names one,
    /// else it is looked for where commands are.
    pub async fn start(count: usize) -> Option<Self> {
        let binary = std::env::var("TEST_ETCD").unwrap_or_else(|_| "etcd".into());
        let asked =
            Command::new(&binary).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !asked.is_ok_and(|status| status.success()) {
            return None;
        }
        let data = tempfile::tempdir().expect("a temporary directory");
        let url = |_| format!("http://{}", lasting_address());
        let (urls, peers): (Vec<String>, Vec<String>) =
            ((0..count).map(url).collect(), (0..count).map(url).collect());
        let all: Vec<String> =
            peers.iter().enumerate().map(|(index, peer)| format!("etcd-{index}={peer}")).collect();
        let mut servers = Vec::new();
        for (index, (url, peer)) in urls.iter().zip(&peers).enumerate() {
            let name = format!("etcd-{index}");
            let directory = data.path().join(&name).display().to_string();
            let arguments = [
                ["--name", &name],
                ["--data-dir", &directory],
                ["--listen-client-urls", url],
                ["--advertise-client-urls", url],
                ["--listen-peer-urls", peer],
                ["--initial-advertise-peer-urls", peer],
                ["--initial-cluster", &all.join(",")],
            ];
            let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
            servers.push(Process::start(Spec { name, binary: binary.clone(), arguments, ..Spec::default() }));
        }
        let etcd = Self { servers, urls, http: reqwest::Client::new(), _data: data };
        etcd.wait_leader(None).await;
        Some(etcd)
    }

    /// For `--discovery`.
    pub fn source(&self) -> String {
        let hosts: Vec<&str> = self.urls.iter().filter_map(|url| url.strip_prefix("http://")).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Which server leads, as most of them see it.
    pub async fn leader(&self) -> Option<usize> {
        let mut votes: Vec<usize> = Vec::new();
        let mut members = Vec::new();
        for url in &self.urls {
            members.push(self.status(url).await);
        }
        let leads = |leader: &str| {
            members.iter().flatten().find(|(_, member, _)| member == leader).map(|(index, ..)| *index)
        };
        for (_, _, leader) in members.iter().flatten() {
            votes.extend(leads(leader));
        }
        let majority = self.urls.len() / 2 + 1;
        (0..self.urls.len()).find(|index| votes.iter().filter(|&vote| vote == index).count() >= majority)
    }

    /// Waits for a leader other than `not`.
    ///
    /// # Panics
    /// With the logs when there is none.
    pub async fn wait_leader(&self, not: Option<usize>) -> usize {
        let start = clock::now();
        while clock::now().since(start) < HEALTHY_WITHIN {
            match self.leader().await {
                Some(leader) if Some(leader) != not => return leader,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        let logs: Vec<String> = self.servers.iter().map(Process::log).collect();
        panic!("etcd has no leader after {HEALTHY_WITHIN:?}:\n{}", logs.join("\n\n"));
    }

    /// A server's place in our list, its id, and the id of the leader it knows.
    async fn status(&self, url: &str) -> Option<(usize, String, String)> {
        let ask =
            self.http.post(format!("{url}/v3/maintenance/status")).json(&json!({})).timeout(ANSWERS_WITHIN);
        let answer: Value = ask.send().await.ok()?.json().await.ok()?;
        let index = self.urls.iter().position(|known| known == url)?;
        let id = answer["header"]["member_id"].as_str()?.to_owned();
        Some((index, id, answer["leader"].as_str()?.to_owned()))
    }
}
