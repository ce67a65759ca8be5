//! Workers of two ranks on emulated GPUs give the tokens of one GPU, even if a rank is killed during streams,
//! and so do ranks on two nodes. Not yet run on GPUs.

use std::time::Duration;

use serde_json::{Value, json};
use skein_tests::client::{self, History};
use skein_tests::nodes::lasting_address;
use skein_tests::process::{Cluster, send_signal};

use crate::chaos::difference;
use crate::groups::{wait_for_end, wait_for_groups};
use crate::nodes::{Node, wait_for_group};
use crate::{SKEIN, block_on, wide_model};

const STREAMS: usize = 4;

/// Flags of a worker on an emulated GPU.
pub const CUDA: [&str; 12] = [
    "--device",
    "cuda",
    "--batch-invariant",
    "--enforce-eager",
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "32",
    "--max-model-len",
    "128",
    "--kv-cache-memory-bytes",
    "8388608",
];

fn request(index: usize) -> Value {
    json!({
        "model": "wide", "prompt": format!("def function_{index}(self, value):"), "max_tokens": 16, "seed": index,
        "temperature": 0.8, "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true,
        "ignore_eos": true,
    })
}

async fn run_all(url: &str) -> Vec<History> {
    let client = reqwest::Client::new();
    let url = format!("{url}/v1/completions");
    let bodies: Vec<Value> = (0..STREAMS).map(request).collect();
    let streams = bodies.iter().map(|body| client::stream(&client, &url, body));
    let all = futures::future::join_all(streams).await;
    all.into_iter().map(|history| history.expect("the connection stays")).collect()
}

fn check(seen: &[History], expected: &[History], cluster: &Cluster) {
    let pairs = seen.iter().zip(expected).enumerate();
    let differences: Vec<String> =
        pairs.filter_map(|(i, (seen, expected))| difference(i, seen, expected)).collect();
    assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), cluster.log());
}

/// A cluster that serves the model in the directory `model` on `devices` emulated GPUs.
async fn serve(libraries: &str, model: &str, more: &[&str], devices: &str) -> Cluster {
    let common = [&["--model", model, "--served-model-name", "wide"][..], &CUDA].concat();
    let variables = [("LD_LIBRARY_PATH", libraries), ("EMU_DEVICES", devices)];
    Cluster::serve_with(SKEIN, &[&common[..], more].concat(), &variables).await
}

/// Runs the streams while rank 1 of `group` is killed, and waits until the group has ended.
async fn kill_a_rank(cluster: &Cluster, group: &[u32]) -> Vec<History> {
    let (seen, ended) = tokio::join!(run_all(&cluster.url), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        send_signal(group[1], "KILL");
        let ended = wait_for_end(group).await;
        ended.unwrap_or_else(|threads| panic!("{threads}\n{}", cluster.log()))
    });
    println!("a rank on a GPU killed: the group had ended after {ended:?}");
    seen
}

#[test]
fn two_gpus_draw_the_tokens_of_one_also_when_a_rank_is_killed() {
    let Some(libraries) = skein_cuda_emulation::directory() else {
        eprintln!("SKIPPED: no CUDA emulation; install a C++ compiler (g++) and build again");
        return;
    };
    let libraries = libraries.to_str().expect("a plain path");
    block_on(async {
        let model = wide_model::write();
        let model = model.path().to_str().expect("a plain path");
        let alone = serve(libraries, model, &["--workers", "1"], "1").await;
        let expected = run_all(&alone.url).await;
        drop(alone);
        // With ranks as in the output of `--plan` below. With stages, one has the head and another three of
        // the four layers.
        for (shape, blocks) in [("-tp", 512), ("-pp", 341)] {
            let cluster = serve(libraries, model, &[shape, "2"], "4").await;
            let log = cluster.log();
            let is_logged = [format!("kv_blocks={blocks}"), format!("\"kv_blocks\":{blocks}")];
            assert!(is_logged.iter().any(|text| log.contains(text)), "{log}");
            check(&run_all(&cluster.url).await, &expected, &cluster);
            let group = wait_for_groups(&cluster, 2).await[0];
            check(&kill_a_rank(&cluster, &group).await, &expected, &cluster);
            wait_for_groups(&cluster, 2).await;
        }
    });
}

