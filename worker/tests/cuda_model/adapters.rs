//! LoRA adapters on a device: merged at load and served beside the model, as PEFT computes them; and the same
//! bits in any batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::SafeTensors;
use serde_json::Value;
use skein_model::adapter::Adapter;
use skein_model::config::ModelConfig;
use skein_model::served_adapter::AdapterForm;
use skein_model::shard::Shard;
use skein_worker::backend::cuda::{self, CudaBackend, CudaOptions, ServedAdapters};
use skein_worker::backend::{Backend, Batch, LoadedAdapter, ScoreRow, Want};
use skein_worker::config::CudaConfig;
use skein_worker::kv_cache::CacheScope;

use crate::goldens::{MOST, log_softmax};
use crate::made_adapters::make;
use crate::models::{COHERE2, LLAMA, QWEN2, QWEN3, STARCODER2, Tiny};
use crate::requests;
use crate::runs::{eager, limits, load, options, prompt, sequence_of, step};
use crate::scores::TOLERANCE;

type Loaded = Arc<LoadedAdapter>;

fn golden(kind: &str, name: &str) -> PathBuf {
    skein_golden::path(format!("{kind}/{name}"))
}

fn invariant() -> CudaConfig {
    CudaConfig { batch_invariant: true, ..eager() }
}

/// Options of a backend with `slots` adapters in use at once.
fn serving(cuda: CudaConfig, slots: usize) -> CudaOptions {
    let served = Some(ServedAdapters { slots, max_rank: 8 });
    CudaOptions { served, ..options(cuda, limits(), Some(4 << 20)) }
}

/// The adapter in `directory`, as a worker holds it for `options`.
fn held(model: &Path, directory: &Path, options: &CudaOptions) -> Result<Loaded, String> {
    let config = ModelConfig::from_dir(model).unwrap();
    let opened = cuda::open(0, &config, options.limits.block_size).unwrap();
    let whole = Shard::whole(&config.spec);
    let form = cuda::slot_form(cuda::ModelDir { dir: model, config: &config }, &whole, &opened, options)
        .unwrap()
        .unwrap();
    let adapter = Adapter::open(directory).map_err(|error| error.to_string())?;
    let weights = AdapterForm::Cuda(Arc::new(form)).read(&adapter, &config.spec, 8);
    let weights = weights.map_err(|error| error.to_string())?;
    Ok(Arc::new(LoadedAdapter::new(adapter.id().unwrap(), Some(Arc::new(weights)), Arc::default())))
}

/// Log-probabilities of the tokens that follow `positions`, in chunks.
fn scores(backend: &mut dyn Backend, tokens: &[u32], adapter: Option<&Loaded>, chunks: &[usize]) -> Vec<f32> {
    let (mut sequence, mut all) = (sequence_of(tokens.to_vec(), 0), Vec::new());
    for count in chunks {
        let (mut batch, start) = (Batch::default(), sequence.computed);
        sequence.put(&mut batch, *count);
        batch.sequences[0].adapter = adapter.cloned();
        for position in start..(start + count).min(tokens.len() - 1) {
            let (row, target) = ((position - start) as u32, tokens[position + 1]);
            batch.wants.push(Want::Score(ScoreRow { row, target, top: 0 }));
        }
        all.extend(step(backend, batch).scores().map(|score| score.logprob));
    }
    all
}

