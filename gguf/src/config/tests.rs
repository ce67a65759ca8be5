//! Architectures whose keys have a value for each layer.

use serde_json::{Map, Value as Json, json};

use crate::GgufModel;
use crate::sample::{Sample, list, value};

const F32: u32 = 0;

fn whole(number: u32) -> Vec<u8> {
    value(4, &number.to_le_bytes())
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    list(4, numbers.len() as u64, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}

/// The file's config.json, or the error. `keys` replace those of the same name in `all`.
fn config(
    name: &str,
    all: &[(&str, Vec<u8>)],
    keys: &[(&str, Vec<u8>)],
    tensors: &[(&str, &[f32])],
) -> Result<Map<String, Json>, String> {
    let mut sample = Sample::default().text("general.architecture", name);
    let kept = all.iter().filter(|(key, _)| keys.iter().all(|(other, _)| other != key));
    for (key, value) in kept.chain(keys) {
        sample = sample.with(&format!("{name}.{key}"), value.clone());
    }
    let (mut data, mut offset) = (vec![0; 96], 96);
    sample = sample.tensor("token_embd.weight", &[8, 3], F32, 0);
    for (name, values) in tensors {
        sample = sample.tensor(name, &[values.len() as u64], F32, offset);
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
        offset = data.len() as u64;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    std::fs::write(&path, Sample { data, ..sample }.bytes()).unwrap();
    GgufModel::open(&path).unwrap().config().map_err(|error| error.to_string())
}

fn usual() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("block_count", whole(4)),
        ("context_length", whole(512)),
        ("embedding_length", whole(8)),
        ("feed_forward_length", whole(16)),
        ("attention.head_count", whole(2)),
        ("attention.head_count_kv", whole(2)),
        ("attention.layer_norm_rms_epsilon", value(6, &1e-5f32.to_le_bytes())),
    ]
}

fn gemma4(keys: &[(&str, Vec<u8>)], tensors: &[(&str, &[f32])]) -> Result<Map<String, Json>, String> {
    let own = [
        ("attention.key_length", whole(8)),
        ("attention.value_length", whole(8)),
        ("attention.key_length_swa", whole(4)),
        ("attention.value_length_swa", whole(4)),
        ("attention.sliding_window", whole(16)),
        ("attention.sliding_window_pattern", list(7, 4, &[1, 0, 1, 0])),
    ];
    config("gemma4", &[usual(), own.to_vec()].concat(), keys, tensors)
}

#[test]
fn gemma4_has_the_fields_of_its_lists() {
    let plain = gemma4(&[], &[("blk.1.attn_v.weight", &[0.0]), ("blk.3.attn_v.weight", &[0.0])]).unwrap();
    for (field, expected) in [
        ("model_type", json!("gemma4_text")),
        ("num_kv_shared_layers", json!(0)),
        ("use_double_wide_mlp", json!(false)),
        ("attention_k_eq_v", json!(false)),
        ("hidden_size_per_layer_input", json!(0)),
        ("intermediate_size", json!(16)),
    ] {
        assert_eq!(plain[field], expected, "{field}");
    }
    assert_eq!(plain["per_layer_config"]["0"], json!({"head_dim": 4, "num_key_value_heads": 2}));
    assert_eq!(plain["per_layer_config"]["1"], json!({"head_dim": 8, "num_key_value_heads": 2}));
    assert_eq!(plain["rope_parameters"]["full_attention"]["partial_rotary_factor"], 1.0);
    let keys = [
        ("attention.head_count_kv", numbers(&[2, 1, 2, 1])),
        ("feed_forward_length", numbers(&[16, 16, 32, 32])),
        ("attention.shared_kv_layers", whole(2)),
    ];
    let shared = gemma4(&keys, &[("rope_freqs.weight", &[1.0, 1e30, 1e30, 1e30])]).unwrap();
    assert_eq!(shared["per_layer_config"]["3"], json!({"head_dim": 8, "num_key_value_heads": 1}));
    assert_eq!((&shared["num_kv_shared_layers"], &shared["use_double_wide_mlp"]), (&json!(2), &json!(true)));
    assert_eq!(shared["attention_k_eq_v"], true, "a layer with keys and without values");
    let share = shared["rope_parameters"]["full_attention"]["partial_rotary_factor"].as_f64().unwrap();
    assert_eq!((share * 8.0 / 2.0) as usize, 1, "one of four pairs rotates");
}

