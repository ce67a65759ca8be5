//! Doors for `tests/fuzz` to what this crate keeps to itself.

use std::sync::Arc;

use skein_node::clock;
use skein_proto::info::WorkerInfo;
use skein_proto::worker::v1 as wire;

use crate::backend::Batch;
use crate::group::{hello, words};
use crate::service::{ModelFacts, validate};

const VOCAB: u32 = 500;
const LONGEST: u32 = 64;

fn facts() -> ModelFacts {
    let info = WorkerInfo {
        epoch: 1,
        model: "model".to_owned(),
        max_model_len: LONGEST,
        vocab_size: VOCAB,
        block_size: 16,
        kv_blocks: 64,
        max_num_seqs: 4,
        max_num_batched_tokens: 128,
        resume_exact: true,
        version: String::new(),
        backend: "fake".to_owned(),
        fingerprint: 1,
        grammar_fingerprint: 0,
        tokenizer_fingerprint: 0,
        serving_since_ms: 0,
        pooled: None,
    };
    ModelFacts { name: Arc::from("model"), info, eos_token_ids: vec![2] }
}

/// Validates a router's request. What is accepted has only tokens of the vocabulary, and ends.
pub fn generate(request: wire::GenerateRequest) {
    let _ = validate::stream_key(&request.stream_key);
    let Ok(valid) = validate::request(request, &facts(), clock::now()) else { return };
    assert!((1..LONGEST as usize).contains(&valid.prompt.len()));
    assert!(valid.prompt.iter().all(|token| *token < VOCAB));
    assert!(!valid.samples.is_empty());
}

/// Validates a router's wish to read on.
pub fn attach(request: wire::AttachRequest) {
    let _ = validate::attachment(request);
}

/// Reads what an unknown node says first, as its leader, and answers it.
pub fn hello(message: &[u8]) {
    let Ok(said) = hello::parsed::<hello::Hello>(message) else {
        let _ = hello::parsed::<hello::Challenge>(message);
        return;
    };
    let own =
        hello::Hello { node: 0, nodes: 2, version: said.version.clone(), model: said.model, ..said.clone() };
    if said.refusal(&own).is_none() {
        assert_eq!((said.node, said.nodes), (1, 2), "it is admitted");
    }
    assert!(!hello::signed("node", &said, &own.nonce).is_empty());
}

/// Reads the words of a step. What is read is written as the same words.
pub fn step(content: &[u32]) {
    let _ = words::read_adapter(content);
    if let Ok(batch) = words::read(content) {
        let mut again = Vec::new();
        words::write(&batch, &mut again);
        let read = words::read(&again).expect("what was written");
        let mut third = Vec::new();
        words::write(&read, &mut third);
        assert_eq!(again, third);
    }
}

/// Words of steps that are read.
pub fn steps() -> Vec<Vec<u32>> {
    let written = |batch: Batch| {
        let mut content = Vec::new();
        words::write(&batch, &mut content);
        content
    };
    [Batch::default(), words::samples::full()].map(written).into()
}
