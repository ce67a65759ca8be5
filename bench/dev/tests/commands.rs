//! The binary: what it writes, and its exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn skein_dev(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skein-dev")).args(arguments).output().expect("the binary starts")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_model_is_made_with_the_shipped_tokenizer_and_not_overwritten() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let made = directory.path().join("made");
    let make = ["make-model", "--shape", "tiny-llama", "--out", text(&made)];
    let output = skein_dev(&make);
    assert!(output.status.success(), "{}", said(&output.stderr));
    assert!(said(&output.stdout).contains("serve it: skein serve "), "{}", said(&output.stdout));
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        assert!(made.join(file).is_file(), "{file}");
    }
    let again = skein_dev(&make);
    assert_eq!(again.status.code(), Some(2), "what is there is not overwritten");
    assert!(said(&again.stderr).contains("--force"), "{}", said(&again.stderr));
    assert!(skein_dev(&[&make[..], &["--force", "--layers", "1"]].concat()).status.success());
}

#[test]
fn forms_of_codes_that_do_not_exist_are_refused_with_those_that_do() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let make = |flags: &[&str]| {
        let arguments = ["make-model", "--shape", "tiny-llama", "--out", text(directory.path())];
        let output = skein_dev(&[&arguments[..], flags].concat());
        assert_eq!(output.status.code(), Some(2));
        said(&output.stderr)
    };
    let refused = make(&["--no-weights", "--quantization", "q9"]);
    assert!(["q9", "gptq", "nvfp4", "q4_k"].iter().all(|name| refused.contains(name)), "{refused}");
    let form = ["make-model", "--shape", "tiny-llama", "--no-weights", "--quantization", "AWQ", "--out"];
    assert!(skein_dev(&[&form[..], &[text(&directory.path().join("awq"))]].concat()).status.success());
    let refused = make(&["--quantization", "q4_k"]);
    assert!(refused.contains("--no-weights"), "{refused}");
}

#[test]
fn adapters_are_made_for_a_model_without_weights() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (model, out) = (directory.path().join("model"), directory.path().join("adapters"));
    let make = ["make-model", "--shape", "tiny-llama", "--no-weights", "--out", text(&model)];
    assert!(skein_dev(&make).status.success());
    let adapt = [
        "make-adapters",
        text(&model),
        "--out",
        text(&out),
        "--rank",
        "4",
        "--targets",
        "all",
        "--count",
        "2",
    ];
    let output = skein_dev(&adapt);
    assert!(output.status.success(), "{}", said(&output.stderr));
    for adapter in ["a0", "a1"] {
        let bytes =
            std::fs::read(out.join(adapter).join("adapter_model.safetensors")).expect("it is written");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
        // Two layers with seven matrices, two factors each.
        assert_eq!(tensors.len(), 28, "{adapter}");
    }
}

#[test]
fn rules_are_simulated_and_their_results_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [csv, plot] = ["rules.csv", "rules.svg"].map(|name| directory.path().join(name));
    let flags = ["batching", "--json", "--num-prompts", "20", "--csv", text(&csv), "--plot", text(&plot)];
    let output = skein_dev(&flags);
    assert!(output.status.success(), "{}", said(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(result["results"].as_array().map(Vec::len), Some(6), "{result}");
    assert!(said(&std::fs::read(csv).expect("it is written")).starts_with("rule,request_rate,"));
    assert!(said(&std::fs::read(plot).expect("it is written")).starts_with("<svg"));
    let refused = skein_dev(&["batching", "--num-prompts", "0"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0));
    assert!(said(&refused.stderr).contains("--num-prompts is 0"), "{}", said(&refused.stderr));
}

#[test]
fn a_trace_is_replayed_by_each_policy() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("trace.jsonl");
    let line = |at: u32| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 1024, \"output_length\": 8, \"hash_ids\": [1, {at}]}}\n"
        )
    };
    std::fs::write(&trace, (0..40).map(|at| line(10 * at)).collect::<String>()).expect("it is ours");
    let output =
        skein_dev(&["policy", "--trace", text(&trace), "--workers", "2", "--policies", "first_token,oracle"]);
    assert!(output.status.success(), "{}", said(&output.stderr));
    let table = said(&output.stdout);
    assert!(
        table.lines().count() == 3 && table.contains("first_token") && table.contains("oracle"),
        "{table}"
    );
    assert_eq!(skein_dev(&["policy", "--trace", "/nowhere"]).status.code(), Some(2));
}

#[test]
fn a_model_for_agents_has_the_context_that_is_asked_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let made = directory.path().join("made");
    let make = ["make-model", "--shape", "tiny-llama", "--no-weights", "--max-model-len", "131072", "--out"];
    let output = skein_dev(&[&make[..], &[text(&made)]].concat());
    assert!(output.status.success(), "{}", said(&output.stderr));
    let config = std::fs::read_to_string(made.join("config.json")).expect("it is made");
    assert!(config.contains("\"max_position_embeddings\": 131072"), "{config}");
    let template = std::fs::read_to_string(made.join("tokenizer_config.json")).expect("it is copied");
    assert!(template.contains("tool_use"), "agents need a template with tools: {template}");
    let output = skein_dev(&[&make[..5], &["1", "--out", text(&made)]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output.stderr));
}
