//! Forms of quantised weights that a model without weights may have, and the `quantization_config` that
//! describes each to `--load-format dummy`.

use serde_json::{Value, json};

/// A form of quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantisedForm {
    /// Name, as the field has it: of a method, of a scheme of llm-compressor, or of a type of GGUF.
    pub name: &'static str,
    config: Config,
}

/// What the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Config {
    /// GPTQ, groups of 128.
    Gptq { bits: u32, act_order: bool },
    /// AWQ, groups of 128.
    Awq,
    /// compressed-tensors: format, type and bits of the weights, and their groups.
    Compressed { format: &'static str, of: &'static str, bits: u32, group: Group },
    /// FP8 in blocks of 128 by 128, as DeepSeek and Qwen publish it.
    Fp8Blocks,
    /// bitsandbytes.
    BitsAndBytes(&'static str),
    /// All matrices in a type of GGUF.
    Gguf(&'static str),
}

/// Inputs that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// All inputs of an output.
    Channel,
    /// This many.
    Of { inputs: u32, strategy: &'static str, is_symmetric: bool },
}

const fn integers(bits: u32, is_symmetric: bool) -> Config {
    let group = Group::Of { inputs: 128, strategy: "group", is_symmetric };
    Config::Compressed { format: "pack-quantized", of: "int", bits, group }
}

const fn floats(format: &'static str, inputs: u32, strategy: &'static str) -> Config {
    Config::Compressed {
        format,
        of: "float",
        bits: 4,
        group: Group::Of { inputs, strategy, is_symmetric: true },
    }
}

const fn channels(format: &'static str, of: &'static str) -> Config {
    Config::Compressed { format, of, bits: 8, group: Group::Channel }
}

const fn form(name: &'static str, config: Config) -> QuantisedForm {
    QuantisedForm { name, config }
}

/// All forms.
pub const FORMS: &[QuantisedForm] = &[
    form("gptq", Config::Gptq { bits: 4, act_order: false }),
    form("gptq_int8", Config::Gptq { bits: 8, act_order: false }),
    form("gptq_act_order", Config::Gptq { bits: 4, act_order: true }),
    form("awq", Config::Awq),
    form("w4a16", integers(4, true)),
    form("w4a16_asym", integers(4, false)),
    form("w8a16", integers(8, true)),
    form("w8a8", channels("int-quantized", "int")),
    form("fp8", channels("float-quantized", "float")),
    form("fp8_block", Config::Fp8Blocks),
    form("nvfp4", floats("nvfp4-pack-quantized", 16, "tensor_group")),
    form("mxfp4", floats("mxfp4-pack-quantized", 32, "group")),
    form("nf4", Config::BitsAndBytes("nf4")),
    form("fp4", Config::BitsAndBytes("fp4")),
    form("q2_k", Config::Gguf("Q2_K")),
    form("q3_k", Config::Gguf("Q3_K")),
    form("q4_k", Config::Gguf("Q4_K")),
    form("q5_k", Config::Gguf("Q5_K")),
    form("q6_k", Config::Gguf("Q6_K")),
    form("q4_0", Config::Gguf("Q4_0")),
    form("q4_1", Config::Gguf("Q4_1")),
    form("q5_0", Config::Gguf("Q5_0")),
    form("q5_1", Config::Gguf("Q5_1")),
    form("q8_0", Config::Gguf("Q8_0")),
    form("iq4_nl", Config::Gguf("IQ4_NL")),
];

impl QuantisedForm {
    /// The form with this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        FORMS.iter().find(|form| form.name.eq_ignore_ascii_case(name))
    }

    /// `quantization_config` of config.json.
    pub fn config(&self) -> Value {
        match self.config {
            Config::Gptq { bits, act_order } => json!({
                "quant_method": "gptq", "checkpoint_format": "gptq", "bits": bits, "group_size": 128,
                "sym": true, "desc_act": act_order, "lm_head": false,
            }),
            Config::Awq => json!({
                "quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128, "zero_point": true,
            }),
            Config::Compressed { format, of, bits, group } => compressed(format, of, bits, group),
            Config::Fp8Blocks => json!({
                "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            }),
            Config::BitsAndBytes(kind) => json!({
                "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": kind,
                "bnb_4bit_use_double_quant": false,
            }),
            Config::Gguf(kind) => json!({"quant_method": "gguf", "type": kind}),
        }
    }
}

fn compressed(format: &str, of: &str, bits: u32, group: Group) -> Value {
    let (size, strategy, is_symmetric) = match group {
        Group::Channel => (None, "channel", true),
        Group::Of { inputs, strategy, is_symmetric } => (Some(inputs), strategy, is_symmetric),
    };
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "ignore": ["lm_head"], "kv_cache_scheme": null,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": bits, "type": of, "symmetric": is_symmetric, "strategy": strategy, "group_size": size,
        }}},
    })
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use skein_model::config::ModelConfig;
    use skein_model::on_cuda::dummy::DummyCodes;
    use skein_model::on_cuda::network::Network;
    use skein_model::on_cuda::packed::Matrix;
    use skein_model::on_cuda::weights::forms_of_dummies;
    use skein_model::shard::Shard;
    use skein_model::tensors::Product;

    use super::*;

    #[test]
    fn every_form_is_one_that_cuda_computes_with() {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
        });
        for form in FORMS {
            let dir = tempfile::tempdir().unwrap();
            let mut config = config.clone();
            config["quantization_config"] = form.config();
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let spec = ModelConfig::from_dir(dir.path()).unwrap().spec;
            let codes = DummyCodes::of(dir.path(), false, None).unwrap();
            let forms = forms_of_dummies::<bf16>(&spec, &Shard::whole(&spec), &codes).unwrap();
            for product in Product::OF_A_LAYER {
                let matrix = Matrix::Product(Some(0), Network::Layer, product);
                assert!(forms.get(matrix).is_some(), "{} {product:?}", form.name);
            }
            let is_of_file = matches!(form.config, Config::Gguf(_));
            assert_eq!(forms.get(Matrix::Table).is_some(), is_of_file, "{}", form.name);
            assert_eq!(QuantisedForm::of(&form.name.to_uppercase()), Some(form));
        }
    }
}
