use serde_json::{Map, json};
use skein_kernels::cpu::kv_cache::KvType;

use super::*;
use crate::config::ModelConfig;

fn spec(changes: &[(&str, serde_json::Value)]) -> Spec {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
    });
    for (field, value) in changes {
        config[field] = value.clone();
    }
    ModelConfig::parse(config.as_object().unwrap(), &Map::new()).unwrap().spec
}

fn models() -> Vec<Spec> {
    let biases = ("attention_bias", json!(true));
    vec![
        spec(&[]),
        spec(&[("model_type", json!("qwen2"))]),
        spec(&[("model_type", json!("qwen3")), biases.clone(), ("num_key_value_heads", json!(8))]),
        spec(&[("model_type", json!("mistral")), ("num_key_value_heads", json!(1))]),
        // Phi-4 has 10 KV heads, so some are on two of four ranks.
        spec(&[
            ("num_attention_heads", json!(40)),
            ("num_key_value_heads", json!(10)),
            ("vocab_size", json!(100_352)),
            biases,
            ("mlp_bias", json!(true)),
        ]),
        spec(&[("tie_word_embeddings", json!(true)), ("vocab_size", json!(64))]),
    ]
}

#[test]
fn all_ranks_together_hold_every_value_and_only_kv_heads_and_vectors_twice() {
    for (spec, ranks) in models().iter().flat_map(|spec| [1, 2, 4, 8].map(|ranks| (spec, ranks))) {
        let shards: Vec<Shard> = (0..ranks).map(|rank| Shard::new(spec, rank, ranks).unwrap()).collect();
        for tensor in tensors::all(spec) {
            let mut held = vec![0; tensor.len()];
            for shard in &shards {
                let part = shard.part(spec, &tensor);
                for row in part.rows {
                    held[row * tensor.cols + part.cols.start..row * tensor.cols + part.cols.end]
                        .iter_mut()
                        .for_each(|times| *times += 1);
                }
            }
            let most = match tensor.role {
                Role::Key | Role::Value => ranks.min(shards[0].group),
                Role::Query | Role::Gate | Role::Up | Role::Head | Role::Embedding => 1,
                _ if is_divided_by_inputs(&tensor) => 1,
                _ => ranks,
            };
            let all_within = held.iter().all(|times| (1..=most).contains(times));
            assert!(all_within, "{} on {ranks} ranks, {:?}", tensor.name, spec.attention);
        }
    }
}

#[test]
fn a_rank_has_the_kv_heads_that_its_query_heads_read() {
    for (spec, ranks) in models().iter().flat_map(|spec| [1, 2, 4, 8].map(|ranks| (spec, ranks))) {
        for rank in 0..ranks {
            let shard = Shard::new(spec, rank, ranks).unwrap();
            let (own, group) = (shard.spec(spec).attention, spec.attention.heads / spec.attention.kv_heads);
            assert_eq!((own.heads, own.kv_heads), (shard.heads.len(), shard.kv_heads.len()));
            for (i, head) in shard.heads.clone().enumerate() {
                let local = (shard.skipped_heads() + i) / group;
                assert_eq!(
                    shard.kv_heads.start + local,
                    head / group,
                    "head {head} of rank {rank} of {ranks}"
                );
            }
            assert!(shard.kv_heads.clone().all(|kv| shard.heads.clone().any(|head| head / group == kv)));
        }
    }
    let uneven = &models()[4];
    let kv_heads: Vec<_> = (0..4).map(|rank| Shard::new(uneven, rank, 4).unwrap().kv_heads).collect();
    assert_eq!(kv_heads, [0..3, 2..5, 5..8, 7..10]);
}

#[test]
fn the_vocabulary_is_divided_in_units_with_a_short_last_rank() {
    let of = |vocab_size: usize, ranks| -> Vec<_> {
        (0..ranks).map(|rank| vocabulary_of(vocab_size, rank, ranks)).collect()
    };
    assert_eq!(of(300, 2), [0..192, 192..300]);
    assert_eq!(of(300, 4), [0..128, 128..256, 256..300, 300..300]);
    assert_eq!(of(300, 1), vec![Range { start: 0, end: 300 }]);
    let shard = Shard::new(&spec(&[]), 0, 4).unwrap();
    assert_eq!([0, 127, 128, 299].map(|token| shard.owner(token)), [0, 0, 1, 2]);
}