/// Largest and mean difference from PEFT's log-probabilities.
fn differences(name: &str, json: &Value, got: &[f32]) -> (f32, f32) {
    let bytes = std::fs::read(golden("adapters", name).join("goldens.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let logits = tensors.tensor("logits").unwrap();
    let values: Vec<f32> =
        logits.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let list = |key: &str| -> Vec<usize> { serde_json::from_value(json[key].clone()).unwrap() };
    let (prompt, positions) = (list("prompt"), list("positions"));
    let rows = positions.iter().zip(values.chunks(logits.shape()[1]));
    let far: Vec<f32> = rows
        .filter(|(position, _)| **position + 1 < prompt.len())
        .map(|(position, logits)| (got[*position] - log_softmax(logits, prompt[position + 1])).abs())
        .collect();
    assert!(far.len() >= 3, "{name}: {} positions are compared", far.len());
    (far.iter().copied().fold(0.0, f32::max), far.iter().sum::<f32>() / far.len() as f32)
}

#[test]
fn merged_and_served_adapters_agree_with_peft() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for name in ["llama-all", "phi3-fused", "glm-rotated"] {
        let directory = golden("adapters", name);
        let json: Value =
            serde_json::from_slice(&std::fs::read(directory.join("goldens.json")).unwrap()).unwrap();
        let base = golden("models", json["model"].as_str().unwrap());
        let tokens: Vec<u32> = serde_json::from_value(json["prompt"].clone()).unwrap();
        let chunks = [tokens.len() - 3, 1, 2];
        let merged =
            CudaOptions { merged: Some(directory.clone()), ..options(eager(), limits(), Some(4 << 20)) };
        let merged = scores(&mut load(&base, merged).unwrap(), &tokens, None, &chunks);
        let serving = serving(eager(), 2);
        let adapter = held(&base, &directory, &serving).unwrap();
        let mut backend = load(&base, serving).unwrap();
        let served = scores(&mut backend, &tokens, Some(&adapter), &chunks);
        let plain = scores(&mut backend, &tokens, None, &chunks);
        // Of served adapters A and B are rounded, too, and the sum with the model's product once more.
        for (kind, got, allowed) in [("merged", &merged, TOLERANCE), ("served", &served, 2.0 * TOLERANCE)] {
            let (most, mean) = differences(name, &json, got);
            println!("{name}, {kind}: log-probabilities differ by at most {most:.4}, {mean:.4} on average");
            assert!(most <= MOST && mean <= allowed, "{name}, {kind}: {most} {mean}");
        }
        let without = differences(name, &json, &plain);
        println!("{name}: without the adapter {without:?}");
        assert!(without.0 > 2.0 * MOST, "{name}: the adapter matters: {without:?}");
    }
}

/// Adapters of different ranks for the model in `dir`.
fn three(dir: &Path, options: &CudaOptions) -> Vec<Loaded> {
    let of = |(seed, rank): (u64, usize)| held(dir, make(dir, seed, rank).path(), options).unwrap();
    [(1, 8), (2, 3), (3, 5)].map(of).to_vec()
}

const TOKENS: usize = 36;
/// Rows of a sequence in a step, by the step and the sequence: decoding, chunks, and both.
const CHUNKS: [fn(usize, usize) -> usize; 3] =
    [|_, _| 1, |_, nth| 5 + nth, |turn, nth| 1 + (turn * 7 + nth * 5) % 9 * (nth % 2)];

/// Bits of all log-probabilities of the sequences `shown`, which run together; sequence `nth` has the adapter
/// `adapters[nth]`.
fn bits(
    backend: &mut dyn Backend,
    adapters: &[Option<&Loaded>],
    shown: &[usize],
    chunk: impl Fn(usize, usize) -> usize,
) -> Vec<Vec<u32>> {
    let mut sequences: Vec<_> =
        shown.iter().map(|nth| sequence_of(prompt(*nth as u32, TOKENS + 1), *nth as u32)).collect();
    let mut all = vec![Vec::new(); shown.len()];
    for turn in 0.. {
        let (mut batch, mut of) = (Batch::default(), Vec::new());
        for (i, (sequence, nth)) in sequences.iter_mut().zip(shown).enumerate() {
            let start = sequence.computed;
            let room = 48 - batch.tokens.len();
            let count = chunk(turn, *nth).min(TOKENS - start).min(room);
            if count == 0 {
                continue;
            }
            let first = batch.tokens.len() as u32;
            let target = |row: usize| prompt(*nth as u32, TOKENS + 1)[start + row + 1];
            sequence.put(&mut batch, count);
            batch.sequences.last_mut().unwrap().adapter = adapters[*nth].cloned();
            for row in 0..count {
                of.push(i);
                let want = ScoreRow { row: first + row as u32, target: target(row), top: 2 };
                batch.wants.push(Want::Score(want));
            }
        }
        if batch.tokens.is_empty() {
            return all;
        }
        for (i, score) in of.into_iter().zip(step(backend, batch).scores()) {
            all[i].push(score.logprob.to_bits());
            all[i].extend(score.top.iter().flat_map(|(token, logprob)| [*token, logprob.to_bits()]));
        }
    }
    all
}

#[test]
fn no_bit_of_a_sequence_depends_on_the_adapters_of_others() {
    if !skein_cuda_emulation::load() {
        return;
    }
    // Biases and tied heads; a head of an odd number of tokens; no gate; networks beside attention.
    let models = [("llama", LLAMA), ("qwen2", QWEN2), ("qwen3", QWEN3), ("starcoder2", STARCODER2)];
    for (name, tiny) in models.into_iter().chain([("cohere2", COHERE2)]) {
        let dir = tiny.make(11);
        let options = serving(invariant(), 3);
        let loaded = three(dir.path(), &options);
        let adapters = [Some(&loaded[0]), None, Some(&loaded[1]), Some(&loaded[0]), None, Some(&loaded[2])];
        let mut backend = load(dir.path(), options).unwrap();
        let alone: Vec<Vec<u32>> =
            (0..6).map(|nth| bits(&mut backend, &adapters, &[nth], |_, _| TOKENS).remove(0)).collect();
        let plain = CudaOptions { served: None, ..serving(invariant(), 1) };
        let mut base = load(dir.path(), plain).unwrap();
        for nth in [1, 4] {
            let expected = bits(&mut base, &[None; 6], &[nth], |_, _| TOKENS).remove(0);
            assert!(alone[nth] == expected, "{name}: without an adapter, it is the model");
        }
        assert!(alone[0] != bits(&mut base, &[None; 6], &[0], |_, _| TOKENS).remove(0), "{name}");
        for chunk in CHUNKS {
            let together = bits(&mut backend, &adapters, &[0, 1, 2, 3, 4, 5], chunk);
            for (nth, (together, alone)) in together.iter().zip(&alone).enumerate() {
                assert!(together == alone, "{name}, sequence {nth}");
            }
        }
    }
}

#[test]
fn an_adapter_that_lost_its_slot_is_copied_again() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(11);
    let options = serving(invariant(), 2);
    let loaded = three(dir.path(), &options);
    let adapters: Vec<Option<&Loaded>> = loaded.iter().map(Some).collect();
    let mut backend = load(dir.path(), options).unwrap();
    let mut of = |nth: &[usize]| bits(&mut backend, &adapters, nth, |_, nth| 3 + nth);
    let first: Vec<_> = (0..3).map(|nth| of(&[nth]).remove(0)).collect();
    for pair in [[0, 1], [1, 2], [2, 0], [0, 1]] {
        for (nth, got) in pair.into_iter().zip(of(&pair)) {
            assert!(got == first[nth], "adapter {nth} in {pair:?}");
        }
    }
    // More than there are slots cannot happen; if it does, the step fails by name.
    let mut batch = Batch::default();
    for (nth, adapter) in loaded.iter().enumerate() {
        sequence_of(prompt(nth as u32, 4), nth as u32).put(&mut batch, 2);
        batch.sequences[nth].adapter = Some(adapter.clone());
    }
    let step = backend.launch(batch).unwrap();
    let error = backend.collect(step).unwrap_err().to_string();
    assert!(error.contains("--max-loras"), "{error}");
}

