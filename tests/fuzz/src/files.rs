//! Files of models and adapters, which come from anywhere.

use skein_gguf::{GgufModel, Header};
use skein_model::adapter::Adapter;
use skein_model::checkpoint::Weights;
use skein_model::checkpoint::quantised::Described;
use skein_model::config::ModelConfig;
use skein_vocab::{TOKENIZER, Vocabulary};

use crate::input::{directory, join, parts, write};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "gguf",
            about: "a GGUF file: index, configuration, tokenizer",
            run: gguf,
            seeds: gguf_seeds,
            replays: 200,
        },
        Target {
            name: "checkpoint",
            about: "config.json, an index of weights and a safetensors file",
            run: checkpoint,
            seeds: checkpoint_seeds,
            replays: 200,
        },
        Target {
            name: "adapter",
            about: "a PEFT adapter's two files",
            run: adapter,
            seeds: adapter_seeds,
            replays: 200,
        },
        Target {
            name: "vocabulary",
            about: "SentencePiece, tekken, tiktoken, vocab.json and merges.txt",
            run: vocabulary,
            seeds: vocabulary_seeds,
            replays: 100,
        },
        Target {
            name: "hub",
            about: "a hub's listing of files, an index of weights, and names of models",
            run: hub,
            seeds: hub_seeds,
            replays: 1000,
        },
    ]
}

/// Largest seed; a fuzzer mutates small inputs faster.
const MOST: usize = 40_000;

fn read(path: impl AsRef<std::path::Path>) -> Vec<u8> {
    std::fs::read(skein_golden::path(path)).expect("a golden file")
}

fn gguf(data: &[u8]) {
    if let Ok(header) = Header::read(data) {
        for (key, range) in header.entries() {
            assert!(range.end <= data.len(), "{key}");
            let _ = header.get(data, key);
        }
        assert!(header.tensors.iter().all(|tensor| tensor.bytes.end <= data.len()));
    }
    let directory = directory();
    let path = write(&directory, &["a.gguf"], &[data]).join("a.gguf");
    if let Ok(model) = GgufModel::open(&path) {
        let _ = (model.config(), model.tokenizer(), model.tokenizer_digest());
        let _ = model.tokenizer_config();
        if let Ok(config) = ModelConfig::from_dir(&path) {
            assert!(config.eos_token_ids.iter().all(|id| *id < config.spec.vocab_size));
        }
        let _ = Weights::open(&path);
    }
}

fn gguf_seeds() -> Vec<Vec<u8>> {
    let models = ["chat", "cohere", "qwen3", "gemma2", "lfm2-moe", "deepseek-v2", "gpt-oss-mxfp4"];
    let files = models.map(|name| std::fs::read(skein_golden::gguf(name)).expect("a golden file"));
    let headers = files.into_iter().filter(|file| file.len() <= 4 * MOST);
    headers.chain([b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()]).collect()
}

fn checkpoint(data: &[u8]) {
    let names =
        ["config.json", "model.safetensors.index.json", "model.safetensors", "generation_config.json"];
    let directory = directory();
    let path = write(&directory, &names, &parts(data));
    let config = ModelConfig::from_dir(&path);
    let _ = Described::of(&path, false);
    let Ok(weights) = Weights::open(&path) else { return };
    let _ = (weights.scheme().is_some(), weights.file_bytes());
    let shapes: [&[usize]; 4] = [&[], &[8], &[8, 8], &[64, 32]];
    for name in [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "lm_head.weight",
    ] {
        for shape in shapes {
            let _ = weights.has_shape(name, shape);
            let _ = weights.rows(name, shape, 0..shape.first().copied().unwrap_or(0));
        }
    }
    if config.is_ok() {
        let _ = weights.kv_scales(0..2);
    }
}

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let configs = [
        "llama-gqa",
        "qwen3-moe",
        "gemma3",
        "deepseek-v3",
        "gpt-oss",
        "mistral-window",
        "rope-yarn",
        "nemotron-h",
    ];
    let small = small_safetensors();
    let index = br#"{"weight_map":{"model.norm.weight":"model.safetensors"}}"#;
    let mut seeds: Vec<Vec<u8>> =
        configs.map(|name| join(&[&read(format!("models/{name}/config.json"))[..], b"", &small])).into();
    let quantised = std::fs::read_dir(skein_golden::path("quantised")).into_iter().flatten().flatten();
    let quantised = quantised.filter_map(|entry| std::fs::read(entry.path().join("config.json")).ok());
    seeds.extend(quantised.map(|config| join(&[&config[..], index, &small])));
    seeds
}

