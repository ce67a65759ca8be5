//! Adapters on several ranks: any number of ranks and stages produces the bits of one rank.

use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use serde_json::json;
use skein_model::adapter::Adapter;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::served_adapter::AdapterForm;
use skein_model::shard::Shard;
use skein_worker::backend::cpu::{CpuModel, NumberTypes};
use skein_worker::backend::{Batch, LoadedAdapter};
use skein_worker::check::{Sequence, prompt};

use crate::batches::{BLOCK_SIZE, sequence_of};
use crate::made_adapters::make as make_adapter;
use crate::ranks::{bits, connected, make, options};

/// Upper bound of prompt tokens.
const IDS: u32 = 256;

/// The part of the adapter in `directory` on the rank of `shard`.
fn part(model: &Path, directory: &Path, shard: &Shard) -> Arc<LoadedAdapter> {
    let (spec, adapter) = (ModelConfig::from_dir(model).unwrap().spec, Adapter::open(directory).unwrap());
    let weights = AdapterForm::Cpu(Box::new(shard.clone())).read(&adapter, &spec, 16).unwrap();
    Arc::new(LoadedAdapter::new(adapter.id().unwrap(), Some(Arc::new(weights)), Arc::default()))
}

/// Runs `work` on each of `tensor` ranks in each of `stages` stages, with the rank's parts of the adapters in
/// `directories`, and `merged` in the weights; returns the last stage's results first.
fn on_ranks<T: Send>(
    model: &Path,
    numbers: NumberTypes,
    (tensor, stages): (usize, usize),
    (directories, merged): (&[&Path], Option<&Path>),
    work: impl Fn(&mut CpuModel, &[Arc<LoadedAdapter>]) -> T + Sync,
) -> Vec<T> {
    let options = options(numbers);
    let spec = ModelConfig::from_dir(model).unwrap().spec;
    std::thread::scope(|scope| {
        let ranks = connected(tensor, stages).into_iter().enumerate().map(|(number, rank)| {
            let shard = Shard::new(&spec, number % tensor, tensor).unwrap();
            let shard = shard.of_stage(&spec, stages - 1 - number / tensor, stages).unwrap();
            let work = &work;
            scope.spawn(move || {
                let parts: Vec<_> =
                    directories.iter().map(|directory| part(model, directory, &shard)).collect();
                let (cache, source) = (PackedCache::none(), (model, merged));
                let mut loaded = CpuModel::load_rank(source, options, &cache, rank, &mut |_, _| {}).unwrap();
                work(&mut loaded, &parts)
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Logits of chunks and decode steps of sequences of which two have an adapter and one has none.
fn steps(model: &mut CpuModel, adapters: &[Arc<LoadedAdapter>]) -> Vec<Vec<u32>> {
    let mut sequences: Vec<Sequence> =
        (0..3).map(|i| sequence_of(prompt(u64::from(i), 60, IDS), i, BLOCK_SIZE)).collect();
    let mut all = Vec::new();
    for counts in [[20, 0, 0], [1, 17, 0], [1, 12, 20], [1, 1, 1], [1, 1, 1]] {
        let (mut batch, mut rows) = (Batch::default(), Vec::new());
        for (nth, (sequence, count)) in sequences.iter_mut().zip(counts).enumerate() {
            if count > 0 {
                sequence.put(&mut batch, count);
                batch.sequences.last_mut().unwrap().adapter = adapters.get(nth * 2 % 3).cloned();
                rows.extend(batch.tokens.len() as u32 - count.min(3) as u32..batch.tokens.len() as u32);
            }
        }
        all.extend(bits(&model.logits(&batch, &rows)));
    }
    all
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_one() {
    let shapes = [(2, 1), (4, 1), (8, 1), (1, 2), (2, 2)];
    let uneven = json!({"num_attention_heads": 24, "num_key_value_heads": 6, "attention_bias": true});
    let rounded = NumberTypes { bf16: true, ..NumberTypes::STORED };
    for (name, stored, changes, numbers) in [
        ("llama-gqa", Dtype::F32, json!({}), NumberTypes::STORED),
        ("llama3-rope", Dtype::BF16, uneven, rounded),
        ("qwen2", Dtype::F16, json!({"num_key_value_heads": 1}), NumberTypes::STORED),
        ("qwen3-bias-v5", Dtype::F16, json!({}), NumberTypes::STORED),
        ("gemma2", Dtype::BF16, json!({}), NumberTypes::STORED),
    ] {
        let model = make(name, stored, changes);
        let made = [(1, 16), (2, 5)].map(|(seed, rank)| make_adapter(model.path(), seed, rank));
        let directories: Vec<&Path> = made.iter().map(|directory| directory.path()).collect();
        let served =
            |shape, adapters: &[&Path]| on_ranks(model.path(), numbers, shape, (adapters, None), steps);
        let expected = served((1, 1), &directories).remove(0);
        assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()), "{name}");
        assert_ne!(served((1, 1), &[]).remove(0), expected, "{name}: the adapters matter");
        let merged = |shape| on_ranks(model.path(), numbers, shape, (&[], Some(directories[0])), steps);
        let of_merged = merged((1, 1)).remove(0);
        for (tensor, stages) in shapes {
            for (rank, got) in served((tensor, stages), &directories).into_iter().take(tensor).enumerate() {
                assert!(got == expected, "{name}: rank {rank} of {tensor} x {stages} has other bits");
            }
            for got in merged((tensor, stages)).into_iter().take(tensor) {
                assert!(got == of_merged, "{name}: a merged adapter on {tensor} x {stages}");
            }
        }
    }
}
