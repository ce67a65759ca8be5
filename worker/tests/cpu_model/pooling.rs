//! Models that give vectors of prompts, beside sentence-transformers and transformers.

use std::path::{Path, PathBuf};

use serde_json::Value;
use skein_model::config::ModelConfig;
use skein_proto::pooling::{Activation, PooledKind};
use skein_worker::backend::cpu::CpuModel;
use skein_worker::backend::{Answer, BackendError, Batch, PoolRows, Want};
use skein_worker::check::Sequence;

use crate::batches::{BLOCK_SIZE, SMALL_BLOCK, golden, load_from, sample, sequence_of};

/// Largest difference from what another implementation computes in 32 bits.
const TOLERANCE: f32 = 1e-4;

/// A prompt and its vector.
struct Case {
    ids: Vec<u32>,
    second_from: Option<u32>,
    vector: Vec<f32>,
}

fn directory(name: &str) -> PathBuf {
    skein_golden::path(Path::new("pooling").join(name))
}

fn names() -> Vec<String> {
    let names = skein_golden::names("pooling");
    assert!(names.len() >= 12, "{names:?}");
    names
}

fn read(directory: &Path) -> (Value, Vec<Case>) {
    let text = std::fs::read(directory.join("goldens.json")).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let case = |case: &Value| Case {
        ids: case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        second_from: case["second_from"].as_u64().map(|second| second as u32),
        vector: case["vector"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect(),
    };
    let cases: Vec<Case> = json["cases"].as_array().unwrap().iter().map(case).collect();
    assert!(cases.len() >= 3);
    (json["kind"].clone(), cases)
}

fn load(directory: &Path, threads: usize, block_size: u32) -> CpuModel {
    let mut model = load_from(directory, threads, block_size);
    assert!(model.gives_finite_logits().unwrap(), "it can serve");
    model
}

/// Adds the whole prompt of `case` to `batch`.
fn put(batch: &mut Batch, case: &Case, index: u32, block_size: u32) {
    let start = batch.tokens.len() as u32;
    let mut sequence: Sequence = sequence_of(case.ids.clone(), index, block_size);
    sequence.put(batch, case.ids.len());
    let rows = start..batch.tokens.len() as u32;
    batch.wants.push(Want::Pool(PoolRows { rows, second_from: case.second_from }));
}

fn run(model: &mut CpuModel, batch: &Batch) -> Vec<Vec<f32>> {
    let answers = model.run(batch).unwrap().answers.into_iter();
    let vector = |answer| if let Answer::Pooled(vector) = answer { vector } else { panic!("{answer:?}") };
    answers.map(vector).collect()
}

/// Vectors of the cases, each in a step of its own.
fn alone(model: &mut CpuModel, cases: &[Case], block_size: u32) -> Vec<Vec<f32>> {
    let one = |case| {
        let mut batch = Batch::default();
        put(&mut batch, case, 0, block_size);
        run(model, &batch).remove(0)
    };
    cases.iter().map(one).collect()
}

fn divided_by_length(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

#[test]
fn vectors_are_those_of_sentence_transformers_and_scores_those_of_transformers() {
    for name in names() {
        let directory = directory(&name);
        let pooling = ModelConfig::from_dir(&directory).unwrap().pooling.unwrap();
        let (kind, cases) = read(&directory);
        let labels = kind["labels"].as_u64();
        match pooling.kind {
            PooledKind::Embedding { is_normalised } => assert_eq!(kind["is_normalised"], is_normalised),
            PooledKind::Scores(activation) => {
                // sentence-transformers leaves several logits as they are; we make probabilities of them.
                let expected = match (&kind["activation"], labels) {
                    (name, Some(1)) if name == "Sigmoid" => Activation::Logistic,
                    (_, Some(1)) => Activation::Identity,
                    _ => Activation::Softmax,
                };
                assert_eq!(activation, expected, "{name}");
                assert_eq!(u64::from(pooling.width), labels.unwrap(), "{name}");
            }
        }
        let vectors = alone(&mut load(&directory, 2, BLOCK_SIZE), &cases, BLOCK_SIZE);
        for (case, vector) in cases.iter().zip(vectors) {
            assert_eq!(vector.len(), pooling.width as usize, "{name}");
            let is_normalised = pooling.kind == PooledKind::Embedding { is_normalised: true };
            let vector = if is_normalised { divided_by_length(&vector) } else { vector };
            for (got, expected) in vector.iter().zip(&case.vector) {
                let off = (got - expected).abs();
                assert!(off <= TOLERANCE, "{name}, {} tokens: {got} for {expected}", case.ids.len());
            }
        }
    }
}

#[test]
fn neither_other_prompts_nor_threads_nor_blocks_change_a_bit_of_a_vector() {
    for name in names() {
        let (directory, mut expected) = (directory(&name), None);
        let (_, cases) = read(&directory);
        for (threads, block_size) in [(1, BLOCK_SIZE), (3, SMALL_BLOCK)] {
            let model = &mut load(&directory, threads, block_size);
            let expected = expected.get_or_insert_with(|| alone(model, &cases, block_size));
            assert!(alone(model, &cases, block_size) == *expected, "{name} with {threads} threads");
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                let mut batch = Batch::default();
                order
                    .iter()
                    .zip(0..)
                    .for_each(|(case, index)| put(&mut batch, &cases[*case], index, block_size));
                let together = run(model, &batch);
                for (case, vector) in order.iter().zip(together) {
                    assert!(vector == expected[*case], "{name}, case {case} in {order:?}");
                }
            }
        }
    }
}

#[test]
fn the_last_row_of_a_prompt_in_chunks_gives_the_same_vector() {
    for name in ["qwen3-embedding", "qwen3-labels", "qwen3-logits", "mistral", "llama-labels"] {
        let directory = directory(name);
        let pooling = ModelConfig::from_dir(&directory).unwrap().pooling.unwrap();
        assert!(!pooling.reads_whole(), "{name}");
        let (model, (_, cases)) = (&mut load(&directory, 2, BLOCK_SIZE), read(&directory));
        let whole = alone(model, &cases, BLOCK_SIZE);
        let mut sequence = sequence_of(cases[0].ids.clone(), 1, BLOCK_SIZE);
        for count in [17, 1, 20] {
            let mut batch = Batch::default();
            sequence.put(&mut batch, count);
            assert!(run(model, &batch).is_empty(), "nothing was asked for");
        }
        let mut batch = Batch::default();
        let count = sequence.left();
        sequence.put(&mut batch, count);
        let last = count as u32 - 1..count as u32;
        batch.wants.push(Want::Pool(PoolRows { rows: last, second_from: None }));
        assert!(run(model, &batch)[0] == whole[0], "{name}");
    }
}

#[test]
fn tokens_of_a_model_that_pools_are_refused() {
    let (_, cases) = read(&directory("bert"));
    let model = &mut load(&directory("bert"), 1, BLOCK_SIZE);
    let mut batch = Batch::default();
    let mut sequence = sequence_of(cases[0].ids.clone(), 0, BLOCK_SIZE);
    sequence.put(&mut batch, 3);
    sample(&sequence, &mut batch, &Default::default(), 3);
    let error = model.run(&batch).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported { backend: "cpu", .. }), "{error}");
    assert!(ModelConfig::from_dir(&golden("qwen3")).unwrap().pooling.is_none());
}