/// Two tensors, one of them a matrix.
fn small_safetensors() -> Vec<u8> {
    let header = br#"{"model.norm.weight":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"lm_head.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[32,160]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 160]].concat()
}

fn adapter(data: &[u8]) {
    let directory = directory();
    let path = write(&directory, &["adapter_config.json", "adapter_model.safetensors"], &parts(data));
    if let Ok(adapter) = Adapter::open(&path) {
        let _ = (adapter.fingerprint(), adapter.id());
    }
}

fn adapter_seeds() -> Vec<Vec<u8>> {
    let names = ["llama-all", "phi3-fused", "glm-rotated"];
    let file = |name: &str, file: &str| read(format!("adapters/{name}/{file}"));
    let cut = |bytes: Vec<u8>| bytes[..bytes.len().min(MOST)].to_vec();
    names
        .map(|name| join(&[file(name, "adapter_config.json"), cut(file(name, "adapter_model.safetensors"))]))
        .into()
}

/// Names of files, of which an input has the first or, if that is empty, some others.
const VOCABULARY: [&str; 8] = [
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "config.json",
    "added_tokens.json",
];

fn vocabulary(data: &[u8]) {
    let directory = directory();
    let path = write(&directory, &VOCABULARY, &parts(data));
    if let Ok(Some(found)) = Vocabulary::find(&path) {
        let _ = found.digest();
        if let Ok(converted) = found.convert() {
            let _ = skein_text::fuzzing::tokenizer(&converted.json);
        }
    }
    assert!(!path.join(TOKENIZER).exists());
}

fn vocabulary_seeds() -> Vec<Vec<u8>> {
    let file = |name: &str| read(format!("tokenizers/{name}"));
    let cut = |bytes: Vec<u8>| bytes[..bytes.len().min(MOST)].to_vec();
    let config = |class: &str| format!(r#"{{"tokenizer_class":"{class}","bos_token":"<s>"}}"#).into_bytes();
    let model = |kind: &str| format!(r#"{{"model_type":"{kind}"}}"#).into_bytes();
    let none = Vec::new;
    vec![
        join(&[file("bpe.model"), none(), none(), none(), none(), config("LlamaTokenizer"), model("llama")]),
        join(&[file("unigram.model"), none(), none(), none(), none(), config("T5Tokenizer"), model("t5")]),
        join(&[none(), cut(file("tekken.json")), none(), none(), none(), none(), model("mistral")]),
        join(&[
            none(),
            none(),
            cut(file("tiktoken.model")),
            none(),
            none(),
            config("TikTokenTokenizer"),
            model("kimi_k2"),
        ]),
        join(&[
            none(),
            none(),
            none(),
            cut(file("vocab.json")),
            cut(file("merges.txt")),
            config("Qwen2Tokenizer"),
            model("qwen2"),
        ]),
    ]
}

fn hub(data: &[u8]) {
    skein_hub::fuzzing::listing(data);
    skein_hub::fuzzing::shards(data);
    if let Ok(text) = std::str::from_utf8(data) {
        for name in [skein_hub::ModelName::parse(text).is_ok(), skein_hub::Revision::parse(text).is_ok()] {
            assert!(!name || !text.split('/').any(|part| part.starts_with('.')), "{text:?}");
        }
    }
}

fn hub_seeds() -> Vec<Vec<u8>> {
    let sha = "ce013625030ba8dba906f756967f9e9ca394464a";
    let listing = format!(
        r#"{{"sha":"{sha}","siblings":[{{"rfilename":"config.json","blobId":"{sha}","size":4}},
        {{"rfilename":"model.safetensors","lfs":{{"sha256":"{}","size":9}}}},{{"rfilename":"tokenizer.json"}}]}}"#,
        "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    );
    let index =
        r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    [&listing, index, "openai/gpt-oss-20b", "refs/pr/1"].map(|text| text.as_bytes().to_vec()).into()
}
