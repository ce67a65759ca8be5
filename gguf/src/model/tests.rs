use serde_json::json;

use super::*;
use crate::sample::{Sample, list, texts, value};

const F32: u32 = 0;

fn llama() -> Sample {
    small("llama")
}

/// A small model of an architecture.
fn small(name: &str) -> Sample {
    let key = |key: &str| format!("{name}.{key}");
    Sample::default()
        .text("general.architecture", name)
        .number(&key("block_count"), 2)
        .number(&key("context_length"), 512)
        .number(&key("embedding_length"), 8)
        .number(&key("feed_forward_length"), 16)
        .number(&key("attention.head_count"), 2)
        .with(&key("attention.layer_norm_rms_epsilon"), value(6, &1e-5f32.to_le_bytes()))
        .tensor("token_embd.weight", &[8, 3], F32, 0)
        .data(96)
}

/// Opens the model in the file `open`; the error as text.
fn with(files: &[(&str, &Sample)], open: &str) -> Result<GgufModel, String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, sample) in files {
        std::fs::write(directory.path().join(name), sample.bytes()).unwrap();
    }
    GgufModel::open(&directory.path().join(open)).map_err(|error| error.to_string())
}

fn model(sample: &Sample) -> GgufModel {
    with(&[("m.gguf", sample)], "m.gguf").unwrap()
}

fn part(number: u16, count: u16, tensor: &str) -> Sample {
    let sample = if number == 0 { llama() } else { Sample::default().data(32) };
    let sample = if number == 0 { sample } else { sample.tensor(tensor, &[8], F32, 0) };
    sample
        .with("split.no", value(2, &number.to_le_bytes()))
        .with("split.count", value(2, &count.to_le_bytes()))
}

#[test]
fn a_part_that_is_a_pipe_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] =
        ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|it| directory.path().join(it));
    std::fs::write(&first, part(0, 2, "a").bytes()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&second).status().unwrap().success());
    assert!(is_gguf(&first) && !is_gguf(&second));
    let error = GgufModel::open(&first).err().unwrap().to_string();
    assert_eq!(
        error,
        format!("cannot read {}: it is a named pipe, and only regular files are read", second.display())
    );
}

#[test]
fn a_llama_has_the_fields_of_its_keys() {
    let config = model(&llama()).config().unwrap();
    for (field, expected) in [
        ("model_type", json!("llama")),
        ("vocab_size", json!(3)),
        ("head_dim", json!(4)),
        ("num_key_value_heads", json!(2)),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(false)),
    ] {
        assert_eq!(config[field], expected, "{field}");
    }
    let experts = llama().number("llama.expert_count", 4).number("llama.expert_used_count", 2);
    assert_eq!(model(&experts).config().unwrap()["model_type"], "mixtral");
    let list = list(4, 2, &[2, 0, 0, 0, 2, 0, 0, 0]);
    let per_layer = llama().with("llama.attention.head_count_kv", list);
    assert_eq!(model(&per_layer).config().unwrap()["num_key_value_heads"], 2);
}

#[test]
fn a_window_tells_olmo3_from_olmo2() {
    let config = |sample: &Sample| model(sample).config().unwrap();
    let plain = config(&small("olmo2"));
    assert_eq!((&plain["model_type"], plain.get("sliding_window")), (&json!("olmo2"), None));
    let windowed = small("olmo2").number("olmo2.attention.sliding_window", 16);
    let of_every_fourth = config(&windowed);
    assert_eq!(of_every_fourth["model_type"], "olmo3");
    assert_eq!(of_every_fourth["sliding_window"], 16);
    assert_eq!(of_every_fourth["sliding_window_pattern"], 4);
    let listed = config(&windowed.with("olmo2.attention.sliding_window_pattern", list(7, 2, &[0, 1])));
    assert_eq!(listed["layer_types"], json!(["full_attention", "sliding_attention"]));
}