#[test]
fn lists_of_gemma4_that_fit_no_model_are_refused() {
    let refused = |keys: &[(&str, Vec<u8>)], words: &[&str]| {
        let said = gemma4(keys, &[]).unwrap_err();
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    refused(&[("block_count", whole(0))], &["block_count is 0", "1 to 4096"]);
    refused(&[("block_count", whole(u32::MAX))], &["block_count", "1 to 4096"]);
    refused(&[("attention.head_count_kv", numbers(&[2, 1]))], &["head_count_kv", "a list of 4"]);
    refused(&[("attention.head_count_kv", numbers(&[2, 1, 1, 1]))], &["head_count_kv", "with a window"]);
    refused(&[("attention.sliding_window_pattern", list(7, 1, &[1]))], &["pattern", "a list of 4 booleans"]);
    refused(&[("attention.shared_kv_layers", whole(5))], &["shared_kv_layers is 5", "at most 4"]);
    refused(&[("feed_forward_length", numbers(&[16, 16, 16, 24]))], &["feed_forward_length", "twice"]);
    refused(&[("attention.value_length_swa", whole(8))], &["value_length_swa is 8", "key_length_swa, 4"]);
    refused(&[("rope.scaling.type", value(8, &crate::sample::text("yarn")))], &["rope.scaling.type", "none"]);
    for factors in [&[1.0, 1.0, 1e30, 2.0][..], &[1.0, 1e30], &[f32::NAN; 4]] {
        let said = gemma4(&[], &[("rope_freqs.weight", factors)]).unwrap_err();
        assert!(said.contains("rope_freqs.weight") && said.contains("4, first 1"), "{said}");
    }
}

#[test]
fn layers_of_granite_with_kv_heads_attend() {
    let all = |keys: &[(&str, Vec<u8>)]| {
        let own = [
            ("attention.head_count_kv", numbers(&[0, 2, 0, 0])),
            ("ssm.conv_kernel", whole(4)),
            ("ssm.state_size", whole(4)),
            ("ssm.group_count", whole(1)),
            ("ssm.inner_size", whole(16)),
            ("ssm.time_step_rank", whole(4)),
            ("expert_shared_feed_forward_length", whole(24)),
        ];
        // The first layer does not attend, and so has no biases of attention.
        let tensors: [(&str, &[f32]); 5] = [
            ("blk.0.attn_norm.weight", &[0.0]),
            ("blk.0.ssm_a", &[0.0]),
            ("blk.0.ssm_conv1d.bias", &[0.0]),
            ("blk.1.attn_q.bias", &[0.0]),
            ("blk.1.attn_output.bias", &[0.0]),
        ];
        let kept: Vec<_> = usual().into_iter().filter(|(key, _)| *key != "attention.head_count_kv").collect();
        config("granitehybrid", &[kept, own.to_vec()].concat(), keys, &tensors)
    };
    let found = all(&[]).unwrap();
    for (field, expected) in [
        ("model_type", json!("granitemoehybrid")),
        ("layer_types", json!(["mamba", "attention", "mamba", "mamba"])),
        ("num_local_experts", json!(0)),
        ("shared_intermediate_size", json!(24)),
        ("mamba_d_head", json!(4)),
        ("mamba_expand", json!(2)),
        ("mamba_conv_bias", json!(true)),
        ("attention_bias", json!(true)),
        ("position_embedding_type", json!("nope")),
    ] {
        assert_eq!(found[field], expected, "{field}");
    }
    assert_eq!(
        all(&[("rope.scaling.finetuned", value(7, &[1]))]).unwrap()["position_embedding_type"],
        "rope"
    );
    for (key, number, words) in [
        ("ssm.inner_size", 12, "a multiple of embedding_length"),
        ("ssm.time_step_rank", 3, "a divisor of ssm.inner_size"),
        ("ssm.time_step_rank", 0, "a divisor of ssm.inner_size"),
        ("embedding_length", 0, "a multiple of embedding_length"),
    ] {
        let said = all(&[(key, whole(number))]).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}
