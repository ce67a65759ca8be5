//! `skein doctor` on set-ups that are broken for real: each is named, with what to do.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use skein_node::discovery::etcd::{EtcdApi, EtcdClient, Record, prefix};
use skein_tests::child::{Process, Spec};
use skein_tests::etcd::{self, Etcd};
use skein_tests::process::{Cluster, free_port, shipped_model};

use crate::{SKEIN, block_on};

/// Limit for waits that usually take far less.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `skein doctor` with `arguments` and only the given `SKEIN_` variables.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("sh");
    // Machines allow different numbers of descriptors, and a few is one of the set-ups.
    command
        .args(["-c", "ulimit -n ${DESCRIPTORS:-4096}; exec \"$0\" doctor --device cpu \"$@\"", SKEIN])
        .args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("skein runs")
}

/// The checks that did not end well, as `area/name: found -> fix`.
fn problems(arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let output = doctor(&[&["--json"], arguments].concat(), variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(output.status.success(), report["healthy"] == true, "{text}");
    let all = report["checks"].as_array().expect("checks");
    // What surprises on the machine that runs this test is not what it is about.
    let of_test = |check: &Value| {
        check["status"] == "warn" && check["area"] == "this machine" && check["name"] != "cache directory"
    };
    let bad = all.iter().filter(|check| check["status"] != "ok" && !of_test(check));
    bad.map(|check| {
        let part =
            |name: &str| check[name].as_str().unwrap_or_else(|| panic!("{name} of {check}")).to_owned();
        format!("{} {}/{}: {} -> {}", part("status"), part("area"), part("name"), part("found"), part("fix"))
    })
    .collect()
}

/// Checks that there is one problem, with all of `words`.
fn check(arguments: &[&str], variables: &[(&str, &str)], words: &[&str]) {
    let found = problems(arguments, variables);
    assert_eq!(found.len(), 1, "{arguments:?}: {found:#?}");
    words.iter().for_each(|word| assert!(found[0].contains(word), "{arguments:?}: {word}: {}", found[0]));
}

/// A copy of the shipped model's directory, to be broken.
fn model(in_directory: &Path, name: &str) -> PathBuf {
    let copy = in_directory.join(name);
    fs::create_dir(&copy).expect("a directory");
    for entry in fs::read_dir(shipped_model()).expect("it is there").flatten() {
        if entry.path().extension().is_some_and(|end| end == "json" || end == "safetensors") {
            fs::copy(entry.path(), copy.join(entry.file_name())).expect("a copy");
        }
    }
    copy
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut tree = serde_json::from_slice(&fs::read(file).expect("a file")).expect("JSON");
    change(&mut tree);
    fs::write(file, tree.to_string()).expect("written");
}

#[test]
fn a_healthy_machine_is_called_healthy() {
    let output = doctor(&["--port", "0"], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for expected in
        ["this machine", "settings", "model", "the shipped model", "renders a greeting", "No problem found"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn broken_settings_and_machines_are_named() {
    let free = ["--port", "0"];
    check(&free, &[("SKEIN_PROT", "1")], &["fail settings/values", "did you mean SKEIN_PORT?"]);
    check(&["--port", "99999"], &[], &["fail settings/values", "99999 is out of range"]);
    check(
        &["--config", "/nowhere/skein.toml"],
        &[],
        &["fail settings/file", "/nowhere/skein.toml", "correct --config"],
    );
    check(
        &[&free[..], &["--host", "0.0.0.0"]].concat(),
        &[],
        &["warn settings/exposure", "without a key", "SKEIN_API_KEY"],
    );
    check(
        &free,
        &[("DESCRIPTORS", "40")],
        &["fail this machine/descriptors", "40 for each process", "ulimit -n"],
    );
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let us = format!("(process {})", std::process::id());
    check(&["--port", &port], &[], &["fail settings/address", "is in use by", &us, "choose another port"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let cache = [("XDG_CACHE_HOME", file.path().to_str().expect("UTF-8"))];
    let found = problems(&[&free[..], &[&shipped_model().display().to_string()]].concat(), &cache);
    assert!(found[0].contains("warn this machine/cache directory"), "{found:?}");
}

#[test]
fn broken_models_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let broken = |name: &str, break_it: &dyn Fn(&Path), words: &[&str]| {
        let model = model(directory.path(), name);
        break_it(&model);
        check(&[&model.display().to_string(), "--port", "0"], &[], words);
        fs::remove_dir_all(model).expect("it is ours");
    };
    let cut = |model: &Path| {
        let file = fs::OpenOptions::new().write(true).open(model.join("model.safetensors")).expect("a file");
        file.set_len(5 << 20).expect("it is cut");
    };
    broken("cut", &cut, &["fail model/weights", "model.safetensors", "copy or download the model again"]);
    let lose_shards = |model: &Path| {
        fs::rename(model.join("model.safetensors"), model.join("model-00001-of-00003.safetensors"))
            .expect("renamed");
        let map = r#"{"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors",
            "c": "model-00003-of-00003.safetensors"}}"#;
        fs::write(model.join("model.safetensors.index.json"), map).expect("written");
    };
    broken(
        "shards",
        &lose_shards,
        &[
            "fail model/weights",
            "2 file(s)",
            "model-00002-of-00003.safetensors, model-00003-of-00003.safetensors",
        ],
    );
    let other_architecture = |model: &Path| {
        edit(&model.join("config.json"), |config| {
            config["model_type"] = "mamba".into();
            config["architectures"] = serde_json::json!(["MambaForCausalLM"]);
        });
    };
    broken("mamba", &other_architecture, &["fail model/weights", "mamba", "page Models"]);
    let bad_template = |model: &Path| {
        edit(&model.join("tokenizer_config.json"), |config| {
            config["chat_template"] = "{{ messages[0].content | no_such_filter }}".into();
        });
    };
    broken("template", &bad_template, &["fail model/", "no_such_filter", "--chat-template"]);
    let raises = |model: &Path| {
        edit(&model.join("tokenizer_config.json"), |config| {
            config["chat_template"] = "{{ raise_exception('only on Sundays') }}".into();
        });
    };
    broken("raises", &raises, &["fail model/chat template", "only on Sundays", "--chat-template FILE"]);
    let small_vocabulary = |model: &Path| {
        edit(&model.join("config.json"), |config| config["vocab_size"] = 2000.into());
    };
    let model = model(directory.path(), "vocabulary");
    small_vocabulary(&model);
    let found = problems(&[&model.display().to_string(), "--port", "0"], &[]);
    assert!(found.iter().any(|it| it.contains("fail model/tokenizer")), "{found:#?}");
    assert!(found.iter().any(|it| it.contains("fail model/weights") && it.contains("2000")), "{found:#?}");
    check(
        &["--port", "0", "--kv-cache-memory-bytes", "500TiB"],
        &[],
        &["fail model/weights", "does not fit", "lower it"],
    );
    let gguf = directory.path().join("cut.gguf");
    let whole = fs::read(skein_golden::gguf("chat")).expect("the file is there");
    fs::write(&gguf, &whole[..whole.len() / 2]).expect("a file");
    check(&[&gguf.display().to_string(), "--port", "0"], &[], &["fail model/model", "cut.gguf is damaged"]);
    let hub = directory.path().display().to_string();
    check(
        &["--port", "0", "someone/nothing"],
        &[("HF_HUB_CACHE", &hub)],
        &["warn model/model", "is not in", "skein pull someone/nothing"],
    );
}

/// A server that answers 404 to everything.
fn another_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ =
                client.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    port
}

fn start(arguments: &[&str]) -> Process {
    let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
    let (name, binary) = ("skein".to_owned(), SKEIN.to_owned());
    Process::start(Spec { name, binary, arguments, ..Spec::default() })
}

#[test]
fn what_is_wrong_with_a_server_is_named() {
    block_on(async {
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        check(
            &["--url", &at(free_port())],
            &[],
            &["fail server/connection", "refuses connections", "start the server"],
        );
        check(&["--url", &at(another_server())], &[], &["fail server/server", "404", "not Skein"]);
        check(&["--url", "ftp://127.0.0.1"], &[], &["fail server/URL", "http://127.0.0.1:8000"]);

        let cluster =
            Cluster::serve(SKEIN, &["--device", "fake", "--workers", "1", "--api-key", "sesame"]).await;
        assert!(
            problems(&["--url", &cluster.url, "--api-key", "sesame"], &[]).is_empty(),
            "nothing is wrong"
        );
        check(&["--url", &cluster.url], &[], &["fail server/key", "requires a key", "SKEIN_API_KEY"]);
        check(
            &["--url", &cluster.url],
            &[("SKEIN_API_KEY", "guess")],
            &["fail server/key", "refuses this key"],
        );
        let other = ["--url", &cluster.url, "--api-key", "sesame", "--served-model-name", "llama"];
        check(&other, &[], &["fail server/models", "`llama` is not served there, only skein-7m"]);

        let worker = format!("127.0.0.1:{}", free_port());
        let model = shipped_model().display().to_string();
        let mut process = start(&["worker", &model, "--device", "fake", "--listen", &worker]);
        process.wait_log("worker is ready", TIMEOUT).await;
        check(
            &["--url", &format!("http://{worker}")],
            &[],
            &["fail server/server", "port of a worker", "router"],
        );

        let (port, nobody) = (free_port(), format!("127.0.0.1:{}", free_port()));
        let mut router = start(&["router", &model, "--port", &port.to_string(), "--workers", &nobody]);
        router.wait_port(([127, 0, 0, 1], port).into(), TIMEOUT).await;
        check(&["--url", &at(port)], &[], &["fail server/workers", "0 of 1 workers", "reaches their ports"]);
    });
}

#[test]
fn what_is_wrong_with_a_cluster_is_named() {
    let nobody = format!("etcd://127.0.0.1:{}", free_port());
    check(&["--discovery", &nobody], &[], &["fail cluster/etcd", "refused", "start etcd"]);
    let Some(program) = etcd::binary() else { return };
    block_on(async {
        let etcd = Etcd::start(&program).await;
        let source = format!("etcd://{}/blue", etcd.endpoint);
        let of_cluster = ["--discovery", &source];
        check(&of_cluster, &[], &["fail cluster/membership", "/skein/blue/workers/", "same --discovery"]);

        let gone = format!("127.0.0.1:{}", free_port());
        let record = Record {
            id: "w-9".into(),
            address: gone.clone(),
            model: "m".into(),
            epoch: None,
            version: "0".into(),
            leaving: false,
        };
        let client = EtcdClient::new(etcd.settings(), 0).await.expect("good settings");
        let lease = client.grant(TIMEOUT).await.expect("a lease");
        client.put(&format!("{}w-9", prefix("blue")), &record.encode(), lease.id).await.expect("written");
        check(&of_cluster, &[], &["fail cluster/workers", "w-9 is listed at", &gone, "--advertise"]);
    });
}
