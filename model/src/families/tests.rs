//! What configurations of single families say, beyond the goldens.

use serde_json::{Map, Value, json};
use skein_kernels::cpu::experts::Score;
use skein_kernels::cpu::rope::Rotation;

use crate::LoadError;
use crate::config::ModelConfig;
use crate::spec::{LayerSpec, QkNorm, Spec};

/// Parses a small configuration with `changes`.
fn try_parse(changes: Value) -> Result<Spec, LoadError> {
    let mut config = json!({
        "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 256,
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ModelConfig::parse(config.as_object().unwrap(), &Map::new()).map(|config| config.spec)
}

/// The same with the fields of both.
fn parse(mut fields: Value, changes: Value) -> Spec {
    fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    try_parse(fields).unwrap()
}

#[test]
fn only_layers_of_olmo3_without_a_window_are_scaled() {
    let rotations = |changes: Value| {
        let spec =
            parse(json!({"model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 16}), changes);
        let of = spec.layers.iter().map(|layer| (layer.window, layer.rotation));
        assert_eq!(of.collect::<Vec<_>>(), [(Some(16), 1), (Some(16), 1), (Some(16), 1), (None, 0)]);
        spec.rotations
    };
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let mut flat = linear.clone();
    flat["rope_theta"] = json!(1000.0);
    let scaled = rotations(json!({"rope_theta": 1000.0, "rope_scaling": linear}));
    assert_eq!((scaled[0].frequencies[0], scaled[1].frequencies[0]), (0.25, 1.0));
    assert_eq!(scaled[1], Rotation::plain(16, 1000.0));
    assert_eq!(rotations(json!({"rope_parameters": flat})), scaled);
    let plain = json!({"rope_type": "default", "rope_theta": 1000.0});
    let nested = json!({"full_attention": flat, "sliding_attention": plain});
    assert_eq!(rotations(json!({"rope_parameters": nested})), scaled);
    assert_eq!(rotations(json!({}))[0], Rotation::plain(16, 500_000.0));
}

#[test]
fn layers_of_exaone4_rotate_if_they_have_a_window_or_none_has() {
    let layers = |changes: Value| {
        let fields = json!({"model_type": "exaone4", "num_hidden_layers": 5, "sliding_window": 16});
        let spec = parse(fields, changes);
        let of = |layer: &LayerSpec| (layer.window.is_some(), spec.rotations[layer.rotation].is_any());
        spec.layers.iter().map(of).collect::<Vec<_>>()
    };
    let (local, global) = ((true, true), (false, false));
    assert_eq!(layers(json!({"sliding_window_pattern": 2})), [local, global, local, global, local]);
    assert_eq!(layers(json!({})), [local, local, local, global, local], "every fourth has none");
    let letters = json!({"sliding_window_pattern": "LLG"});
    assert_eq!(layers(letters), [local, local, global, local, global], "the last has none");
    let types = ["full_attention", "sliding_attention"].map(|kind| [kind; 3]).concat();
    let listed = json!({"sliding_window_pattern": "LLLG", "layer_types": types});
    assert_eq!(layers(listed), [global, global, global, local, local]);
    assert_eq!(layers(json!({"sliding_window": null})), [(false, true); 5]);
    // A window of the longest sequence has no effect, but the other layers still do not rotate.
    let wide = json!({"sliding_window": 256, "sliding_window_pattern": 2});
    let (rotates, rests) = ((false, true), (false, false));
    assert_eq!(layers(wide), [rotates, rests, rotates, rests, rotates]);
}

#[test]
fn layers_with_experts_are_those_that_the_configuration_says() {
    let with_experts = |fields: Value, changes: Value| {
        let mut fields = fields;
        fields["num_hidden_layers"] = json!(6);
        let spec = parse(fields, changes);
        let has = spec.layers.iter().enumerate().filter(|(_, layer)| layer.feed_forward.experts.is_some());
        has.map(|(index, _)| index).collect::<Vec<_>>()
    };
    let ernie = |changes| {
        with_experts(json!({"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2}), changes)
    };
    assert_eq!(ernie(json!({})), [1, 2, 3, 4, 5]);
    assert_eq!(ernie(json!({"moe_layer_end_index": -1, "moe_layer_interval": 2})), [1, 3, 5]);
    assert_eq!(ernie(json!({"moe_layer_start_index": 0, "moe_layer_end_index": 3})), [0, 1, 2, 3]);
    let lite = |changes| {
        let fields = json!({"model_type": "glm4_moe_lite", "n_routed_experts": 4, "num_experts_per_tok": 1});
        with_experts(fields, changes)
    };
    assert_eq!(lite(json!({})), [1, 2, 3, 4, 5]);
    assert_eq!(lite(json!({"first_k_dense_replace": 3})), [3, 4, 5]);
    let kinds = ["sparse", "dense", "sparse", "dense", "dense", "sparse"];
    assert_eq!(lite(json!({"first_k_dense_replace": 3, "mlp_layer_types": kinds})), [0, 2, 5]);
}

#[test]
fn a_choice_of_experts_has_the_fields_of_the_family() {
    let experts = |fields: Value, changes: Value| {
        let spec = parse(fields, changes);
        let layer = spec.layers.last().unwrap().feed_forward;
        (layer.inner_size, layer.experts.unwrap())
    };
    let ernie = json!({"model_type": "ernie4_5_moe", "moe_intermediate_size": 24});
    let (inner, said) =
        experts(ernie.clone(), json!({"moe_num_experts": 8, "moe_k": 3, "moe_norm_min": 0.25}));
    assert_eq!((inner, said.count, said.routing.per_token, said.routing.floor), (24, 8, 3, 0.25));
    assert!(said.has_correction && said.routing.renormalises && said.routing.score == Score::Softmax);
    assert_eq!(said.shared.map(|shared| shared.inner_size), Some(48), "two networks as wide as an expert");
    // The names that transformers maps to these.
    let (_, mapped) =
        experts(ernie, json!({"num_experts": 8, "num_experts_per_tok": 3, "moe_num_shared_experts": 0}));
    assert_eq!((mapped.count, mapped.routing.per_token, mapped.routing.floor), (8, 3, 1e-12));
    assert_eq!(mapped.shared, None);
    let minimax = json!({"model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2});
    let (inner, said) = experts(minimax.clone(), json!({}));
    assert_eq!((inner, said.count, said.routing.floor), (80, 8, 0.0));
    assert!(said.has_correction && said.routing.renormalises && said.routing.score == Score::Sigmoid);
    assert!(!experts(minimax, json!({"use_routing_bias": false})).1.has_correction);
}

#[test]
fn a_part_of_minimax_heads_is_rotated() {
    let attention = |changes: Value| {
        let fields = json!({"model_type": "minimax_m2", "num_local_experts": 8, "head_dim": 32});
        parse(fields, changes).attention
    };
    let rotated = |changes: Value| attention(changes).pairs.rotated;
    assert_eq!(rotated(json!({})), 32);
    assert_eq!(rotated(json!({"rotary_dim": 16})), 16);
    let parameters = json!({"rope_type": "default", "partial_rotary_factor": 0.25});
    assert_eq!(rotated(json!({"rotary_dim": 16, "rope_parameters": parameters})), 8);
    assert_eq!(attention(json!({})).qk_norm, QkNorm::Row);
    assert_eq!(attention(json!({"use_qk_norm": false})).qk_norm, QkNorm::None);
}

#[test]
fn what_a_family_lacks_is_refused_with_field_and_value() {
    let refused = |family: &str, field: &str, value: Value, words: &[&str]| {
        let mut fields = json!({"model_type": family});
        fields[field] = value;
        let error = try_parse(fields).expect_err(field).to_string();
        assert!(error.contains(field), "{error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{error:?} says {word:?}"));
    };
    refused("exaone4", "sliding_window_pattern", json!("LLX"), &["LLX", "letters L"]);
    refused("exaone4", "sliding_window_pattern", json!(""), &["letters L"]);
    refused("exaone4", "layer_types", json!(["full_attention"]), &["for each layer"]);
    refused("ernie4_5_moe", "use_bias", json!(true), &["biases beside experts"]);
    refused("ernie4_5_moe", "moe_k", json!(65), &["65", "at most moe_num_experts, 64"]);
    refused("ernie4_5_moe", "moe_layer_end_index", json!(-2), &["-2", "whole number"]);
    refused("ernie4_5_moe", "moe_norm_min", json!(2), &["2", "from 0 to 1"]);
    refused("minimax_m2", "rotary_dim", json!(129), &["129", "to 128"]);
    refused("minimax_m2", "scoring_func", json!("softmax"), &["softmax", "sigmoid"]);
    refused("minimax_m2", "attn_type_list", json!([1, 0]), &["[1,0]", "full attention"]);
    refused("minimax_m2", "shared_intermediate_size", json!(8), &["8"]);
    refused("glm4_moe_lite", "mlp_layer_types", json!(["dense"]), &["each of 2 layers"]);
    refused("glm4_moe_lite", "mlp_layer_types", json!(["dense", "wide"]), &["wide", "dense or sparse"]);
    refused("glm4_moe_lite", "attention_bias", json!(true), &["true"]);
    refused("olmo3", "rope_parameters", json!(3), &["3", "object"]);
    refused("seed_oss", "attention_out_bias", json!(1), &["attention_out_bias", "1"]);
}