#[test]
fn a_rank_holds_its_fraction_of_the_values() {
    let spec = spec(&[("vocab_size", json!(4096)), ("num_key_value_heads", json!(8))]);
    let whole = Shard::whole(&spec).values(&spec);
    let vectors: u64 =
        tensors::all(&spec).iter().filter(|t| t.kind == Kind::Norm).map(|t| t.len() as u64).sum();
    for ranks in [2, 4, 8] {
        for rank in 0..ranks {
            let values = Shard::new(&spec, rank, ranks).unwrap().values(&spec);
            assert_eq!(values, (whole - vectors) / ranks as u64 + vectors, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn ranks_that_a_model_cannot_have_are_refused_with_the_reason() {
    let refused = |changes: &[(&str, serde_json::Value)], ranks| {
        Shard::new(&spec(changes), 0, ranks).expect_err("it cannot be divided").to_string()
    };
    let small = refused(&[("intermediate_size", json!(80))], 2);
    for word in ["2 ranks", "model.layers.0.mlp.down_proj.weight", "80 inputs", "1 leaves"] {
        assert!(small.contains(word), "{small:?} says {word:?}");
    }
    let whole = Shard::whole(&spec(&[])).of_stage(&spec(&[]), 0, 3).unwrap_err().to_string();
    assert_eq!(whole, "3 stages cannot share this model: it has 2 layers, and a stage has at least one");
    for ranks in [3, 6, 16] {
        assert!(refused(&[], ranks).contains("8 leaves"), "{ranks} ranks");
    }
}

#[test]
fn stages_together_hold_every_layer_once_and_the_head_is_weighed() {
    let of = |layers: usize, vocab: u32, stages: usize| -> Vec<Range<usize>> {
        let spec = spec(&[("num_hidden_layers", json!(layers)), ("vocab_size", json!(vocab))]);
        let stage = |stage| Shard::whole(&spec).of_stage(&spec, stage, stages).unwrap().layers;
        (0..stages).map(stage).collect()
    };
    assert_eq!(of(8, 64, 1), vec![Range { start: 0, end: 8 }]);
    assert_eq!(of(8, 64, 2), [0..4, 4..8]);
    // A layer has 139,264 multiplied weights: the head is as heavy as two layers.
    assert_eq!(of(8, 4352, 2), [0..5, 5..8]);
    assert_eq!(of(4, 64, 4), [0..1, 1..2, 2..3, 3..4]);
    for stages in 1..=7 {
        let all = of(7, 1000, stages);
        assert!(all.iter().all(|layers| !layers.is_empty()) && all[0].start == 0 && all[stages - 1].end == 7);
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
    }
    let spec = spec(&[("tie_word_embeddings", json!(true))]);
    let held: u64 =
        (0..2).map(|stage| Shard::whole(&spec).of_stage(&spec, stage, 2).unwrap().values(&spec)).sum();
    let table = 300 * 64;
    assert_eq!(held, Shard::whole(&spec).values(&spec) + table, "a tied table is in the first and the last");
}

#[test]
fn an_expert_is_whole_on_one_rank() {
    let spec = spec(&[
        ("model_type", json!("mixtral")),
        ("num_local_experts", json!(6)),
        ("num_experts_per_tok", json!(2)),
    ]);
    let shards: Vec<Shard> = (0..4).map(|rank| Shard::new(&spec, rank, 4).unwrap()).collect();
    assert_eq!(shards[0].experts, [0, 1, 1, 2, 3, 3]);
    for tensor in tensors::all(&spec).iter().filter(|tensor| tensor.expert.is_some()) {
        let parts: Vec<usize> = shards.iter().map(|shard| shard.part(&spec, tensor).len()).collect();
        let owner = shards[0].experts[tensor.expert.unwrap()];
        assert!(
            parts.iter().enumerate().all(|(rank, len)| *len == if rank == owner { tensor.len() } else { 0 })
        );
    }
    assert_eq!(shards[1].spec(&spec).inner_size(), spec.inner_size());
}

#[test]
fn a_stage_that_would_read_another_stages_keys_is_refused() {
    let types = [["sliding_attention"; 3].as_slice(), &["full_attention"]].concat().repeat(2);
    let gemma = |inputs: usize| {
        spec(&[
            ("model_type", json!("gemma4_text")),
            ("num_hidden_layers", json!(8)),
            ("num_kv_shared_layers", json!(4)),
            ("hidden_size_per_layer_input", json!(inputs)),
            ("vocab_size_per_layer_input", json!(300)),
            ("global_head_dim", json!(64)),
            ("layer_types", json!(types)),
        ])
    };
    let said = |inputs| {
        let spec = gemma(inputs);
        Shard::whole(&spec).of_stage(&spec, 0, 2).unwrap_err().to_string()
    };
    assert!(said(0).contains("layer 4 reads the keys and values of layer 2"), "{}", said(0));
    assert!(said(16).contains("inputs besides the residual stream"), "{}", said(16));
    let (spec, kind) = (gemma(0), KvType::F32);
    // Three layers of two KV heads of 32 values, one of 64; keys and values.
    assert_eq!(spec.windowed_kv_bytes_per_token(kind), 3 * 2 * 2 * kind.head_bytes(32) as u64);
    assert_eq!(
        spec.kv_bytes_per_token(kind),
        (3 * 2 * 2 * kind.head_bytes(32) + 2 * 2 * kind.head_bytes(64)) as u64
    );
    for rank in 0..4 {
        let own = Shard::new(&spec, rank, 4).unwrap().spec(&spec);
        assert_eq!((own.attention.heads, own.attention_of(0).heads, own.attention_of(0).kv_heads), (2, 2, 1));
    }
}