/// One layer over two nodes needs NCCL between them; with a stage on each, it connects the ranks of a node.
#[test]
fn gpus_of_two_nodes_draw_the_tokens_of_one_also_when_a_rank_is_killed() {
    let Some(libraries) = skein_cuda_emulation::directory() else { return };
    let libraries = libraries.to_str().expect("a plain path");
    block_on(async {
        let directory = wide_model::write();
        let model = directory.path().to_str().expect("a plain path");
        let alone = serve(libraries, model, &["--workers", "1"], "1").await;
        let expected = run_all(&alone.url).await;
        drop(alone);
        for (shape, each) in [(&["-tp", "2"][..], 1), (&["-tp", "2", "-pp", "2"], 2)] {
            let leader = lasting_address().to_string();
            let nodes = ["--nnodes", "2", "--leader", &leader];
            let mut command = std::process::Command::new(SKEIN);
            command.env("LD_LIBRARY_PATH", libraries).env("EMU_DEVICES", each.to_string());
            command.env("EMU_HOST", "1");
            let node = Node::start_by(
                command,
                "cuda",
                directory.path(),
                &[&nodes[..], &["--node-rank", "1"]].concat(),
            );
            let cluster = serve(libraries, model, &[shape, &nodes[..]].concat(), &each.to_string()).await;
            let group = wait_for_group(&cluster, &node, each).await;
            check(&run_all(&cluster.url).await, &expected, &cluster);
            check(&kill_a_rank(&cluster, &group).await, &expected, &cluster);
            wait_for_group(&cluster, &node, each).await;
        }
    });
}

#[test]
fn more_ranks_than_gpus_are_refused() {
    let Some(libraries) = skein_cuda_emulation::directory() else { return };
    let model = wide_model::write();
    let model = model.path().to_str().expect("a plain path");
    let said = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = std::process::Command::new(SKEIN);
        command.args(["worker", "--model", model, "--device", "cuda"]).args(arguments);
        command.env("LD_LIBRARY_PATH", &libraries).envs(variables.iter().copied());
        let output = command.stdin(std::process::Stdio::null()).output().expect("it ends");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let of_two = said(&[("EMU_DEVICES", "2")], &["-tp", "4"]);
    assert!(of_two.contains("need the GPUs 0 to 3 on each machine, and this process sees 2"), "{of_two}");
    let chosen = said(&[("EMU_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "3")], &["-tp", "2"]);
    assert!(chosen.contains("this process sees 1"), "{chosen}");
    let mut plan = std::process::Command::new(SKEIN);
    plan.args([
        "worker",
        "--model",
        model,
        "--device",
        "cuda",
        "-tp",
        "2",
        "--plan",
        "--max-model-len",
        "128",
    ]);
    plan.args(["--kv-cache-memory-bytes", "8388608"]).env("LD_LIBRARY_PATH", &libraries);
    let output = plan.output().expect("it ends");
    let planned = String::from_utf8_lossy(&output.stdout).into_owned();
    // Two of four KV heads of 32 values, 4 layers, keys and values: 16 KiB a block of 16 tokens.
    assert!(planned.contains("512 blocks, 8192 tokens, 64 sequences"), "{planned} {output:?}");
    let ranks = planned.lines().filter(|line| line.contains("8 MiB")).count();
    assert_eq!(ranks, 2, "{planned}");
    let staged = said(&[("EMU_DEVICES", "3")], &["-tp", "2", "--pipeline-parallel-size", "2"]);
    assert!(staged.contains("--pipeline-parallel-size 2 need the GPUs 0 to 3"), "{staged}");
}