#[test]
fn layers_of_exaone4_have_windows_only_if_the_file_has_one() {
    assert_eq!(model(&small("exaone4")).config().unwrap()["sliding_window"], json!(null));
    let windowed = small("exaone4").number("exaone4.attention.sliding_window", 16);
    assert_eq!(model(&windowed).config().unwrap()["sliding_window"], 16);
}

#[test]
fn experts_are_chosen_as_the_architecture_does_or_refused() {
    let with_experts = |name: &str, gating: Option<u32>| {
        let key = |key: &str| format!("{name}.{key}");
        let sample = small(name)
            .number(&key("expert_count"), 8)
            .number(&key("expert_used_count"), 2)
            .number(&key("expert_feed_forward_length"), 4)
            .number(&key("leading_dense_block_count"), 1);
        gating.into_iter().fold(sample, |sample, gating| sample.number(&key("expert_gating_func"), gating))
    };
    let config =
        |name, gating| model(&with_experts(name, gating)).config().map_err(|error| error.to_string());
    for gating in [None, Some(2)] {
        let minimax = config("minimax-m2", gating).unwrap();
        assert_eq!(
            (&minimax["model_type"], &minimax["num_local_experts"]),
            (&json!("minimax_m2"), &json!(8))
        );
        assert_eq!(minimax["use_routing_bias"], false, "the file has no correction");
    }
    for gating in [None, Some(1)] {
        let ernie = config("ernie4_5-moe", gating).unwrap();
        assert_eq!((&ernie["model_type"], &ernie["moe_num_experts"]), (&json!("ernie4_5_moe"), &json!(8)));
        assert_eq!((&ernie["moe_layer_start_index"], &ernie["moe_layer_interval"]), (&json!(1), &json!(1)));
        assert_eq!(ernie["moe_num_shared_experts"], 0);
    }
    for (name, gating, allowed) in [("minimax-m2", 1, "2 (sigmoid)"), ("ernie4_5-moe", 2, "1 (softmax)")] {
        let error = config(name, Some(gating)).unwrap_err();
        assert!(error.contains("expert_gating_func") && error.contains(allowed), "{error}");
    }
}

#[test]
fn layers_of_nemotron_h_are_what_lists_of_numbers_say() {
    let numbers = |numbers: &[u32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        list(4, numbers.len() as u64, &bytes)
    };
    let sample = |name: &str, heads: &[u32], networks: &[u32]| {
        let key = |key: &str| format!("{name}.{key}");
        let sizes = [
            ("embedding_length", 8),
            ("block_count", heads.len() as u32),
            ("context_length", 64),
            ("attention.head_count", 2),
            ("attention.key_length", 4),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 16),
            ("ssm.group_count", 2),
            ("ssm.time_step_rank", 4),
            ("ssm.inner_size", 32),
            ("expert_count", 3),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 12),
            ("expert_shared_feed_forward_length", 20),
        ];
        let sizes =
            sizes.into_iter().filter(|(size, _)| name == "nemotron_h_moe" || !size.starts_with("expert"));
        let sample = Sample::default().text("general.architecture", name);
        let sample = sizes.fold(sample, |sample, (size, number)| sample.number(&key(size), number));
        let sample = sample.with(&key("attention.head_count_kv"), numbers(heads));
        sample.with(&key("feed_forward_length"), numbers(networks))
    };
    let read = |name: &str, heads: &[u32], networks: &[u32]| {
        model(&sample(name, heads, networks)).config().map_err(|error| error.to_string())
    };
    let dense = read("nemotron_h", &[0, 0, 1], &[0, 16, 0]).unwrap();
    assert_eq!(dense["layers_block_type"], json!(["linear_attention", "mlp", "full_attention"]));
    let sizes =
        ["intermediate_size", "num_key_value_heads", "mamba_head_dim", "n_groups"].map(|it| &dense[it]);
    assert_eq!(sizes, [&json!(16), &json!(1), &json!(8), &json!(2)]);
    let experts = read("nemotron_h_moe", &[0, 1], &[12, 0]).unwrap();
    assert_eq!(experts["layers_block_type"], json!(["moe", "full_attention"]));
    let sizes = ["n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"];
    assert_eq!(sizes.map(|it| &experts[it]), [&json!(3), &json!(12), &json!(20)]);
    assert!(experts["moe_latent_size"].is_null() && experts["model_type"] == "nemotron_h");
    for (heads, networks, words) in [
        (&[1, 2][..], &[0, 0][..], ["head_count_kv", "one number for all layers that attend"]),
        (&[1, 0], &[0], ["feed_forward_length", "for each layer"]),
        (&[0, 0], &[8, 16], ["feed_forward_length", "one number for all layers with a network"]),
    ] {
        let error = read("nemotron_h", heads, networks).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let softmax = sample("nemotron_h_moe", &[1, 0], &[0, 12]).number("nemotron_h_moe.expert_gating_func", 1);
    let error = model(&softmax).config().unwrap_err().to_string();
    assert!(error.contains("expert_gating_func") && error.contains("2 (sigmoid)"), "{error}");
}

