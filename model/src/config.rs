//! Reads config.json and generation_config.json as written by Hugging Face transformers (versions 4 and 5).

use std::path::Path;

use serde_json::{Map, Value};

use super::checkpoint::ModelFile;
use super::checkpoint::quantised::Scheme;
use super::end_tokens;
use super::fields::{Fields, TEXT_CONFIG, read_object};
use super::pooling::PoolingSpec;
use super::pooling_files::{self, Pooled, Task};
use super::positions::default_positions;
use super::rope::object;
use super::spec::Spec;
use super::{LoadError, families, families::Family, tied};
use skein_proto::TokenId;

const CONFIG: &str = "config.json";
const POSITIONS: &str = "max_position_embeddings";
const GENERATION: &str = "generation_config.json";
/// Replaces the file name in messages about GGUF metadata, whose fields have the names of config.json.
const METADATA: &str = "the metadata of the GGUF file";

/// Validated configuration of a model, as needed for requests and the forward pass.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Model type of the family in config.json.
    pub model_type: &'static str,
    /// Longest sequence: that for which the model was trained, or up to which it is served.
    pub max_position_embeddings: u32,
    /// Tokens that end a sample.
    pub eos_token_ids: Vec<TokenId>,
    /// What it computes.
    pub spec: Spec,
    /// How it makes a vector of a prompt, if it does that instead of generating tokens.
    pub pooling: Option<PoolingSpec>,
}

impl ModelConfig {
    /// Reads and validates the configuration in `dir`, which may also be a GGUF file.
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        if let Some(file) = ModelFile::open(dir)? {
            let mut config = Self::of(METADATA, &file.config()?, &Map::new())?;
            file.adapt(&mut config.spec);
            if let Some(kind) = file.pooling_type() {
                config.pooling = Some(pooling_files::of_gguf(METADATA, kind, &mut config.spec)?);
            }
            return Ok(config);
        }
        let config = read_object(&dir.join(CONFIG))?;
        let generation = dir.join(GENERATION);
        let generation = if generation.exists() { read_object(&generation)? } else { Map::new() };
        let mut parsed = Self::parse(&config, &generation)?;
        parsed.spec.is_tied = tied::is_tied(dir, &config, &parsed.spec);
        let own = end_tokens::of_tokenizer(dir).filter(|id| *id < parsed.spec.vocab_size);
        parsed.eos_token_ids.extend(own.filter(|id| !parsed.eos_token_ids.contains(id)));
        let ModelConfig { spec, pooling, max_position_embeddings: longest, .. } = &mut parsed;
        pooling_files::apply(dir, Pooled { spec, pooling, longest })?;
        Ok(parsed)
    }

    /// Refuses sequences of `asked` tokens if they are longer than attention is served for.
    ///
    /// # Errors
    /// Names the limit.
    pub fn check_is_dense(&self, asked: Option<u32>) -> Result<(), LoadError> {
        match (asked, self.spec.dense_up_to) {
            (Some(got), Some(most)) if got > most => {
                Err(LoadError::Sparse { model_type: self.model_type, got, most })
            }
            _ => Ok(()),
        }
    }

    /// Validates the content of config.json and generation_config.json.
    pub fn parse(config: &Map<String, Value>, generation: &Map<String, Value>) -> Result<Self, LoadError> {
        Self::of(CONFIG, config, generation)
    }

    /// Like [`ModelConfig::parse`], for a configuration from `file`.
    fn of(
        file: &'static str,
        config: &Map<String, Value>,
        generation: &Map<String, Value>,
    ) -> Result<Self, LoadError> {
        let mut config = text_model(config)?;
        let family = families::find(&Fields { file, object: &config })?;
        for (field, size) in family.sizes {
            config.entry(*field).or_insert_with(|| (*size).into());
        }
        let mut own_names = Vec::new();
        for (usual, own) in family.own_names {
            let has_usual = config.contains_key(*usual);
            let value = config.get(*own).filter(|value| !value.is_null() || !has_usual).cloned();
            if let Some(value) = value {
                config.insert((*usual).to_owned(), value);
                own_names.push((*usual, *own));
            }
        }
        Self::of_family(file, family, config, generation).map_err(|error| error.naming(&own_names))
    }

    fn of_family(
        file: &'static str,
        family: &Family,
        mut config: Map<String, Value>,
        generation: &Map<String, Value>,
    ) -> Result<Self, LoadError> {
        if config.get(POSITIONS).is_none_or(Value::is_null)
            && let Some(longest) = default_positions(family.model_type)
        {
            config.insert(POSITIONS.to_owned(), longest.into());
        }
        let fields = Fields { file, object: &config };
        let task = Task::of(&fields, !fields.is_absent(TEXT_CONFIG))?;
        // Validated only; the weights read their scheme themselves.
        Scheme::in_config(fields.object)?;
        let mut spec = (family.spec)(&fields)?;
        let pooling = pooling_files::by_task(task, &fields, family, &mut spec)?;
        let generation = Fields { file: GENERATION, object: generation };
        Ok(Self {
            model_type: family.model_type,
            max_position_embeddings: fields.max_positions()?.min(spec.most_positions().unwrap_or(u32::MAX)),
            eos_token_ids: end_tokens::named(&fields, &generation, spec.vocab_size)?,
            spec,
            pooling,
        })
    }
}