/// Blocks of the longest sentence of a BERT: 512 tokens; eight of them fit the cache, which has 256.
const MOST_BLOCKS: u32 = 32;
/// Names a directory that `tests/golden/sentences.py` wrote.
const REAL: &str = "TEST_VECTORS";

#[test]
fn vectors_of_a_real_model_are_those_of_sentence_transformers() {
    let Some(directory) = std::env::var_os(REAL).map(PathBuf::from) else {
        return println!("skipped: {REAL} names no directory");
    };
    let text = std::fs::read(directory.join("goldens.json")).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let (_, cases) = read(&directory);
    let model = &mut load(Path::new(json["model"].as_str().unwrap()), 2, BLOCK_SIZE);
    let mut largest = 0f32;
    for cases in cases.chunks(8) {
        let mut batch = Batch::default();
        for (index, case) in cases.iter().enumerate() {
            let start = batch.tokens.len() as u32;
            let mut sequence = Sequence::new(case.ids.clone(), index as u32, MOST_BLOCKS, BLOCK_SIZE);
            sequence.put(&mut batch, case.ids.len());
            let rows = start..batch.tokens.len() as u32;
            batch.wants.push(Want::Pool(PoolRows { rows, second_from: None }));
        }
        for (case, vector) in cases.iter().zip(run(model, &batch)) {
            let vector = divided_by_length(&vector);
            let off = vector.iter().zip(&case.vector).map(|(got, expected)| (got - expected).abs());
            let worst = off.fold(0f32, f32::max);
            assert!(worst <= TOLERANCE, "{worst} off in a sentence of {} tokens", case.ids.len());
            largest = largest.max(worst);
        }
    }
    println!("{} sentences, at most {largest} off", cases.len());
}