#[test]
fn biases_that_a_model_of_the_architecture_lacks_are_refused() {
    let with_bias = |name: &str, tensor: &str| {
        let sample = small(name).tensor(tensor, &[8], F32, 96).data(128);
        model(&sample).config().map_err(|error| error.to_string())
    };
    for name in ["exaone4", "minimax-m2", "ernie4_5-moe", "ernie4_5"] {
        let error = with_bias(name, "blk.0.attn_q.bias").unwrap_err();
        assert!(error.contains(&format!("{name} with biases of some of its")), "{error}");
    }
    let seed = with_bias("seed_oss", "blk.0.attn_output.bias").unwrap();
    let flags = ["attention_bias", "attention_out_bias", "mlp_bias"].map(|flag| seed[flag] == true);
    assert_eq!(flags, [false, true, false]);
}

#[test]
fn what_cannot_be_served_is_named() {
    let check = |sample: Sample, words: &[&str]| {
        let said = model(&sample).config().unwrap_err().to_string();
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    check(
        Sample::default().text("general.architecture", "mamba"),
        &["mamba", "supported: llama, mistral3, qwen2"],
    );
    check(Sample::default(), &["general.architecture", "missing"]);
    check(Sample::default().text("general.architecture", "qwen2"), &["qwen2.embedding_length", "missing"]);
    let uneven = list(4, 2, &[2, 0, 0, 0, 1, 0, 0, 0]);
    check(llama().with("llama.attention.head_count_kv", uneven), &["head_count_kv", "equal for all layers"]);
    let nan = value(6, &f32::NAN.to_le_bytes());
    check(llama().with("llama.rope.freq_base", nan), &["llama.rope.freq_base", "finite"]);
    check(llama().text("llama.rope.scaling.type", "ntk"), &["rope.scaling.type", "yarn"]);
    check(llama().tensor("blk.0.attn_q.bias", &[8], F32, 96).data(128), &["biases of some"]);
}

#[test]
fn parts_of_a_split_model_are_found_beside_each_other() {
    let parts = [part(0, 3, ""), part(1, 3, "b"), part(2, 3, "c")];
    let names = ["x-00001-of-00003.gguf", "x-00002-of-00003.gguf", "x-00003-of-00003.gguf"];
    let files: Vec<_> = names.into_iter().zip(&parts).collect();
    for open in names {
        let model = with(&files, open).unwrap();
        assert_eq!(model.tensors().count(), 3);
        assert!(model.tensor("c").is_some() && model.path_of("c").unwrap().ends_with(names[2]));
        assert_eq!(model.bytes("b", 4..8).unwrap().len(), 4);
        assert!(model.bytes("b", 4..33).is_none() && model.bytes("b", 8..usize::MAX).is_none());
        assert_eq!(model.config().unwrap()["vocab_size"], 3, "the first part has the metadata");
    }
    let check = |files: &[(&str, &Sample)], open: &str, words: &[&str]| {
        let said = with(files, open).err().unwrap();
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    check(&files[..2], names[0], &["cannot read", "x-00003-of-00003.gguf"]);
    check(&[("whole.gguf", &parts[0])], "whole.gguf", &["one of 3 parts", "rename"]);
    check(&[(names[0], &parts[1])], names[0], &["part 2 of 3", "part 1 of 3"]);
    check(&[(names[0], &part(0, 2, ""))], names[0], &["part 1 of 2", "part 1 of 3"]);
    let swapped = [(names[0], &parts[0]), (names[1], &parts[2]), (names[2], &parts[1])];
    check(&swapped, names[0], &["x-00002", "part 3 of 3"]);
    let twice = [(names[0], &parts[0]), (names[1], &parts[1]), (names[2], &part(2, 3, "b"))];
    check(&twice, names[0], &["tensor b occurs twice"]);
    check(&[(names[0], &part(0, u16::MAX, ""))], names[0], &["65535 parts"]);
}

#[test]
fn gguf_files_are_told_by_their_beginning_or_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    std::fs::write(&path, llama().bytes()).unwrap();
    assert!(is_gguf(&path) && !is_gguf(directory.path()) && !is_gguf(&directory.path().join("none.gguf")));
    let broken = directory.path().join("broken.GGUF");
    std::fs::write(&broken, "x").unwrap();
    assert!(is_gguf(&broken), "so that the error says what is wrong with it");
}

fn with_tokens(kind: &str, tokens: &[&str], types: &[u32]) -> Sample {
    let bytes: Vec<u8> = types.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    llama()
        .text("tokenizer.ggml.model", kind)
        .with("tokenizer.ggml.tokens", texts(tokens))
        .with("tokenizer.ggml.token_type", list(5, types.len() as u64, &bytes))
}

#[test]
fn tokenizers_are_built_and_bad_ones_named() {
    let byte_level = with_tokens("gpt2", &["<s>", "a", "b", "ab"], &[3, 1, 1, 1])
        .with("tokenizer.ggml.merges", texts(&["a b"]))
        .number("tokenizer.ggml.bos_token_id", 0)
        .text("tokenizer.chat_template", "{{ messages }}");
    let llama3 = model(&byte_level.clone().text("tokenizer.ggml.pre", "llama-bpe"));
    let json: serde_json::Value = serde_json::from_slice(&llama3.tokenizer().unwrap()).unwrap();
    assert_eq!(json["model"]["merges"], json!([["a", "b"]]));
    assert_eq!(json["added_tokens"][0]["content"], "<s>");
    assert_eq!(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
    let config = llama3.tokenizer_config();
    assert_eq!((&config["bos_token"], &config["chat_template"]), (&json!("<s>"), &json!("{{ messages }}")));
    let with_tools = model(&byte_level.clone().text("tokenizer.chat_template.tool_use", "{{ tools }}"));
    assert_eq!(
        with_tools.tokenizer_config()["chat_template"],
        json!([{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ tools }}"}])
    );
    let check = |sample: Sample, words: &[&str]| {
        let said = model(&sample).tokenizer().unwrap_err().to_string();
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    check(
        byte_level.clone().text("tokenizer.ggml.pre", "no-such"),
        &["tokenizer.ggml.pre", "no-such", "qwen2"],
    );
    check(with_tokens("gpt2", &["a"], &[1]).text("tokenizer.ggml.pre", "gpt-2"), &["merges"]);
    check(with_tokens("gpt2", &["a"], &[1, 1]), &["token_type"]);
    check(with_tokens("t5", &["a"], &[1]), &["tokenizer.ggml.model", "t5", "SentencePiece"]);
    check(with_tokens("llama", &["a"], &[1]), &["scores"]);
    check(llama(), &["tokenizer.ggml.tokens", "missing"]);
    let bad = [&1u64.to_le_bytes()[..], &[0xff]].concat();
    let not_text =
        llama().text("tokenizer.ggml.model", "gpt2").with("tokenizer.ggml.tokens", list(8, 1, &bad));
    check(not_text, &["tokenizer.ggml.tokens", "UTF-8"]);
}

/// What llama.cpp does with small vocabularies, from tests/golden/gguf/peer_tokenizers.py.
fn peer() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/gguf/models/peer_tokenizers.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Ids that end an answer and ids that are found in a text, of `tokens` of one type after eight others.
fn ends_and_found(kind: u32, tokens: &[&str]) -> [Vec<u64>; 2] {
    let all = [&["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"], tokens].concat();
    let types = [vec![1; 8], vec![kind; tokens.len()]].concat();
    let model = model(&with_tokens("gpt2", &all, &types).with("tokenizer.ggml.merges", texts(&["a b"])));
    let ids = |list: &serde_json::Value, id: &dyn Fn(&serde_json::Value) -> Option<u64>| {
        list.as_array().map_or_else(Vec::new, |list| list.iter().filter_map(id).collect())
    };
    let tokenizer: serde_json::Value = serde_json::from_slice(&model.tokenizer().unwrap()).unwrap();
    let config = model.config().unwrap();
    [
        config.get("eos_token_id").map_or_else(Vec::new, |list| ids(list, &|id| id.as_u64())),
        ids(&tokenizer["added_tokens"], &|token| token["id"].as_u64()),
    ]
}

#[test]
fn a_token_ends_an_answer_by_its_text_whatever_its_type() {
    let peer = peer();
    let list = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let ends = list(&peer["ends"]);
    for text in list(&peer["controls"]) {
        let expected = if ends.contains(&text) { vec![8] } else { vec![] };
        for kind in [1, 3, 4] {
            assert_eq!(ends_and_found(kind, &[&text]), [expected.clone(), vec![8]], "{text} of type {kind}");
        }
    }
    for case in peer["together"].as_array().unwrap() {
        let tokens = list(&case["tokens"]);
        let ids = |texts: Vec<String>| -> Vec<u64> {
            texts
                .iter()
                .map(|text| 8 + tokens.iter().position(|token| token == text).unwrap() as u64)
                .collect()
        };
        let kind = case["type"].as_u64().unwrap() as u32;
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let expected = [ids(list(&case["ends"])), ids(list(&case["whole"]))];
        assert_eq!(ends_and_found(kind, &tokens), expected, "{case}");
    }
}

#[test]
fn ends_named_by_the_file_count_if_the_vocabulary_has_them() {
    let sample = with_tokens("gpt2", &["a", "b", "<PAD>", "[PAD]"], &[1, 3, 1, 1])
        .number("tokenizer.ggml.eos_token_id", 1)
        .number("tokenizer.ggml.eot_token_id", 99)
        .number("tokenizer.ggml.fim_pad_token_id", 3);
    assert_eq!(model(&sample).config().unwrap()["eos_token_id"], json!([1, 3]));
    let unnamed = with_tokens("llama", &["<unk>", "<s>", "</x>", "a"], &[2, 3, 3, 1]);
    assert_eq!(model(&unnamed).config().unwrap()["eos_token_id"], json!([2]), "SentencePiece's own");
    assert_eq!(model(&unnamed).tokenizer_config()["bos_token"], "<s>");
}

#[test]
fn white_space_after_special_tokens_of_phi_3_is_dropped() {
    let sample = with_tokens("gpt2", &["<s>", "</s>", "<|user|>", "<|endoftext|>"], &[3, 3, 4, 3])
        .with("tokenizer.ggml.merges", texts(&["a b"]));
    for (name, strips) in [("My PHI-3 mini", true), ("phi3", true), ("Phi 3", false)] {
        let model = model(&sample.clone().text("general.name", name));
        let json: serde_json::Value = serde_json::from_slice(&model.tokenizer().unwrap()).unwrap();
        let rstrip = |id: usize| json["added_tokens"][id]["rstrip"] == true;
        assert_eq!([0, 1, 2, 3].map(rstrip), [false, strips, strips, false], "{name}");
    }
}
