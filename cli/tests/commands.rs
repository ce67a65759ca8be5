//! The binary as seen from a shell: its output and exit codes.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use skein_bench::engine::steps::MeasuredWorker;
use skein_bench::models::{Dtype, RandomWeights, SHAPES, make_model};

/// Runs `skein` with `arguments`, with `input` on standard input and only the given `SKEIN_` variables.
fn skein(arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // The pipe breaks if the command ends without reading its input.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

#[test]
fn mistakes_end_with_their_own_code_and_a_next_step() {
    let check = |arguments: &[&str], variables: &[(&str, &str)], code: i32, expected: &str| {
        let output = skein(arguments, "", variables);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    check(&[], &[], 2, "skein serve");
    check(&["serve", "--prot", "1"], &[], 2, "--port");
    check(&["serve", "--port", "99999"], &[("SKEIN_WORKER", "1")], 2, "did you mean SKEIN_WORKERS?");
    check(&["serve", "--shutdown-timeout", "30"], &[], 2, "did you mean 30s or 30ms?");
    check(&["serve", "/nowhere"], &[], 3, "`/nowhere` does not exist");
    check(&["run", "./nope", "Hello"], &[], 3, "`./nope` does not exist");
    check(&["run", "llama3"], &[], 3, "`llama3` is neither a model directory nor a GGUF file");
    check(&["serve", "--shutdown-timeout", "-1"], &[], 2, "`-1` must not be negative");
    check(&["router"], &[], 2, "name at least one worker");
    check(&["worker", "--discovery", "dns://workers:9000"], &[], 2, "dns:// is for routers");
    check(&["run", "x", "--temperature", "9"], &[], 2, "temperature must be in [0, 2]");
    check(&["run", "x", "--max-tokens", "0"], &[], 2, "max_tokens");
    check(&["serve", "--device", "cuda:x"], &[], 2, "is not one of auto, cpu, cuda, cuda:N, fake");
    check(&["serve", "--device", "cpu", "--quantization", "fp8"], &[], 2, "needs a GPU, but device is cpu");
    check(
        &["serve", "--device", "cuda", "--kv-cache-dtype", "int8"],
        &[],
        2,
        "is supported only on the CPU so far, but device is cuda",
    );
    check(&["serve", "--device", "cpu", "--kv-cache-dtype", "int2"], &[], 2, "is not one of auto, float32");
    check(&["serve", "--step-timeout", "5"], &[], 2, "did you mean 5s or 5ms?");
    check(&["serve", "--log-level", "banana"], &[], 2, "is not one of error, warn");
    check(&["serve", "--served-model-name", ""], &[], 2, "--served-model-name: is empty");
    check(
        &["serve", "--max-model-len", "5000", "--port", "0"],
        &[],
        2,
        "max_model_len is 5000; allowed: 2..=1024",
    );
    check(&["bench", "serve", "--port", "1", "--num-prompts", "1"], &[], 1, "skein serve");
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    check(&["serve", "--device", "fake", "--port", &port], &[], 5, "is in use");
}

#[test]
fn a_line_written_for_vllm_gets_all_its_answers_at_once() {
    let line = ["serve", "--trust-remote-code", "--prot", "1", "--port", "99999", "--request-timeout", "-3s"];
    let output = skein(&line, "", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for expected in [
        "4 problems",
        "--trust-remote-code: Skein never runs code",
        "--prot: no such flag; did you mean --port?",
        "--port: 99999 is out of range",
        "--request-timeout: `-3s` must not be negative",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn a_bad_router_address_is_not_called_a_worker_address() {
    let output = skein(&["gateway", "--routers", "x", "--port", "99999"], "", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--routers: `x` is not host:port") && said.contains("--port: 99999"), "{said}");
}

#[test]
fn config_show_and_serve_find_the_same_problems_with_their_section() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("skein.toml");
    let text = "log-level = 'banana'\nblock-size = ''\n[serve]\nworkers = 0\nserved-model-name = ['']\nshutdown-timeout = '5'\n";
    std::fs::write(&file, text).expect("it is ours");
    let path = file.to_str().expect("a plain path");
    let said = |arguments: &[&str]| {
        let output = skein(arguments, "", &[("SKEIN_CONFIG", path)]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (shown, served) = (said(&["config", "show"]), said(&["serve"]));
    assert_eq!(shown, served);
    for expected in
        ["5 problems", "[serve] workers: 0 is out of range", "skein.toml: block-size: is empty; give a value"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn a_cache_that_no_machine_holds_is_refused_with_numbers_before_loading() {
    for size in ["500TiB", "1PiB"] {
        let output =
            skein(&["serve", "--port", "0", "--device", "cpu", "--kv-cache-memory-bytes", size], "", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("for each of 2 worker(s) does not fit") && said.contains("is left for"),
            "{said}"
        );
        assert!(!said.contains("loading weights"), "{said}");
    }
}

#[test]
fn help_is_a_command_and_a_reader_that_goes_away_is_no_error_message() {
    let help = skein(&["help", "bench", "latency"], "", &[]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--input-len"));
    assert_eq!(skein(&["help", "nothing"], "", &[]).status.code(), Some(2));
    let closed = std::process::Command::new(env!("CARGO_BIN_EXE_skein"))
        .arg("help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = closed.expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_binary_alone_serves_the_shipped_model_from_any_directory() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let binary = home.path().join("skein");
    // Another test's child would inherit the open copy, and a file open for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_skein")).arg(&binary).status();
    assert!(copied.expect("cp starts").success());
    let mut command = Command::new(&binary);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_")) {
        command.env_remove(name);
    }
    command.env("XDG_CACHE_HOME", home.path().join("cache")).current_dir(home.path());
    command
        .args(["run", "--raw", "--temperature", "0", "--max-tokens", "4", "def main"])
        .stdin(Stdio::null());
    let output = command.output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.len() > 1, "it says something");
    assert!(home.path().join("cache/skein/models").is_dir(), "it was unpacked");
}

#[test]
fn step_times_of_a_worker_are_json_for_a_fit() {
    let limits = ["--max-model-len", "96", "--max-num-seqs", "2", "--max-num-batched-tokens", "64"];
    let shipped = skein_golden::shipped();
    let model = shipped.to_str().expect("a plain path");
    let output = skein(&[&["bench", "step-times", model, "--device", "cpu"][..], &limits].concat(), "", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let measured: MeasuredWorker = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!((measured.limits.max_num_seqs, measured.limits.max_model_len), (2, 96));
    assert!(measured.model.ends_with(" on cpu"), "{}", measured.model);
    for step in measured.times.made_from.iter().chain(&measured.times.held_out) {
        assert!(step.seconds > 0.0 && step.work.rows > 0, "{step:?}");
    }
}

#[test]
fn a_damaged_model_is_one_clear_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let made = dir.path().join("made");
    let out = made.to_str().expect("a plain path");
    let random = RandomWeights { dtype: Dtype::Bf16, seed: 0, has_outliers: false };
    make_model(&SHAPES[0], random, &skein_golden::shipped(), &made, |_| {}).expect("it is made");
    let weights = made.join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("it was made");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("it is ours");
    let output = skein(&["serve", out, "--port", "0"], "", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "two workers, one error: {said}");
    assert!(said.contains("model.safetensors"), "{said}");
}

// On other systems a process has no memory limit, and only the time limit would end the trial.
#[cfg(target_os = "linux")]
#[test]
fn a_chat_template_that_eats_memory_or_stack_is_refused_at_start() {
    let made = tempfile::tempdir().expect("a temporary directory");
    let shipped = skein_golden::shipped();
    for file in std::fs::read_dir(shipped).expect("it ships").map(|file| file.expect("it is readable").path())
    {
        std::fs::copy(&file, made.path().join(file.file_name().expect("it has a name"))).expect("it is ours");
    }
    let model = made.path().to_str().expect("a plain path");
    let grow = |start: &str, step: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.x|length }}}}"
        )
    };
    // `~`, `*` and printed values are limited within the process; these are not.
    let block = "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}";
    for template in [grow("'x'", "{% set ns.x = ns.x + ns.x %}"), grow("'x'", block)] {
        std::fs::write(made.path().join("chat_template.jinja"), &template).expect("it is ours");
        let output = skein(&["serve", model, "--port", "0"], "", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        let start: String = template.chars().take(80).collect();
        assert_eq!(output.status.code(), Some(3), "{start}: {said}");
        assert!(said.contains("needs too much memory, stack or time"), "{start}: {said}");
    }
}

#[test]
fn run_answers_a_piped_prompt_the_same_each_time() {
    let arguments = ["run", "--raw", "--temperature", "0", "--max-tokens", "12"];
    let first = skein(&arguments, "def main():\n", &[]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(first.stdout.len() > 1, "it says something");
    assert_eq!(skein(&arguments, "def main():\n", &[]).stdout, first.stdout);
}

#[test]
fn settings_show_where_they_came_from() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("skein.toml");
    std::fs::write(&file, "max_num_seqs = 8\napi-key = ['sesame']\n[serve]\nport = 9\n").expect("it is ours");
    let path = file.to_str().expect("a plain path");
    let output = skein(
        &["config", "show", "--workers", "3"],
        "",
        &[("SKEIN_CONFIG", path), ("SKEIN_BLOCK_SIZE", "32")],
    );
    let shown = String::from_utf8_lossy(&output.stdout);
    for (name, value, origin) in [
        ("workers", "3", "flag"),
        ("block-size", "32", "environment (SKEIN_BLOCK_SIZE)"),
        ("port", "9", "file"),
        ("max-num-seqs", "8", "file"),
        ("api-key", "***", "file"),
        ("host", "127.0.0.1", "default"),
    ] {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {shown}"));
        assert!(line.contains(value) && line.contains(origin), "{line}");
    }
    assert!(!shown.contains("sesame"));
}

#[test]
fn the_example_configuration_is_valid() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/skein.toml");
    let output = skein(&["config", "show", "--config", file], "", &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        said.lines().any(|line| line.starts_with("max-num-queued-tokens") && line.contains("file")),
        "{said}"
    );
}