/// Configuration of the text model. Models that also take images nest it in `text_config` and may keep some
/// fields outside. The head is outside, so whether it is tied is said there.
fn text_model(config: &Map<String, Value>) -> Result<Map<String, Value>, LoadError> {
    let fields = Fields { file: CONFIG, object: config };
    let Some(text) = object(&fields, TEXT_CONFIG)? else { return Ok(config.clone()) };
    let mut merged = config.clone();
    let is_of_text = |field: &str| field != tied::FIELD || fields.is_absent(field);
    let of_text = text.iter().filter(|(field, _)| is_of_text(field));
    merged.extend(of_text.map(|(field, value)| (field.clone(), value.clone())));
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_kernels::cpu::kv_cache::KvType;
    use skein_kernels::cpu::rope::Rotation;

    use super::*;
    use crate::spec::QkNorm;

    fn base() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
            "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "eos_token_id": 1,
        })
    }

    fn parse(changes: Value, generation: Value) -> Result<ModelConfig, LoadError> {
        let mut config = base();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        ModelConfig::parse(config.as_object().unwrap(), generation.as_object().unwrap())
    }

    /// Checks that the configuration with `changes` is refused with a message containing all of `words`.
    fn check_refused(changes: Value, words: &[&str]) {
        let message = parse(changes.clone(), json!({})).expect_err(&changes.to_string()).to_string();
        for word in words {
            assert!(message.contains(word), "{changes}: {message:?} says {word:?}");
        }
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = parse(json!({}), json!({})).unwrap();
        let attention = config.spec.attention;
        assert_eq!((attention.kv_heads, attention.head_dim, attention.pairs.rotated), (4, 16, 16));
        assert_eq!(config.spec.rotations, [Rotation::plain(16, 10_000.0)]);
        assert!(!config.spec.is_tied && !attention.has_bias);
        assert_eq!(config.eos_token_ids, [1]);
        let kv_bytes = [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8]
            .map(|kind| config.spec.kv_bytes_per_token(kind));
        assert_eq!(kv_bytes, [64, 32, 32, 20].map(|head_bytes| 2 * 2 * 4 * head_bytes));
    }

    #[test]
    fn a_latent_is_cached_once_for_all_heads() {
        // DeepSeek-V3's sizes are the defaults: 512 values of the latent, 64 of the rotated key.
        let v3 = parse(json!({"model_type": "deepseek_v3"}), json!({})).unwrap().spec;
        let of_type = |kind| v3.kv_bytes_per_token(kind);
        assert_eq!((of_type(KvType::Bf16), of_type(KvType::Int8)), (2 * 576 * 2, 2 * (576 + 4)));
        let latent = v3.attention.latent.unwrap();
        assert_eq!((latent.query_rank, latent.query_dim(), v3.attention.value_dim()), (Some(1536), 192, 128));
        let lite = json!({"model_type": "deepseek_v2", "q_lora_rank": null});
        let lite = parse(lite, json!({})).unwrap().spec.attention.latent.unwrap();
        assert_eq!(lite.query_rank, None);
    }

    #[test]
    fn keys_of_both_transformers_versions_are_read() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0});
        let rope = |changes| parse(changes, json!({})).unwrap().spec.rotations.remove(0);
        let old = rope(json!({"rope_theta": 500000.0, "rope_scaling": llama3}));
        assert_eq!(old, rope(json!({"rope_parameters": llama3, "dtype": "bfloat16"})));
        let legacy = rope(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}));
        assert_eq!(legacy.frequencies[0], 0.25);
        let dynamic = rope(json!({"rope_scaling": {"type": "dynamic", "factor": 4.0}}));
        assert_eq!(dynamic, rope(json!({})), "up to max_position_embeddings it scales nothing");
    }

    #[test]
    fn families_differ_where_they_do() {
        let attention = |changes| parse(changes, json!({})).unwrap().spec.attention;
        let qwen2 = attention(json!({"model_type": "qwen2"}));
        assert!(qwen2.has_bias && !qwen2.has_output_bias);
        let qwen3 = attention(json!({"model_type": "qwen3"}));
        assert!(qwen3.qk_norm == QkNorm::Heads && !qwen3.has_bias && qwen3.head_dim == 128);
        let biased = attention(json!({"model_type": "qwen3", "attention_bias": true}));
        assert!(biased.has_bias && biased.has_output_bias);
        let biased = parse(json!({"attention_bias": true, "mlp_bias": true}), json!({})).unwrap().spec;
        assert!(biased.attention.has_bias && biased.attention.has_output_bias);
        assert!(biased.layers.iter().all(|layer| layer.feed_forward.has_bias));
        let mistral = json!({"model_type": "mistral", "sliding_window": null, "head_dim": 32});
        assert_eq!(attention(mistral).head_dim, 32);
        let window = |changes| parse(changes, json!({})).unwrap().spec.layers[0].window;
        assert_eq!(window(json!({"model_type": "mistral", "sliding_window": 24})), Some(24));
        assert_eq!(
            window(json!({"model_type": "mistral", "sliding_window": 256})),
            None,
            "it covers the longest sequence"
        );
        let unsaid = json!({"model_type": "mistral", "max_position_embeddings": 8192});
        assert_eq!(window(unsaid), Some(4096));
    }

    #[test]
    fn the_text_model_of_a_model_with_images_is_read() {
        let nested = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
                "intermediate_size": 10240, "sliding_window": 1024,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        });
        let config = ModelConfig::parse(nested.as_object().unwrap(), &Map::new()).unwrap();
        let (spec, attention) = (config.spec.clone(), config.spec.attention);
        assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (8, 4, 256), "the defaults");
        assert_eq!((config.model_type, config.eos_token_ids.as_slice()), ("gemma3_text", &[1, 106][..]));
        let windows: Vec<_> = spec.layers[..7].iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [[Some(1024); 5].as_slice(), &[None, Some(1024)]].concat());
        assert_eq!((spec.layers[4].rotation, spec.layers[5].rotation), (1, 0));
        assert_eq!((spec.rotations[0].frequencies[0], spec.rotations[1].frequencies[0]), (0.125, 1.0));
    }

    /// tests/golden/saved_again.py: the tensors stay the same, so the same structure gives the same logits.
    #[test]
    fn models_that_transformers_saves_again_have_the_same_structure() {
        let object = |path: &Path| read_object(path).unwrap();
        let saved = object(&skein_golden::path("saved_again.json"));
        let (mut families, models) =
            (std::collections::BTreeSet::new(), saved["models"].as_object().unwrap());
        for (name, change) in models {
            let mut config = object(&skein_golden::path(format!("models/{name}/config.json")));
            let before = ModelConfig::parse(&config, &Map::new()).unwrap();
            change["gone"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|gone| drop(config.remove(gone.as_str().unwrap())));
            config.extend(change["new"].as_object().unwrap().clone());
            let after =
                ModelConfig::parse(&config, &Map::new()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let said = |config: &ModelConfig| format!("{config:?}");
            assert_eq!(said(&after), said(&before), "{name}");
            families.insert(before.model_type);
        }
        // transformers saves the text models of Kimi K2 as DeepSeek-V3's. Encoders are not among these
        // goldens.
        let absent = ["kimi_k2", "bert", "camembert", "gte", "modernbert", "new", "roberta", "xlm-roberta"];
        let saved = families::FAMILIES.iter().filter(|family| !absent.contains(&family.model_type));
        assert_eq!(families.len(), saved.count(), "one of every other family: {families:?}");
    }

    #[test]
    fn generation_config_takes_precedence_for_eos_tokens() {
        assert_eq!(parse(json!({}), json!({"eos_token_id": [7, 9]})).unwrap().eos_token_ids, [7, 9]);
        assert_eq!(
            parse(json!({"eos_token_id": null}), json!({})).unwrap().eos_token_ids,
            Vec::<TokenId>::new()
        );
    }

    #[test]
    fn ends_outside_the_vocabulary_are_left_out() {
        let ends = |ids: Value| parse(json!({"eos_token_id": ids}), json!({})).unwrap().eos_token_ids;
        assert_eq!(ends(json!(-1)), [0; 0]);
        assert_eq!(ends(json!([256, 7, -1, 1u64 << 40])), [7]);
        assert_eq!(parse(json!({}), json!({"eos_token_id": [256]})).unwrap().eos_token_ids, [0; 0]);
    }

    /// Writes `files` beside a config.json and reads the directory.
    fn in_directory(config: &str, files: &[(&str, Value)]) -> ModelConfig {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(CONFIG), config).unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content.to_string()).unwrap();
        }
        ModelConfig::from_dir(directory.path()).unwrap()
    }

    #[test]
    fn the_tokenizers_own_end_counts_beside_the_configured_ones() {
        let added = json!([{"id": 7, "content": "<|im_end|>"}]);
        let tokenizer = json!({"added_tokens": added, "model": {"vocab": {"</s>": 9}}});
        let eos = |token: Value| ("tokenizer_config.json", json!({"eos_token": token}));
        let named = |ids: Value| ("generation_config.json", json!({"eos_token_id": ids}));
        let declared = json!({"eos_token": "<e>", "added_tokens_decoder": {"12": {"content": "<e>"}}});
        let map = json!({"eos_token": {"content": "</s>"}});
        for (mut files, expected) in [
            (vec![eos(json!("<|im_end|>"))], vec![1, 7]),
            (vec![eos(json!({"content": "</s>"}))], vec![1, 9]),
            (vec![eos(json!("no such"))], vec![1]),
            (vec![eos(json!(null))], vec![1]),
            (vec![("tokenizer_config.json", declared)], vec![1, 12]),
            (vec![("special_tokens_map.json", map)], vec![1, 9]),
            (vec![named(json!([3])), eos(json!("</s>"))], vec![3, 9]),
            (vec![named(json!([7])), eos(json!("<|im_end|>"))], vec![7]),
        ] {
            files.push(("tokenizer.json", tokenizer.clone()));
            assert_eq!(in_directory(&base().to_string(), &files).eos_token_ids, expected, "{files:?}");
        }
    }

    #[test]
    fn what_python_writes_for_infinity_is_read() {
        let mut config = base();
        config["time_step_limit"] = json!([0.0, "INF"]);
        let config = config.to_string().replace("\"INF\"", "Infinity");
        assert_eq!(in_directory(&config, &[]).eos_token_ids, [1]);
    }

    #[test]
    fn a_missing_longest_sequence_is_that_of_the_family() {
        for (family, longest) in [("llama", 2048), ("qwen2", 32_768)] {
            let mut config = base();
            config["model_type"] = family.into();
            config["max_position_embeddings"] = Value::Null;
            let read = |config: &Value| {
                ModelConfig::parse(config.as_object().unwrap(), &Map::new()).unwrap().max_position_embeddings
            };
            assert_eq!(read(&config), longest, "{family}");
            config.as_object_mut().unwrap().remove("max_position_embeddings");
            assert_eq!(read(&config), longest, "{family}");
        }
        for family in families::FAMILIES {
            assert!(default_positions(family.model_type).is_some(), "{}", family.model_type);
        }
    }

    #[test]
    fn an_unsupported_model_is_refused_with_field_value_and_remedy() {
        check_refused(
            json!({"model_type": "gpt_neox"}),
            &["model_type", "gpt_neox, LlamaFor", "llama", "qwen3"],
        );
        check_refused(json!({"model_type": "qwen3_omni"}), &["qwen3_omni", "the nearest is qwen3)"]);
        check_refused(
            json!({"model_type": "mllama"}),
            &["mllama, LlamaForCausalLM is not supported; supported: bert"],
        );
        check_refused(json!({"model_type": 7}), &["model_type", "7", "llama"]);
        check_refused(json!({"model_type": null}), &["model_type", "null"]);
        check_refused(
            json!({"architectures": ["LlamaForTokenClassification"]}),
            &["architectures", "CausalLM", "SequenceClassification"],
        );
        check_refused(json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
        check_refused(
            json!({"quantization_config": {"quant_method": "quip"}}),
            &["quant_method", "quip", "GPTQ", "AWQ"],
        );
        check_refused(
            json!({"model_type": "mistral", "sliding_window": 0}),
            &["sliding_window", "0", "from 1"],
        );
        check_refused(json!({"num_attention_heads": 0}), &["num_attention_heads", "0", "from 1"]);
        check_refused(json!({"num_attention_heads": 5}), &["hidden_size", "64", "multiple"]);
        check_refused(json!({"num_key_value_heads": 3}), &["num_key_value_heads", "3", "divisor"]);
        check_refused(json!({"hidden_size": 1u64 << 60}), &["hidden_size", "1152921504606846976"]);
        check_refused(json!({"hidden_size": -4}), &["hidden_size", "-4"]);
        check_refused(json!({"hidden_size": "64"}), &["hidden_size", "\"64\""]);
        check_refused(json!({"vocab_size": 1e30}), &["vocab_size"]);
        check_refused(json!({"head_dim": 15}), &["head_dim", "15", "even"]);
        check_refused(json!({"head_dim": 1}), &["head_dim", "even"]);
        check_refused(json!({"rms_norm_eps": -1.0}), &["rms_norm_eps", "-1"]);
        check_refused(json!({"eos_token_id": "<eos>"}), &["eos_token_id", "<eos>", "a token id"]);
        check_refused(json!({"eos_token_id": [1, 2.5]}), &["eos_token_id", "2.5"]);
        check_refused(json!({"rope_scaling": {"rope_type": "ntk"}}), &["rope_type", "ntk", "llama3"]);
        check_refused(
            json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
            &["short_factor", "[1.0]", "a list of 8 numbers"],
        );
        check_refused(
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}}),
            &["beta_fast", "at least beta_slow, 2"],
        );
        check_refused(json!({"rope_scaling": {"rope_type": "linear"}}), &["factor", "missing"]);
        check_refused(json!({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}), &["factor", "0"]);
        check_refused(json!({"rope_parameters": 3}), &["rope_parameters", "3", "object"]);
        check_refused(
            json!({"partial_rotary_factor": 0.2}),
            &["partial_rotary_factor", "0.2", "even number"],
        );
        check_refused(json!({"text_config": 3}), &["text_config", "3", "object"]);
        check_refused(
            json!({"model_type": "gemma2", "layer_types": ["full_attention"]}),
            &["layer_types", "each layer"],
        );
        check_refused(
            json!({"model_type": "mixtral", "num_local_experts": 1}),
            &["num_experts_per_tok", "missing", "at most num_local_experts, 1"],
        );
        check_refused(json!({"model_type": "cohere", "use_qk_norm": true}), &["use_qk_norm", "true"]);
        check_refused(json!({"model_type": "olmoe", "clip_qkv": 8.0}), &["clip_qkv", "8.0"]);
        check_refused(
            json!({"model_type": "granite", "residual_multiplier": 0}),
            &["residual_multiplier", "0"],
        );
        check_refused(
            json!({"model_type": "smollm3", "no_rope_layers": [1]}),
            &["no_rope_layers", "2 layers"],
        );
        check_refused(
            json!({"model_type": "qwen3_moe", "mlp_only_layers": "all"}),
            &["mlp_only_layers", "all"],
        );
        let latent = |field: &str, value: Value, words: &[&str]| {
            for family in ["deepseek_v2", "deepseek_v3"] {
                let mut changes = json!({"model_type": family});
                changes[field] = value.clone();
                check_refused(changes, words);
            }
        };
        latent("num_key_value_heads", json!(2), &["num_key_value_heads", "2", "latent"]);
        latent("topk_method", json!("random"), &["topk_method", "random"]);
        latent("scoring_func", json!("tanh"), &["scoring_func", "tanh"]);
        latent("moe_layer_freq", json!(2), &["moe_layer_freq", "2"]);
        latent("attention_bias", json!(true), &["attention_bias", "true"]);
        latent("qk_rope_head_dim", json!(7), &["qk_rope_head_dim", "7", "even"]);
        latent("partial_rotary_factor", json!(0.5), &["partial_rotary_factor", "0.5"]);
        latent("kv_lora_rank", json!(0), &["kv_lora_rank", "0"]);
        check_refused(json!({"model_type": "deepseek_v2", "norm_topk_prob": true}), &["norm_topk_prob"]);
        check_refused(json!({"model_type": "deepseek_v3", "n_group": 7}), &["n_group", "7", "divisor"]);
        check_refused(
            json!({"model_type": "llama4_text", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
            &["rope_scaling", "yarn", "llama3"],
        );
        check_refused(json!({"model_type": "llama4_text", "moe_layers": 3}), &["moe_layers", "3", "list"]);
        check_refused(
            json!({"model_type": "llama4_text", "layer_types": ["sliding_attention"]}),
            &["layer_types", "chunked_attention"],
        );
        check_refused(json!({"model_type": "gpt_oss"}), &["rope_scaling", "missing"]);
        check_refused(
            json!({"model_type": "gpt_oss", "rope_parameters": {}, "swiglu_limit": "high"}),
            &["swiglu_limit", "high"],
        );
        check_refused(json!({"tie_word_embeddings": "yes"}), &["tie_word_embeddings", "yes"]);
    }
}