/// Requests of which two thirds have an adapter, with graphs, preemption, shared prefixes and samples.
#[tokio::test]
async fn no_token_of_a_request_depends_on_graphs_or_recomputation() {
    if !skein_cuda_emulation::load() {
        return;
    }
    const TOKEN_BYTES: u64 = 2 * 2 * 2 * 64 * 2;
    let dir = LLAMA.make(13);
    let of = |kv_tokens: u64, enforce_eager: bool| CudaOptions {
        kv_cache_memory_bytes: Some(kv_tokens * TOKEN_BYTES),
        limits: requests::served(),
        ..serving(CudaConfig { enforce_eager, ..invariant() }, 3)
    };
    let loaded = three(dir.path(), &of(2048, true));
    let serve = |kv_tokens, enforce_eager| {
        let backend: CudaBackend = load(dir.path(), of(kv_tokens, enforce_eager)).unwrap();
        let with = |index: u32, request: &mut skein_worker::scheduler::NewRequest| {
            let Some(adapter) = loaded.get(index as usize % 4) else { return };
            request.adapter = Some(adapter.clone());
            request.scope = CacheScope::new("model", &format!("{:016x}", adapter.id.0));
        };
        requests::serve_with(Box::new(backend), None, with)
    };
    let expected = serve(2048, true).await;
    assert!(expected.iter().flatten().all(|(tokens, _)| tokens.len() >= requests::SHORTEST as usize));
    let plain = load(dir.path(), of(2048, true)).unwrap();
    assert_ne!(requests::serve(Box::new(plain), None).await, expected, "the adapters matter");
    assert_eq!(serve(2048, false).await, expected, "with graphs");
    assert_eq!(serve(256, false).await, expected, "with preemption");
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let check = |tiny: Tiny, directory: &Path, words: &[&str]| {
        let dir = tiny.make(3);
        let said = held(dir.path(), directory, &serving(eager(), 1)).unwrap_err();
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    let llama = LLAMA.make(3);
    check(LLAMA, make(llama.path(), 1, 9).path(), &["rank 9", "--max-lora-rank is 8"]);
    check(Tiny { inner: 256, ..LLAMA }, make(llama.path(), 1, 4).path(), &["gate_proj", "expected"]);
    let merged = |model: &Path, adapter: &Path, rounded| {
        let merged = Some(adapter.to_owned());
        let error = load(model, CudaOptions { merged, rounded, ..options(eager(), limits(), Some(4 << 20)) });
        error.err().map(|error| error.to_string())
    };
    let other = Tiny { inner: 256, ..LLAMA }.make(3);
    let said = merged(other.path(), make(llama.path(), 1, 4).path(), None).unwrap();
    assert!(said.contains("gate_proj") && said.contains("expected"), "{said}");
    // Numbers that are quantised at load are changed before.
    let adapter = make(llama.path(), 1, 4);
    for rounded in [None, Some(skein_kernels::cpu::packed::Format::INT8)] {
        assert_eq!(merged(llama.path(), adapter.path(), rounded), None);
    }
    let coded = golden("quantised", "w8a16");
    let said = merged(&coded, &golden("adapters", "llama-all"), None).unwrap();
    assert!(said.contains("quantised") || said.contains("lora_"), "{said}");
}
