//! Streams that move between workers with different numbers of ranks sample the same tokens.

#![allow(clippy::unwrap_used)] // a test may fail

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;
use skein_tests::client::History;
use skein_tests::nodes::lasting_address;
use skein_tests::process::{free_port, send_signal};

use crate::chaos::{STREAMS, difference, run_all};
use crate::{SKEIN, block_on, wide_model};

/// Time limit for a process to become ready.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A process of the cluster; killed when dropped.
pub struct Process(Child);

impl Process {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts `skein` with some environment variables.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(SKEIN);
        command.envs(variables.iter().copied());
        let quiet = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Self(quiet.stderr(Stdio::null()).spawn().unwrap())
    }

    fn worker(model: &str, address: &str, ranks: &[&str]) -> Self {
        let fixed = ["worker", model, "--served-model-name", "skein-7m", "--device", "cpu", "--threads", "2"];
        Self::start(&[&fixed[..], &["--listen", address], ranks].concat())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(mut self) {
        send_signal(self.0.id(), "KILL");
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the router counts `count` ready workers.
pub async fn wait_for_workers(url: &str, count: usize) {
    let client = reqwest::Client::new();
    let began = clock::now();
    while clock::now().since(began) < READY_WITHIN {
        if let Ok(answer) = client.get(format!("{url}/metrics")).send().await
            && let Ok(text) = answer.text().await
            && ready_workers(&text) == Some(count)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("there are not {count} ready workers");
}

/// The router's gauge of ready workers.
fn ready_workers(metrics: &str) -> Option<usize> {
    let value = metrics.lines().find(|line| line.starts_with("skein_workers_ready"))?.rsplit_once(' ')?.1;
    value.parse::<f64>().ok().map(|count| count as usize)
}

fn check(seen: &[History], expected: &[History], what: &str) {
    let differences: Vec<String> =
        (0..STREAMS).filter_map(|index| difference(index, &seen[index], &expected[index])).collect();
    assert!(differences.is_empty(), "{what}: {}", differences.join("\n"));
}

#[test]
fn streams_move_from_one_rank_to_four_and_to_stages_and_back() {
    block_on(async {
        let directory = wide_model::write();
        let model = directory.path().to_str().unwrap();
        let port = free_port().to_string();
        let addresses = [lasting_address(), lasting_address()].map(|address| address.to_string());
        let workers = addresses.join(",");
        let _router = Process::start(&[
            "router",
            model,
            "--served-model-name",
            "skein-7m",
            "--port",
            &port,
            "--workers",
            &workers,
        ]);
        let (client, url) = (reqwest::Client::new(), format!("http://127.0.0.1:{port}"));
        let mut running = Process::worker(model, &addresses[0], &[]);
        wait_for_workers(&url, 1).await;
        let start = clock::now();
        let expected = run_all(&client, &url).await;
        let undisturbed = clock::now().since(start);
        let shapes: [&[&str]; 4] = [&["-tp", "4"], &[], &["-tp", "2", "-pp", "2"], &[]];
        for (round, shape) in shapes.into_iter().enumerate() {
            let next = Process::worker(model, &addresses[(round + 1) % 2], shape);
            wait_for_workers(&url, 2).await;
            let seen = tokio::spawn({
                let (client, url) = (client.clone(), url.clone());
                async move { run_all(&client, &url).await }
            });
            // The streams of the killed worker move to the other.
            tokio::time::sleep(undisturbed * 3 / 10).await;
            running.kill();
            running = next;
            check(&seen.await.unwrap(), &expected, &format!("round {round}, to {shape:?}"));
            wait_for_workers(&url, 1).await;
        }
    });
}
