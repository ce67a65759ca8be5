//! A model in a GGUF file, served and refused.

use serde_json::{Value, json};
use skein_tests::process::Cluster;

use crate::{SKEIN, block_on};

/// A small model in one file.
fn chat() -> String {
    skein_golden::gguf("chat").display().to_string()
}

#[test]
fn a_gguf_file_is_served_with_its_tokenizer_and_template() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[&chat(), "--device", "cpu", "--workers", "1"]).await;
        let client = reqwest::Client::new();
        let post = async |path: &str, body: Value| -> Value {
            let request = client.post(format!("{}{path}", cluster.url)).json(&body);
            request.send().await.expect("the server answers").json().await.expect("JSON")
        };
        let body = json!({"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24,
                          "temperature": 0, "ignore_eos": true});
        let answer = post("/v1/chat/completions", body.clone()).await;
        assert_eq!(answer["usage"]["completion_tokens"], 24, "{answer}");
        assert_eq!(answer["choices"], post("/v1/chat/completions", body).await["choices"]);
        let tokens = post("/tokenize", json!({"model": "chat", "prompt": "def add(a, b):"})).await;
        assert_eq!(tokens["tokens"][0], 0, "the file asks for BOS: {tokens}");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let body = json!({"model": "chat", "prompt": "x", "max_tokens": 60, "seed": 1,
                          "structured_outputs": {"json": schema}});
        let answer = post("/v1/completions", body).await;
        assert_eq!(
            answer["choices"][0]["text"].as_str().map(|text| text.starts_with('{')),
            Some(true),
            "{answer}"
        );
    });
}

#[test]
fn what_cannot_be_served_is_said_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let whole = std::fs::read(chat()).expect("the file is there");
    std::fs::write(path("cut.gguf"), &whole[..whole.len() / 2]).expect("a file");
    std::fs::write(path("no.gguf"), "hello").expect("a file");
    // Replace the architecture by an unknown one with a name of the same length.
    let at = whole.windows(5).position(|bytes| bytes == b"llama").expect("its name");
    let mut other = whole;
    other[at..at + 5].copy_from_slice(b"mamba");
    std::fs::write(path("mamba.gguf"), other).expect("a file");
    let check = |arguments: &[&str], words: &[&str]| {
        let output = std::process::Command::new(SKEIN).args(arguments).output().expect("skein runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        words.iter().for_each(|word| assert!(said.contains(word), "{arguments:?}: {said:?} says {word:?}"));
    };
    check(&["serve", &path("cut.gguf")], &["cut.gguf is damaged", "extends past the end of the file"]);
    check(&["serve", &path("no.gguf")], &["no.gguf is damaged", "does not start with GGUF"]);
    check(&["serve", &path("mamba.gguf")], &["mamba.gguf cannot be served", "\"mamba\"", "supported: llama"]);
    check(&["serve", &path("none.gguf")], &["does not exist", "GGUF file"]);
    let quantised =
        ["worker", &chat(), "--device", "cpu", "--quantization", "int8", "--listen", "127.0.0.1:0"];
    check(&quantised, &["--quantization", "already quantised with Q4_0"]);
}
