//! `skein run-batch` as a process: killed and restarted, alone and with its router and workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use skein_node::clock;
use skein_tests::process::free_port;
use skein_tests::scenario::{Plan, run_batch};

/// Number of lines of a batch.
const LINES: usize = 120;
/// Time limit of a run on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

fn skein(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

fn run_to_end(arguments: &[&str], code: i32) -> String {
    let output = skein(arguments).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

/// Answers by id; each must occur once.
fn answers(path: &Path) -> BTreeMap<String, Value> {
    run_batch::answers(path).expect("each line is an answer of its own")
}

#[test]
fn a_killed_batch_goes_on_and_ends_as_if_undisturbed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name).to_str().expect("it is UTF-8").to_owned();
    let (input, calm, killed) = (file("in.jsonl"), file("calm.jsonl"), file("killed.jsonl"));
    run_batch::write_requests(Path::new(&input), LINES as u64);
    run_to_end(&["run-batch", "--device", "cpu", "-i", &input, "-o", &calm], 0);
    let expected = answers(Path::new(&calm));
    assert_eq!(expected.len(), LINES);
    let refused = expected.values().filter(|line| run_batch::is_refused(line)).count();
    assert_eq!(refused, LINES / 30, "only the bad lines are refused");

    let lines =
        || std::fs::read(&killed).map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count());
    for part in 1..4 {
        let mut run = skein(&["run-batch", "--device", "cpu", "-i", &input, "-o", &killed]);
        let start = clock::now();
        while lines() < part * LINES / 5 && clock::now().since(start) < WITHIN {
            std::thread::sleep(Duration::from_millis(2));
        }
        run.kill().expect("it runs");
        run.wait().expect("it ends");
        assert!(lines() < LINES, "the kill came too late to show anything");
    }
    run_to_end(&["run-batch", "--device", "cpu", "-i", &input, "-o", &killed], 0);
    assert_eq!(answers(Path::new(&killed)), expected);

    // A second run changes nothing.
    run_to_end(&["run-batch", "--device", "cpu", "-i", &input, "-o", &killed], 0);
    assert_eq!(lines(), LINES);
}

/// The short form of `tests/chaos run-batch`.
#[test]
fn a_batch_outlives_its_server_and_its_workers() {
    let plan =
        Plan { rounds: 6, workers: 2, requests: LINES as u64, ..Plan::short(env!("CARGO_BIN_EXE_skein")) };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let report = runtime.block_on(run_batch::run(&plan));
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name).to_str().expect("it is UTF-8").to_owned();
    let (input, output) = (file("in.jsonl"), file("out.jsonl"));
    let said = |text: &str, more: &[&str], code| {
        std::fs::write(&input, text).expect("it can be written");
        let given = ["run-batch", "-i", &input, "-o", &output].into_iter().chain(more.iter().copied());
        run_to_end(&given.collect::<Vec<_>>(), code)
    };
    let line = r#"{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}"#;
    assert!(said("not json", &[], 2).contains("line 1 of the input is not a request"));
    assert!(
        said(&format!("{line}\n{line}"), &[], 2).contains("line 2 of the input repeats the custom_id `a`")
    );
    assert!(said(line, &["--server", "ftp://127.0.0.1"], 2).contains("must be an http:// or https:// URL"));
    let away = format!("http://127.0.0.1:{}", free_port());
    assert!(said(line, &["--server", &away, "--retry-for", "0"], 1).contains("run the same command again"));
    let missing = run_to_end(&["run-batch", "-i", "/nowhere", "-o", &output], 2);
    assert!(missing.contains("/nowhere: No such file"), "{missing}");
    assert!(!Path::new(&output).exists(), "no empty output stays");
}
