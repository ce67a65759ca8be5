//! Adapters on ranks: on emulated GPUs, and over several machines.

#![allow(clippy::unwrap_used)] // a test may fail

use std::process::Command;
use std::time::Duration;

use skein_node::clock;
use skein_tests::check::compare;
use skein_tests::client::History;
use skein_tests::nodes::lasting_address;
use skein_tests::process::{Cluster, free_port};

use crate::adapters::{Client, adapters_for, module};
use crate::gpu_groups::CUDA;
use crate::moves::{Process, wait_for_workers};
use crate::nodes::{Node, wait_for_group};
use crate::{SKEIN, block_on, wide_model};

const FLAGS: [&str; 4] = ["--enable-lora", "--allow-runtime-lora-updating", "--max-loras", "2"];
/// Tokens of a stream.
const TOKENS: u32 = 60;

fn check(seen: &[History], expected: &[History], logs: &str) {
    for (nth, (seen, expected)) in seen.iter().zip(expected).enumerate() {
        let verdict = compare(seen, expected);
        assert!(verdict.is_clean() && seen.complete(), "stream {nth}: {verdict:?} {seen:?}\n{logs}");
    }
}

async fn undisturbed(client: &Client, names: &[&str]) -> Vec<History> {
    let mut all = Vec::new();
    for name in names {
        all.push(client.stream_of(name, TOKENS).await);
    }
    all
}

/// Waits until the worker at `address` reports these adapters of requests, by the state of the requests.
async fn wait_until(address: &str, state: &str, names: &str) {
    let (client, began) = (reqwest::Client::new(), clock::now());
    loop {
        let answer = client.get(format!("http://{address}/metrics")).send().await.unwrap();
        let metrics = answer.text().await.unwrap();
        if metrics.contains(&format!("{state}_lora_adapters=\"{names}\"")) {
            return;
        }
        assert!(clock::now().since(began) < Duration::from_secs(30), "{names} are not {state}: {metrics}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn adapters_are_unloaded_under_load_on_gpus_and_no_stream_is_lost() {
    let Some(libraries) = skein_cuda_emulation::directory() else {
        eprintln!("SKIPPED: no CUDA emulation; install a C++ compiler (g++) and build again");
        return;
    };
    let variables = [("LD_LIBRARY_PATH", libraries.to_str().unwrap()), ("EMU_DEVICES", "2")];
    block_on(async {
        let directory = wide_model::write();
        let model = directory.path().to_str().unwrap();
        let made = adapters_for(directory.path(), 3);
        let modules = ["a0", "a1"].map(|name| module(made.path(), name));
        let port = free_port().to_string();
        let (address, url) = (lasting_address().to_string(), format!("http://127.0.0.1:{port}"));
        let named = [model, "--served-model-name", "wide"];
        let of_router = ["--port", &port, "--workers", &address, FLAGS[1]];
        let _router = Process::start(&[&["router"], &named[..], &of_router].concat());
        let client = Client::of(&url);
        let mut expected: Vec<History> = Vec::new();
        for shape in [&[][..], &["-tp", "2"], &["-pp", "2"]] {
            let mut flags = [&["worker"], &named[..], &CUDA, &FLAGS, shape, &["--listen", &address]].concat();
            modules.iter().for_each(|module| flags.extend(["--lora-modules", module]));
            let worker = Process::start_with(&flags, &variables);
            wait_for_workers(&url, 1).await;
            assert_eq!(client.load("a2", &made.path().join("a2")).await.0, 200);
            let names = ["a0", "a1", "a2", "wide"];
            if expected.is_empty() {
                expected = undisturbed(&client, &names).await;
                let all = expected.iter().map(|history| &history.choices[&0].token_ids);
                let all: std::collections::BTreeSet<_> = all.collect();
                assert_eq!(all.len(), names.len(), "each has its own answer");
            }
            // Two adapters may be in use. The third one loses its name while it waits, and gets the slot of
            // one that has lost its name while it runs.
            let stream = async |name: &str| (client.stream_of(name, TOKENS).await, clock::now());
            let waits = async {
                wait_until(&address, "running", "a0,a1").await;
                stream("a2").await
            };
            let unload = async {
                wait_until(&address, "waiting", "a2").await;
                for name in ["a0", "a1", "a2"] {
                    let (status, told) = client.unload(name).await;
                    assert!(status == 200, "{status} {told}");
                }
                clock::now()
            };
            let (a0, a1, a2, wide, unloaded) =
                tokio::join!(stream("a0"), stream("a1"), waits, stream("wide"), unload);
            let all = [a0, a1, a2, wide];
            assert!(all[..3].iter().all(|(_, ended)| *ended > unloaded), "they were unloaded under load");
            check(&all.map(|(history, _)| history), &expected, &format!("{shape:?}"));
            assert_eq!(client.models().await.len(), 1);
            assert_eq!(client.stream_of("a0", 1).await.status, 404);
            // They are loaded again for the next worker, which would not serve them otherwise.
            for name in ["a0", "a1"] {
                assert_eq!(client.load(name, &made.path().join(name)).await.0, 200);
            }
            check(&undisturbed(&client, &["a1"]).await, &expected[1..2], &format!("{shape:?}"));
            worker.kill();
            wait_for_workers(&url, 0).await;
        }
    });
}

#[test]
fn ranks_of_two_machines_serve_and_merge_adapters_with_the_tokens_of_one_process() {
    block_on(async {
        let directory = wide_model::write();
        let model = directory.path().to_str().unwrap();
        let made = adapters_for(directory.path(), 3);
        let modules = ["a0", "a1", "a2"].map(|name| module(made.path(), name));
        let fixed = [model, "--served-model-name", "wide", "--device", "cpu"];
        let served: Vec<&str> =
            FLAGS.into_iter().chain(modules.iter().flat_map(|module| ["--lora-modules", module])).collect();
        let merged = ["--lora-modules", &modules[1]];
        let alone = Cluster::serve(SKEIN, &[&fixed[..], &["--workers", "1"], &served].concat()).await;
        let names = ["a0", "a1", "a2", "wide", "a0"];
        let expected = undisturbed(&Client::of(&alone.url), &names).await;
        drop(alone);
        let alone = Cluster::serve(SKEIN, &[&fixed[..], &["--workers", "1"], &merged].concat()).await;
        // The merged adapter is served by the model's name.
        let of_merged = undisturbed(&Client::of(&alone.url), &["wide"]).await;
        drop(alone);
        for (shape, each) in [(&["-tp", "2"][..], 1), (&["-tp", "2", "-pp", "2"], 2)] {
            for (flags, names, expected) in
                [(&served[..], &names[..], &expected), (&merged[..], &["wide"], &of_merged)]
            {
                let leader = lasting_address().to_string();
                let group = ["--nnodes", "2", "--leader", &leader];
                let node = Node::start_by(
                    Command::new(SKEIN),
                    "cpu",
                    directory.path(),
                    &[&group[..], &["--node-rank", "1"]].concat(),
                );
                let arguments = [&fixed[..], &["--threads", "2"], shape, &group, flags].concat();
                let cluster = Cluster::serve(SKEIN, &arguments).await;
                wait_for_group(&cluster, &node, each).await;
                let logs = format!("{}\nnode 1:\n{}", cluster.log(), node.log());
                check(&undisturbed(&Client::of(&cluster.url), names).await, expected, &logs);
            }
        }
    });
}

/// A command that runs `skein` where `from` is seen at `to`; `None` without the permission for that.
fn with_mounted(from: &std::path::Path, to: &std::path::Path) -> Option<Command> {
    let mounts = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("mount --bind \"$0\" \"$1\" && {then}")]);
        command.arg(from).arg(to);
        command
    };
    let is_allowed = mounts("true").output().is_ok_and(|output| output.status.success());
    let mut command = mounts("shift && exec \"$@\"");
    command.arg(SKEIN);
    is_allowed.then_some(command)
}

