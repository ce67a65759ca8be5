//! What configurations of single families say, beyond the goldens.

use serde_json::{Map, Value, json};
use skein_kernels::cpu::experts::Score;
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::rope::{RopeScaling, Rotation, Temperature};
use skein_kernels::gate::Gate;

use super::FAMILIES;
use crate::LoadError;
use crate::config::ModelConfig;
use crate::spec::{LayerSpec, QkNorm, Spec};
use crate::state_spec::{ConvolutionSpec, DeltaSpec, KeyedDeltaSpec, Mixer, SpaceSpec, StateSpec};
use crate::tensors::{self, Place, Role, Stored, Tensor};

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
    let types = &types[..5];
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
fn layers_of_hybrids_are_those_that_the_configuration_says() {
    let hybrid = |family: &str, changes: Value| {
        let fields =
            json!({"model_type": family, "num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2});
        parse(fields, changes)
    };
    let attends = |spec: &Spec| {
        let of: Vec<bool> = spec.layers.iter().map(|layer| layer.mixer == Mixer::Attention).collect();
        let count = of.iter().filter(|attends| **attends).count();
        assert_eq!((spec.attention_layers(), spec.state_layers()), (count, 5 - count));
        of
    };
    for family in ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"] {
        let spec = hybrid(family, json!({}));
        assert_eq!(attends(&spec), [false, false, false, true, false]);
        let state = spec.state.unwrap();
        let StateSpec::Delta(DeltaSpec { key_heads, value_heads, key_dim, value_dim, taps, stored }) = state
        else {
            panic!("{state:?} is a delta network")
        };
        assert_eq!((key_heads, value_heads, key_dim, value_dim, taps), (16, 32, 128, 128, 4), "the defaults");
        assert_eq!((state.output_unit(), state.channels()), (256, 2 * 2048 + 4096));
        assert_eq!(stored.has_grouped_inputs, family == "qwen3_next");
        let attention = spec.attention;
        assert_eq!(
            (attention.head_dim, attention.pairs.rotated, attention.qk_norm),
            (256, 64, QkNorm::Heads)
        );
        assert_eq!(attention.qkv_width(), 2 * attention.q_width() + 2 * attention.kv_width());
        assert!(attention.has_gate && !attention.has_bias && spec.norm.offset == 1.0);
        assert_eq!(spec.layers[0].feed_forward.experts.is_some(), family != "qwen3_5_text");
    }
    let every_second = json!({"full_attention_interval": 2});
    assert_eq!(attends(&hybrid("qwen3_5_text", every_second)), [false, true, false, true, false]);
    let types = ["full_attention", "linear_attention"].map(|kind| [kind; 3]).concat();
    let listed = hybrid("qwen3_next", json!({"layer_types": types[1..], "full_attention_interval": 2}));
    assert_eq!(attends(&listed), [true, true, false, false, false]);
    let without = hybrid("qwen3_5_text", json!({"full_attention_interval": 1}));
    assert_eq!((without.state, without.kv_bytes_per_token(KvType::F32)), (None, 2 * 5 * 4 * 256 * 4));
    let kv = hybrid("qwen3_5_text", json!({})).kv_bytes_per_token(KvType::F32);
    assert_eq!(kv, 2 * 4 * 256 * 4, "one layer has a KV cache");
}

#[test]
fn layers_of_lfm2_convolve_or_attend() {
    let lfm2 = |changes: Value| {
        let fields = json!({"model_type": "lfm2", "num_hidden_layers": 4});
        parse(fields, changes)
    };
    let attends = |changes: Value| {
        let spec = lfm2(changes);
        let of = spec.layers.iter().map(|layer| layer.mixer == Mixer::Attention);
        (of.collect::<Vec<_>>(), spec.state)
    };
    assert_eq!(attends(json!({"intermediate_size": 96})), (vec![true; 4], None));
    let sized = json!({"block_ff_dim": 96, "full_attn_idxs": [1, 3], "conv_bias": true, "conv_L_cache": 4});
    let convolution = ConvolutionSpec { channels: 64, taps: 4, has_bias: true };
    let state = Some(StateSpec::Convolution(convolution));
    assert_eq!(attends(sized), (vec![false, true, false, true], state));
    let listed = json!({"block_ff_dim": 96, "full_attn_idxs": [1],
        "layer_types": ["full_attention", "conv", "conv", "conv"]});
    let state = Some(StateSpec::Convolution(ConvolutionSpec { taps: 3, has_bias: false, ..convolution }));
    assert_eq!(attends(listed), (vec![true, false, false, false], state));
    let inner = |changes: Value| lfm2(changes).inner_size();
    assert_eq!(inner(json!({"block_ff_dim": 12_288})), 8192);
    assert_eq!(inner(json!({"block_ff_dim": 6656, "block_ffn_dim_multiplier": 1.0})), 4608);
    assert_eq!(inner(json!({"intermediate_size": 10_752, "block_ffn_dim_multiplier": null})), 7168);
    assert_eq!(inner(json!({"intermediate_size": 10_752, "block_auto_adjust_ff_dim": false})), 10_752);
    assert!(lfm2(json!({"block_ff_dim": 96})).is_tied);
    assert!(!lfm2(json!({"block_ff_dim": 96, "tie_embedding": false, "tie_word_embeddings": true})).is_tied);
    let experts = |changes: Value| {
        let types = ["conv"; 4];
        let fields = json!({"model_type": "lfm2_moe", "num_hidden_layers": 4, "layer_types": types});
        let spec = parse(fields, changes);
        let has: Vec<bool> = spec.layers.iter().map(|layer| layer.feed_forward.experts.is_some()).collect();
        (has, spec.layers[3].feed_forward.inner_size, spec.layers[3].feed_forward.experts.unwrap())
    };
    let (has, inner, said) = experts(json!({}));
    assert_eq!((has, inner), (vec![false, false, true, true], 1792), "the defaults");
    assert_eq!((said.count, said.routing.per_token, said.routing.added), (32, 4, 1e-6));
    assert!(said.has_correction && said.routing.renormalises && said.routing.score == Score::Sigmoid);
    let changes = json!({"num_dense_layers": 0, "use_expert_bias": false, "norm_topk_prob": false});
    let (has, _, said) = experts(changes);
    assert!(has == [true; 4] && !said.has_correction && !said.routing.renormalises);
}

#[test]
fn layers_of_granite_hybrids_have_a_state_space_or_attend() {
    let granite = |changes: Value| {
        let fields = json!({"model_type": "granitemoehybrid", "num_hidden_layers": 3, "mamba_n_heads": 8});
        parse(fields, changes)
    };
    let types = ["mamba", "attention", "mamba"];
    let spec = granite(json!({"layer_types": types, "residual_multiplier": 0.5, "num_local_experts": 0}));
    let attends: Vec<bool> = spec.layers.iter().map(|layer| layer.mixer == Mixer::Attention).collect();
    assert_eq!(attends, [false, true, false]);
    assert!(!spec.rotations[0].is_any() && spec.layers[0].feed_forward.experts.is_none());
    assert_eq!(spec.inner_size(), 1024, "that of the shared network");
    let Some(StateSpec::Space(space)) = spec.state else { panic!("{:?} is a state space", spec.state) };
    let SpaceSpec { groups, heads, state_dim, head_dim, taps, has_taps_bias, eps, .. } = space;
    assert_eq!((groups, heads, state_dim, head_dim, taps), (1, 8, 256, 16, 4), "the defaults");
    assert!(has_taps_bias && eps == 1e-6 && spec.norm.eps == 4e-6, "only the stream is scaled");
    assert_eq!(spec.state.unwrap().width(), 2 * 128 + 2 * 256 + 8);
    let new = granite(json!({"layer_types": ["linear_attention", "full_attention", "full_attention"],
        "position_embedding_type": "rope", "time_step_limit": [0.0, null], "mamba_d_head": "auto"}));
    assert_eq!((new.state_layers(), new.rotations[0].is_any()), (1, true));
    let experts = new.layers[1].feed_forward.experts.unwrap();
    assert_eq!((experts.count, new.layers[1].feed_forward.inner_size), (8, 80));
    assert_eq!(experts.shared.map(|shared| (shared.inner_size, shared.is_weighted)), Some((1024, false)));
}

#[test]
fn layers_of_nemotron_h_have_a_mixer_or_a_network() {
    let nemotron = |changes: Value| {
        let fields = json!({"model_type": "nemotron_h", "head_dim": 16, "mamba_num_heads": 8, "num_hidden_layers": 4,
            "num_key_value_heads": 2, "hybrid_override_pattern": "M-*E"});
        parse(fields, changes)
    };
    let spec = nemotron(json!({"n_group": 2, "routed_scaling_factor": 2.5, "time_step_limit": [0.0, null]}));
    let kinds = |spec: &Spec| {
        let of = |layer: &LayerSpec| {
            let network = layer.feed_forward;
            (layer.mixer, network.inner_size, network.experts.is_some())
        };
        spec.layers.iter().map(of).collect::<Vec<_>>()
    };
    let expected = [
        (Mixer::State, 0, false),
        (Mixer::None, 80, false),
        (Mixer::Attention, 0, false),
        (Mixer::None, 7688, true),
    ];
    assert_eq!(kinds(&spec), expected);
    assert_eq!((spec.attention_layers(), spec.state_layers()), (1, 1));
    assert!(!spec.rotations[0].is_any() && spec.norm.eps == 1e-5);
    let network = spec.layers[3].feed_forward;
    assert_eq!((network.activation, network.is_gated), (Gate::SquaredRelu, false));
    let experts = network.experts.unwrap();
    assert_eq!((experts.count, experts.routing.per_token, experts.routing.scale), (8, 2, 2.5));
    assert!(experts.has_correction && experts.routing.score == Score::Sigmoid);
    assert_eq!(experts.shared.map(|shared| (shared.inner_size, shared.is_weighted)), Some((7688, false)));
    let latent = nemotron(json!({"moe_latent_size": 24}));
    let shape =
        |spec: &Spec, role| tensors::all(spec).into_iter().find(|it| it.role == role).map(|it| it.shape());
    assert_eq!(shape(&spec, Role::ExpertLatent), None);
    assert_eq!(shape(&latent, Role::ExpertLatent), Some(vec![24, 64]));
    assert_eq!(shape(&latent, Role::ExpertDown), Some(vec![24, 7688]));
    let Some(StateSpec::Space(space)) = spec.state else { panic!("{:?} is a state space", spec.state) };
    let SpaceSpec { groups, heads, state_dim, head_dim, taps, has_taps_bias, .. } = space;
    assert_eq!((groups, heads, state_dim, head_dim, taps, has_taps_bias), (8, 8, 128, 64, 4, true));
    // As newer versions and as others write it.
    let types = ["linear_attention", "mlp", "full_attention", "moe"];
    let listed =
        json!({"hybrid_override_pattern": null, "num_hidden_layers": null, "layers_block_type": types});
    assert_eq!(kinds(&nemotron(listed)), expected);
    let both =
        json!({"layer_types": ["mamba", "mlp", "attention", "moe"], "n_groups": 2, "mamba_n_groups": 4});
    let both = nemotron(both);
    assert_eq!((kinds(&both).as_slice(), both.state.unwrap().units()), (&expected[..], 4));
    // Every layer has one norm.
    let norms = tensors::all(&spec).into_iter().filter(|tensor| tensor.name.ends_with(".norm.weight"));
    assert_eq!(norms.filter(|tensor| !tensor.name.contains("mixer")).count(), 4);
}

#[test]
fn layers_of_kimi_linear_are_read_in_both_spellings() {
    let kimi = |changes: Value| {
        let fields = json!({"model_type": "kimi_linear", "num_hidden_layers": 5, "head_dim": 72, "rope_theta": 10_000.0});
        parse(fields, changes)
    };
    let lists = json!({"kda_layers": [1, 2, 4], "full_attn_layers": [3, 5], "head_dim": 16, "num_heads": 3,
        "short_conv_kernel_size": 3});
    let published = kimi(json!({"linear_attn_config": lists, "num_experts": 9, "num_experts_per_token": 2,
        "num_expert_group": 3, "topk_group": 2, "moe_renormalize": false, "num_shared_experts": 2}));
    let types =
        ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"];
    let saved = kimi(
        json!({"layer_types": types, "linear_head_dim": 16, "linear_num_heads": 3, "n_group": 3,
        "linear_conv_kernel_dim": 3, "n_routed_experts": 9, "num_experts_per_tok": 2, "topk_group": 2, "n_shared_experts": 2,
        "norm_topk_prob": false, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"]}),
    );
    assert_eq!(format!("{saved:?}"), format!("{published:?}"));
    // In Python, null is no truth.
    let experts = |spec: &Spec| spec.layers[1].feed_forward.experts.unwrap();
    assert!(experts(&kimi(json!({}))).routing.renormalises);
    assert!(!experts(&kimi(json!({"moe_renormalize": null}))).routing.renormalises);
    let attends =
        |spec: &Spec| spec.layers.iter().map(|layer| layer.mixer == Mixer::Attention).collect::<Vec<_>>();
    assert_eq!(attends(&saved), [false, false, true, false, true]);
    assert_eq!(attends(&kimi(json!({}))), [false, false, false, false, true], "the default");
    let state =
        StateSpec::KeyedDelta(KeyedDeltaSpec { heads: 3, head_dim: 16, taps: 3, has_negative_rates: false });
    assert_eq!((saved.state, state.width()), (Some(state), 4 * 48 + 3 + 48));
    let latent = saved.attention.latent.unwrap();
    assert_eq!((latent.query_rank, latent.query_dim(), saved.rotations[0].is_any()), (None, 192, false));
    let experts = saved.layers[1].feed_forward.experts.unwrap();
    assert!(experts.count == 9 && experts.has_correction && !experts.routing.renormalises);
    assert_eq!(experts.shared.map(|shared| shared.inner_size), Some(2048));
    assert!(saved.layers[0].feed_forward.experts.is_none() && saved.norm.eps == 1e-5);
    let longest = |fields: Value| {
        let mut config = json!({"model_type": "kimi_linear", "hidden_size": 64, "intermediate_size": 80,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256});
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ModelConfig::parse(config.as_object().unwrap(), &Map::new()).unwrap().max_position_embeddings
    };
    assert_eq!(longest(json!({"model_max_length": 4096})), 4096);
    assert_eq!(longest(json!({})), 1 << 20);
}

#[test]
fn queries_of_ministral3_get_warmer_with_the_fields_of_its_rotation() {
    let layer =
        |changes: Value| parse(json!({"model_type": "ministral3", "head_dim": 16}), changes).layers[1];
    let rope =
        json!({"rope_type": "default", "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 32});
    let warmer = Some(Temperature { every: 32, shift: 0, scale: 0.5 });
    assert_eq!(layer(json!({"rope_parameters": rope})).temperature, warmer);
    let by_default = Some(Temperature { every: 16_384, shift: 0, scale: 0.1 });
    assert_eq!(layer(json!({})).temperature, by_default);
    let plain = layer(json!({"rope_parameters": {"rope_type": "default"}, "sliding_window": 17}));
    assert_eq!((plain.temperature, plain.window), (None, Some(17)));
}

#[test]
fn deepseek_v3_2_is_served_as_far_as_its_attention_reads_all_positions() {
    let config = |changes: Value| {
        let mut config = json!({"model_type": "deepseek_v32", "hidden_size": 64, "intermediate_size": 80,
            "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256});
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::parse(config.as_object().unwrap(), &Map::new())
    };
    let of_default = config(json!({})).unwrap();
    assert_eq!(of_default.max_position_embeddings, 2048);
    assert!(of_default.check_is_dense(None).is_ok() && of_default.check_is_dense(Some(2048)).is_ok());
    let said = of_default.check_is_dense(Some(2049)).unwrap_err().to_string();
    for word in ["2049", "deepseek_v32", "up to 2048 tokens", "index_topk", "lower max_model_len"] {
        assert!(said.contains(word), "{said}");
    }
    let short = config(json!({"max_position_embeddings": 512, "index_topk": 1024, "mlp_layer_types":
        ["dense", "sparse", "dense", "sparse"], "layer_types": vec!["indexed_attention"; 4]}));
    let short = short.unwrap();
    let has_experts = short.spec.layers.iter().map(|layer| layer.feed_forward.experts.is_some());
    assert_eq!(has_experts.collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(short.max_position_embeddings, 512);
    for (field, value) in [("index_topk", json!(0)), ("layer_types", json!(["full_attention"]))] {
        let said = config(json!({field: value})).unwrap_err().to_string();
        assert!(said.contains(field), "{said}");
    }
}

#[test]
fn the_text_model_of_kimi_k2_5_is_that_of_deepseek_v3() {
    let text = json!({"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4,
        "vocab_size": 256, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "n_routed_experts": 384});
    let parse = |model_type: &str| {
        let mut text = text.clone();
        text["model_type"] = json!(model_type);
        let nested = json!({"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
            "tie_word_embeddings": false, "text_config": text});
        ModelConfig::parse(nested.as_object().unwrap(), &Map::new()).unwrap()
    };
    let (kimi, deepseek) = (parse("kimi_k2"), parse("deepseek_v3"));
    assert_eq!((kimi.model_type, kimi.max_position_embeddings), ("kimi_k2", 4096));
    assert_eq!(format!("{:?}", kimi.spec), format!("{:?}", deepseek.spec));
}

#[test]
fn the_text_model_of_qwen3_5_is_read_from_that_of_images() {
    let nested = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": false,
        "vision_config": {"model_type": "qwen3_5_moe", "hidden_size": 8},
        "text_config": {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 8, "mtp_num_hidden_layers": 1,
            "attn_output_gate": true, "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 10_000_000, "rope_type": "default"}},
    });
    let config = ModelConfig::parse(nested.as_object().unwrap(), &Map::new()).unwrap();
    let spec = config.spec;
    assert_eq!((config.model_type, config.max_position_embeddings), ("qwen3_5_moe_text", 32_768));
    assert_eq!((spec.hidden_size, spec.vocab_size, spec.layers.len()), (2048, 248_320, 8), "the defaults");
    assert_eq!(spec.rotations, [Rotation::new(128, 64, 1e7, &RopeScaling::None)]);
    let layer = spec.layers[7].feed_forward;
    let (experts, shared) = (layer.experts.unwrap(), layer.experts.unwrap().shared.unwrap());
    assert_eq!((layer.inner_size, experts.count, experts.routing.per_token), (512, 256, 8));
    assert!(experts.routing.renormalises && shared.is_weighted && shared.inner_size == 512);
}

#[test]
fn inputs_of_states_and_gates_are_found_key_head_by_key_head() {
    let tensors = |family: &str| {
        let fields = json!({"model_type": family, "num_hidden_layers": 2, "full_attention_interval": 2, "head_dim": 8,
            "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "linear_num_key_heads": 3,
            "linear_num_value_heads": 6, "linear_key_head_dim": 4, "linear_value_head_dim": 5});
        tensors::all(&parse(fields, json!({})))
    };
    let stored = |all: &[Tensor], role| {
        let tensor = all.iter().find(|tensor| tensor.role == role).unwrap();
        let Stored { name, shape, first_row, place } = &tensor.stored[0];
        let name = name.split_once("attn.").unwrap().1.strip_suffix(".weight").unwrap_or(name).to_owned();
        (name, shape.clone(), *first_row, *place)
    };
    let rows =
        |name: &str, shape: &[usize], first_row| (name.to_owned(), shape.to_vec(), first_row, Place::Rows);
    let runs = |name: &str, shape: &[usize], first_row, len, every| {
        (name.to_owned(), shape.to_vec(), first_row, Place::Runs { len, every })
    };
    let plain = tensors("qwen3_5_text");
    let qkv = [54, 64];
    assert_eq!(stored(&plain, Role::StateKey), rows("in_proj_qkv", &qkv, 12));
    assert_eq!(stored(&plain, Role::StateValue), rows("in_proj_qkv", &qkv, 24));
    assert_eq!(stored(&plain, Role::StateGate), rows("in_proj_z", &[30, 64], 0));
    assert_eq!(stored(&plain, Role::StateDecay), rows("in_proj_a", &[6, 64], 0));
    assert_eq!(stored(&plain, Role::StateTaps), rows("conv1d", &[54, 1, 4], 0));
    let grouped = tensors("qwen3_next");
    let (qkvz, ba) = ([84, 64], [12, 64]);
    assert_eq!(stored(&grouped, Role::StateQuery), runs("in_proj_qkvz", &qkvz, 0, 4, 28));
    assert_eq!(stored(&grouped, Role::StateKey), runs("in_proj_qkvz", &qkvz, 4, 4, 28));
    assert_eq!(stored(&grouped, Role::StateValue), runs("in_proj_qkvz", &qkvz, 8, 10, 28));
    assert_eq!(stored(&grouped, Role::StateGate), runs("in_proj_qkvz", &qkvz, 18, 10, 28));
    assert_eq!(stored(&grouped, Role::StateBeta), runs("in_proj_ba", &ba, 0, 2, 4));
    assert_eq!(stored(&grouped, Role::StateDecay), runs("in_proj_ba", &ba, 2, 2, 4));
    for all in [plain, grouped] {
        assert_eq!(stored(&all, Role::Query), runs("q_proj", &[64, 64], 0, 8, 16));
        assert_eq!(stored(&all, Role::QueryGate), runs("q_proj", &[64, 64], 8, 8, 16));
        assert_eq!(stored(&all, Role::Key), rows("k_proj", &[16, 64], 0));
    }
    assert_eq!([0, 3, 4, 11].map(|row| Place::Runs { len: 4, every: 28 }.row(row)), [0, 3, 28, 59]);
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
    for family in ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"] {
        refused(family, "attn_output_gate", json!(false), &["false", "true"]);
        refused(family, "linear_num_value_heads", json!(24), &["24", "multiple of linear_num_key_heads, 16"]);
        refused(family, "linear_conv_kernel_dim", json!(5), &["5", "to 4"]);
        refused(family, "linear_conv_kernel_dim", json!(1), &["1", "from 2 to 4"]);
        refused(family, "linear_key_head_dim", json!(18), &["18", "multiple of 4"]);
        refused(family, "layer_types", json!(["linear_attention", "mamba"]), &["mamba", "for each layer"]);
        refused(family, "hidden_act", json!("gelu"), &["gelu", "silu"]);
    }
    refused("lfm2", "full_attn_idxs", json!([-1]), &["[-1]", "a list of layers"]);
    refused("lfm2", "conv_L_cache", json!(5), &["5", "to 4"]);
    refused("lfm2", "block_ffn_dim_multiplier", json!(-1), &["-1", "from 0"]);
    refused("lfm2_moe", "layer_types", json!(["conv", "mamba"]), &["mamba", "conv or full_attention"]);
    refused("granitemoehybrid", "layer_types", json!(["conv"]), &["conv", "mamba or attention"]);
    refused("granitemoehybrid", "mamba_n_heads", json!(7), &["7", "divisor of 128"]);
    refused("granitemoehybrid", "mamba_n_groups", json!(3), &["3", "divisor of mamba_n_heads, 128"]);
    refused("granitemoehybrid", "mamba_d_head", json!(2), &["2", "1, so that"]);
    refused("granitemoehybrid", "mamba_proj_bias", json!(true), &["true", "false"]);
    refused("granitemoehybrid", "time_step_limit", json!([0.0, 0.1]), &["0.1", "from 0 to infinity"]);
    let letters = "hybrid_override_pattern";
    refused("nemotron_h", letters, json!("MX"), &["MX", "M, *, - or E"]);
    refused(
        "nemotron_h",
        letters,
        json!("M*-"),
        &["num_hidden_layers is 2", "3, as many as hybrid_override_pattern"],
    );
    refused("nemotron_h", letters, json!("M-"), &["M-", "one of which attends"]);
    refused("nemotron_h", letters, json!(""), &["1 to 4096 layers"]);
    refused("nemotron_h", letters, json!(null), &["layers_block_type", "missing"]);
    refused("nemotron_h", "layers_block_type", json!(["mamba", "conv"]), &["conv", "mlp and moe"]);
    let nemotron = |field: &str, value: Value, words: &[&str]| {
        let mut fields = json!({"model_type": "nemotron_h", letters: "M*E", "num_hidden_layers": 3, "head_dim": 16,
            "num_key_value_heads": 2});
        fields[field] = value;
        let error = try_parse(fields).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{error:?} says {word:?}"));
    };
    nemotron(
        "layers_block_type",
        json!(["moe", "mamba"]),
        &[letters, "the same layers as layers_block_type"],
    );
    for field in ["use_bias", "attention_bias", "mamba_proj_bias"] {
        nemotron(field, json!(true), &[field, "true", "false"]);
    }
    nemotron("mlp_bias", json!(true), &["mlp_bias", "with experts"]);
    nemotron("mlp_hidden_act", json!("silu"), &["silu", "relu2"]);
    nemotron("moe_latent_size", json!(0), &["moe_latent_size", "0", "from 1"]);
    nemotron("n_shared_experts", json!(2), &["n_shared_experts", "2"]);
    nemotron("sliding_window", json!(16), &["sliding_window", "16", "null"]);
    nemotron("n_groups", json!(3), &["3", "a divisor of mamba_num_heads, 128"]);
    nemotron("ssm_state_size", json!(10), &["10", "multiple of 4"]);
    nemotron("mamba_dt_limit", json!([0.1, 0.2]), &["mamba_dt_limit", "from 0 to infinity"]);
    nemotron("n_group", json!(3), &["3", "a divisor of n_routed_experts, 8"]);
    refused("olmo3", "rope_parameters", json!(3), &["3", "object"]);
    refused("kimi_linear", "mla_use_nope", json!(false), &["false", "true"]);
    refused("kimi_linear", "moe_router_activation_func", json!("softmax"), &["softmax", "sigmoid"]);
    refused("kimi_linear", "num_experts_per_token", json!(257), &["257", "at most", "256"]);
    refused("kimi_linear", "num_expert_group", json!(7), &["7", "divisor"]);
    refused("kimi_linear", "model_max_length", json!(0), &["0", "from 1"]);
    refused("kimi_linear", "linear_head_dim", json!(18), &["18", "multiple of 4"]);
    refused("kimi_linear", "linear_attn_config", json!(3), &["3", "object"]);
    refused("kimi_linear", "layer_types", json!(["mamba", "full_attention"]), &["mamba", "for each layer"]);
    refused("kimi_linear", "mlp_layer_types", json!(["dense"]), &["each of 2 layers"]);
    for (states, attend) in [
        (json!([1, 1]), json!([2])),
        (json!([1]), json!([1, 2])),
        (json!([0, 1]), json!([2])),
        (json!([1]), json!([3])),
        (json!([1]), json!([])),
        (json!([1]), json!("all")),
        (json!([1e9]), json!([2])),
    ] {
        let lists = json!({"kda_layers": states, "full_attn_layers": attend});
        let changes = json!({"model_type": "kimi_linear", "linear_attn_config": lists});
        let error = try_parse(changes).expect_err("each layer is in one list").to_string();
        assert!(error.contains("_layers") && error.contains("to 2"), "{lists}: {error}");
    }
    let without_range = json!({"model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": 0.1}});
    let error = try_parse(without_range).expect_err("no range").to_string();
    assert!(error.contains("original_max_position_embeddings is missing"), "{error}");
    let few_groups =
        json!({"model_type": "deepseek_v3", "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3});
    let error = try_parse(few_groups).expect_err("as a default, 4 of 3 groups").to_string();
    assert!(error.contains("topk_group is missing") && error.contains("1 to 3"), "{error}");
    refused("kimi_k2", "scoring_func", json!("softmax"), &["softmax", "sigmoid"]);
    for family in ["qwen3_5_text", "lfm2", "olmo3"] {
        refused(family, "layer_types", json!(vec!["full_attention"; 77]), &["full_attention", "entries"]);
    }
    refused("granitemoehybrid", "layer_types", json!(vec!["mamba"; 77]), &["mamba", "entries"]);
    refused("granitemoehybrid", "position_embedding_type", json!("rop"), &["rop", "rope, nope"]);
    let sliding_only = json!({"sliding_attention": {"rope_type": "default"}});
    refused("gemma4_text", "rope_parameters", sliding_only, &["full_attention and sliding_attention"]);
    refused("seed_oss", "attention_out_bias", json!(1), &["attention_out_bias", "1"]);
}

#[test]
fn sizes_of_new_families_that_contradict_each_other_or_are_out_of_range_are_named() {
    let refused = |model_type: &str, changes: Value, words: &[&str]| {
        let mut fields = json!({"model_type": model_type, "rms_norm_eps": 1e-5});
        fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let said = try_parse(fields).expect_err(&changes.to_string()).to_string();
        words.iter().for_each(|word| assert!(said.contains(word), "{changes}: {said:?} says {word:?}"));
    };
    refused("granitemoehybrid", json!({"mamba_chunk_size": 0}), &["mamba_chunk_size is 0", "from 1"]);
    refused("granitemoehybrid", json!({"mamba_chunk_size": "big"}), &["mamba_chunk_size", "big"]);
    refused("granitemoehybrid", json!({"num_local_experts": -1}), &["num_local_experts is -1", "from 0 to"]);
    refused("lfm2", json!({"conv_dim": 32}), &["conv_dim is 32", "hidden_size, 64"]);
    refused("lfm2", json!({"full_attn_idxs": [0, 2]}), &["full_attn_idxs is [0,2]", "from 0 to 1"]);
    refused("lfm2", json!({"full_attn_idxs": [-1]}), &["full_attn_idxs", "from 0 to 1"]);
    let gemma = "gemma4_text";
    refused(gemma, json!({"num_kv_shared_layers": -1}), &["num_kv_shared_layers is -1", "from 0 to 2"]);
    refused(
        gemma,
        json!({"hidden_size_per_layer_input": -1}),
        &["hidden_size_per_layer_input is -1", "from 0 to"],
    );
    refused(gemma, json!({"per_layer_config": {"1": {"head_size": 8}}}), &["head_dim and", "head_size"]);
    refused(gemma, json!({"per_layer_config": {"2": {"head_dim": 8}}}), &["layers from 0 to 1", "\"2\""]);
    refused(gemma, json!({"per_layer_config": {"x": {}}}), &["layers from 0 to 1", "\"x\""]);
    let nan = json!({"__float__": "NaN"});
    refused(gemma, json!({"final_logit_softcapping": nan}), &["final_logit_softcapping", "NaN", "a number"]);
}

#[test]
fn gemma4_scales_positions_by_yarn() {
    let yarn = json!({"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
        "original_max_position_embeddings": 64});
    let plain = json!({"rope_type": "default", "rope_theta": 500.0});
    let ropes = json!({"full_attention": yarn, "sliding_attention": plain});
    let spec = try_parse(json!({"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 16,
        "rope_parameters": ropes}))
    .unwrap();
    let scaled = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 64.0,
        truncate: true,
        amplitude: 0.1 * 4f64.ln() + 1.0,
    };
    assert_eq!(spec.rotations[0], Rotation::new(8, 16, 1000.0, &scaled));
    assert_eq!(spec.rotations[1], Rotation::plain(16, 500.0));
}

/// Rows of a section's table in the manual's page on models, by cells.
fn rows_of_manual(section: &str) -> Vec<Vec<&'static str>> {
    let page = include_str!("../../../docs/src/models.md");
    let text = page.split("\n## ").find(|text| text.starts_with(section)).expect("the section is there");
    let cells = |row: &'static str| row.trim_matches(['|', ' ']).split(" | ").collect();
    text.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

#[test]
fn gemma4_has_heads_and_rotations_of_two_kinds() {
    let gemma = |changes: Value| {
        let fields = json!({"model_type": "gemma4_text", "head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 7,
            "hidden_size_per_layer_input": 0});
        parse(fields, changes)
    };
    let heads = |spec: &Spec| {
        spec.attention_shapes()
            .map(|of| (of.head_dim, of.kv_heads, of.has_keys_as_values))
            .collect::<Vec<_>>()
    };
    let spec =
        gemma(json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1, "global_head_dim": 32}));
    assert_eq!(heads(&spec), [(32, 1, true), (16, 2, false)]);
    assert_eq!(heads(&gemma(json!({"num_global_key_value_heads": 1}))), [(512, 2, false), (16, 2, false)]);
    let by_layer = json!({"per_layer_config": {"5": {"head_dim": 32}, "6": {"head_dim": 32}}});
    assert_eq!(heads(&gemma(by_layer)), [(32, 2, false), (16, 2, false)]);
    let windows = spec.layers.iter().map(|layer| (layer.window, layer.rotation));
    assert_eq!(windows.collect::<Vec<_>>(), [[(Some(512), 1); 5].as_slice(), &[(None, 0); 2]].concat());
    // A quarter of the pairs rotates, with the frequencies of a whole head.
    let whole = Rotation::plain(32, 1e6).frequencies;
    let rotated = &spec.rotations[0].frequencies;
    assert!(
        rotated[..4] == whole[..4] && rotated[4..].iter().all(|frequency| *frequency == 0.0),
        "{rotated:?}"
    );
    let refused = |changes: Value| {
        let mut fields = json!({"model_type": "gemma4_text"});
        fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        try_parse(fields).unwrap_err().to_string()
    };
    let uneven = refused(json!({"num_hidden_layers": 7, "per_layer_config": {"5": {"head_dim": 32}}}));
    assert!(uneven.contains("per_layer_config") && uneven.contains("equal heads"), "{uneven}");
    assert!(refused(json!({"use_bidirectional_attention": "all"})).contains("one direction"));
    assert!(refused(json!({"num_kv_shared_layers": 2})).contains("num_kv_shared_layers"));
    assert!(refused(json!({"vocab_size_per_layer_input": 255})).contains("at least vocab_size, 256"));
}

#[test]
fn the_manual_lists_all_families() {
    let types: Vec<_> = rows_of_manual("Supported models").iter().map(|row| row[0]).collect();
    let types = types.join(", ");
    for family in FAMILIES {
        assert!(types.contains(&format!("`{}`", family.model_type)), "{} is not listed", family.model_type);
    }
}

#[test]
fn the_manual_says_which_architectures_are_served() {
    let rows = rows_of_manual("Architectures");
    assert_eq!(rows.len(), 40);
    for row in rows {
        let [class, model_type, _, served] = row[..] else { panic!("{row:?} has four cells") };
        let model_type = model_type.trim_matches('`');
        let is_known = FAMILIES.iter().any(|family| family.model_type == model_type);
        let is_served = !served.starts_with("no: ");
        assert_eq!(is_served, is_known, "{row:?}");
        let takes_images = class.ends_with("ForConditionalGeneration`");
        assert_eq!(served.starts_with("text only"), is_served && takes_images, "{row:?}");
    }
}