#[test]
fn a_machine_without_the_same_adapter_is_named_when_it_is_loaded() {
    block_on(async {
        let directory = wide_model::write();
        let model = directory.path().to_str().unwrap();
        let made = adapters_for(directory.path(), 2);
        let (same, other, empty) =
            (made.path().join("a0"), made.path().join("a1"), tempfile::tempdir().unwrap());
        let same_text = same.to_str().unwrap();
        for (there, words) in [
            (empty.path(), ["rank 1 on node 1 at 127.0.0.1: ", "adapter_config.json"]),
            (
                other.as_path(),
                ["rank 1 on node 1 at 127.0.0.1: ", "give all machines of the group equal copies"],
            ),
        ] {
            let Some(command) = with_mounted(there, &same) else {
                eprintln!("SKIPPED: no mount namespaces here (that needs root and `unshare`)");
                return;
            };
            let leader = lasting_address().to_string();
            let group = ["--nnodes", "2", "--leader", &leader];
            let arguments = [&group[..], &["--node-rank", "1"]].concat();
            let node = Node::start_by(command, "cpu", directory.path(), &arguments);
            let fixed =
                [model, "--served-model-name", "wide", "--device", "cpu", "--threads", "2", "-tp", "2"];
            let cluster = Cluster::serve(SKEIN, &[&fixed[..], &group, &FLAGS].concat()).await;
            wait_for_group(&cluster, &node, 1).await;
            let client = Client::of(&cluster.url);
            let (status, told) = client.load("new", &same).await;
            assert!(status == 400, "{status} {told}");
            words.iter().for_each(|word| assert!(told.contains(word), "{told} says {word:?}"));
            assert!(told.contains(same_text), "{told}");
            assert_eq!(client.models().await.len(), 1);
            let history = client.stream_of("wide", 8).await;
            assert!(history.complete(), "the group goes on: {history:?}\n{}", cluster.log());
        }
    });
}
