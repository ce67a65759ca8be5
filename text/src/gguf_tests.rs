//! Compares tokenizers of GGUF files with the programs that produced the files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::sample::{Sample, list, texts};
use super::model_text::{ChatPrompt, ModelText};
use super::tokenizer::Tokenizer;

#[allow(dead_code)] // gguf's own tests use the rest
#[path = "../../gguf/src/sample.rs"]
mod sample;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn load(path: &Path) -> ModelText {
    ModelText::load(path, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Texts mixed from `parts` by a generator with the seed `seed`.
fn mixtures(parts: &[String], count: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut mix = || -> String {
        let count = 1 + next(9);
        (0..count)
            .flat_map(|_| {
                let (part, len) = (&parts[next(parts.len())], 1 + next(14));
                part.chars().take(len).collect::<Vec<char>>()
            })
            .collect()
    };
    (0..count).map(|_| mix()).collect()
}

#[test]
fn byte_level_ids_are_those_of_the_tokenizer_json_that_the_file_was_made_from() {
    let (ours, theirs) = (load(&skein_golden::gguf("chat")), load(&root("models/skein-7m")));
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/tokenization.json")).unwrap();
    let mut texts: Vec<String> = golden["strings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["text"].as_str())
        .map(str::to_owned)
        .collect();
    assert!(texts.len() > 50, "the strings of tokenization.json");
    texts.extend(mixtures(&texts, 3000, 27));
    for text in &texts {
        for special in [false, true] {
            let ids = |model: &ModelText| model.tokenizer.encode(text, special).unwrap();
            assert_eq!(ids(&ours), ids(&theirs), "{text:?}");
        }
    }
    assert_eq!(ours.tokenizer.bytes().vocab_size(), theirs.tokenizer.bytes().vocab_size());
    for id in 0..theirs.tokenizer.bytes().vocab_size() {
        let of = |model: &ModelText| {
            let bytes = model.tokenizer.bytes();
            (bytes.get(id).to_vec(), bytes.is_special(id))
        };
        assert_eq!(of(&ours), of(&theirs), "token {id}");
    }
}

#[test]
fn the_chat_template_is_the_files() {
    let (ours, theirs) = (load(&skein_golden::gguf("chat")), load(&root("models/skein-7m")));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let kwargs = Map::new();
    let prompt = ChatPrompt {
        messages: messages.as_array().unwrap(),
        add_generation_prompt: true,
        continue_final_message: false,
        template_kwargs: &kwargs,
        kept_in: None,
    };
    let ids = |model: &ModelText| model.encode_chat(&prompt, 1000).unwrap();
    assert_eq!(ids(&ours), ids(&theirs));
    assert!(ids(&ours).len() > 3);
}

#[test]
fn sentence_piece_ids_are_those_of_the_sentencepiece_package() {
    let model = load(&root("tests/golden/gguf/models/spm-vocab.gguf"));
    let golden: Value =
        serde_json::from_slice(&std::fs::read(root("tests/golden/gguf/models/spm.json")).unwrap()).unwrap();
    let golden = golden.as_array().unwrap();
    assert!(golden.len() > 150);
    for entry in golden {
        let text = entry["text"].as_str().unwrap();
        let expected: Vec<u32> =
            entry["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(model.tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
    }
    assert_eq!(model.tokenizer.encode("a", true).unwrap()[0], 1, "the file asks for BOS");
}

/// A file whose vocabulary are the bytes and each two neighbouring ones of `text`, which merge in this order.
fn of_pairs(text: &str, rule: &str) -> Sample {
    let bytes: Vec<u8> = text.bytes().collect();
    let mut pairs: Vec<[char; 2]> = Vec::new();
    for pair in bytes.windows(2).map(|pair| [letter(pair[0]), letter(pair[1])]) {
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let tokens: Vec<String> =
        (0..=255).map(|byte| letter(byte).into()).chain(pairs.iter().map(String::from_iter)).collect();
    let merges: Vec<String> = pairs.iter().map(|[first, second]| format!("{first} {second}")).collect();
    let list = |list: &[String]| texts(&list.iter().map(String::as_str).collect::<Vec<_>>());
    let sample = Sample::default()
        .text("tokenizer.ggml.model", "gpt2")
        .with("tokenizer.ggml.tokens", list(&tokens))
        .with("tokenizer.ggml.merges", list(&merges))
        .number("tokenizer.ggml.bos_token_id", 33);
    if rule.is_empty() { sample } else { sample.text("tokenizer.ggml.pre", rule) }
}

/// GPT-2's character for a byte.
fn letter(byte: u8) -> char {
    let is_plain = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..);
    let rank = (0..byte).filter(|byte| !is_plain(*byte)).count() as u32;
    if is_plain(byte) { byte.into() } else { char::from_u32(256 + rank).unwrap() }
}

/// Rules whose own expression ends a word before a capital; llama.cpp's does not.
const WITHOUT_CASE: [&str; 4] = ["kimi-k2", "youtu", "tiny_aya", "cohere2moe"];

#[test]
fn every_rule_of_llama_cpp_splits_text_as_llama_cpp_does() {
    let golden = std::fs::read(root("tests/golden/gguf/models/peer_tokenizers.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut seen = HashSet::new();
    let (mut names, mut differing) = (0, Vec::new());
    for rule in golden["rules"].as_array().unwrap() {
        for name in rule["names"].as_array().unwrap() {
            names += 1;
            for (at, text) in golden["texts"].as_array().unwrap().iter().enumerate() {
                let (name, text) = (name.as_str().unwrap(), text.as_str().unwrap());
                let path = directory.path().join("m.gguf");
                std::fs::write(&path, of_pairs(text, name).bytes()).unwrap();
                let json = skein_gguf::GgufModel::open(&path).unwrap().tokenizer().unwrap();
                if !seen.insert(json.clone()) || WITHOUT_CASE.contains(&name) && text.contains("aB") {
                    continue;
                }
                let tokenizer = Tokenizer::from_json(&json).unwrap();
                let ids = tokenizer.encode(text, false).unwrap();
                let lengths: String = ids.iter().map(|id| if *id < 256 { '1' } else { '2' }).collect();
                let bos = tokenizer.encode(text, true).unwrap().len() > ids.len();
                if (&rule["lengths"][at], &rule["bos"]) != (&json!(lengths), &json!(bos)) {
                    differing.push(format!("{name}: {text:?} gives {lengths}, BOS {bos}, not {rule}"));
                }
            }
        }
    }
    assert_eq!((names > 80, differing), (true, Vec::<String>::new()));
}

#[test]
fn white_space_after_special_tokens_of_phi_3_is_dropped_as_by_llama_cpp() {
    let golden = std::fs::read(root("tests/golden/gguf/models/peer_tokenizers.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for case in golden["phi3"].as_array().unwrap() {
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let own = case["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap().to_owned());
        let tokens: Vec<String> =
            ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).chain(bytes).chain(own).collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let types = [&[2, 3, 3][..], &[6; 256], &[1, 1, 1, 3, 4, 3]].concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
        let sample = Sample::default()
            .text("general.name", case["name"].as_str().unwrap())
            .text("tokenizer.ggml.model", "llama")
            .with("tokenizer.ggml.tokens", texts(&tokens))
            .with("tokenizer.ggml.token_type", list(5, tokens.len() as u64, &types))
            .with("tokenizer.ggml.scores", list(6, tokens.len() as u64, &vec![0; 4 * tokens.len()]));
        let path = directory.path().join("m.gguf");
        std::fs::write(&path, sample.bytes()).unwrap();
        let json = skein_gguf::GgufModel::open(&path).unwrap().tokenizer().unwrap();
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        for (text, ids) in case["texts"].as_object().unwrap() {
            assert_eq!(json!(tokenizer.encode(text, false).unwrap()), *ids, "{}: {text:?}", case["name"]);
        }
    }
}

#[test]
fn a_vocabulary_of_the_kind_of_gemma_4_gives_the_ids_of_llama_cpp() {
    let golden = std::fs::read(root("tests/golden/gguf/models/peer_tokenizers.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let golden = &golden["gemma4"];
    let list_of = |key: &str| -> Vec<&str> {
        golden[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
    };
    let (tokens, merges) = (list_of("tokens"), list_of("merges"));
    let types = golden["types"].as_array().unwrap().iter().map(|kind| kind.as_u64().unwrap() as u32);
    let types: Vec<u8> = types.flat_map(u32::to_le_bytes).collect();
    let sample = Sample::default()
        .text("tokenizer.ggml.model", "gemma4")
        .with("tokenizer.ggml.tokens", texts(&tokens))
        .with("tokenizer.ggml.token_type", list(5, tokens.len() as u64, &types))
        .with("tokenizer.ggml.merges", texts(&merges))
        .number("tokenizer.ggml.eos_token_id", 1)
        .number("tokenizer.ggml.bos_token_id", 2)
        .number("tokenizer.ggml.unknown_token_id", 3);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    std::fs::write(&path, sample.bytes()).unwrap();
    let model = skein_gguf::GgufModel::open(&path).unwrap();
    assert!(model.tokenizer_digest().is_some());
    let tokenizer = Tokenizer::from_json(&model.tokenizer().unwrap()).unwrap();
    for (text, ids) in golden["texts"].as_object().unwrap() {
        assert_eq!(json!(tokenizer.encode(text, true).unwrap()), *ids, "{text:?}");
    }
}

/// Manual test with public models: see tests/golden/gguf/public_tokenizers.py.
#[test]
fn public_tokenizers_give_the_ids_of_their_tokenizer_json() {
    let Ok(directory) = std::env::var("TEST_TOKENIZERS") else {
        return println!("skipped: TEST_TOKENIZERS names no directory of public tokenizers");
    };
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/tokenization.json")).unwrap();
    let strings = golden["strings"].as_array().unwrap();
    let mut texts: Vec<String> =
        strings.iter().filter_map(|entry| entry["text"].as_str()).map(str::to_owned).collect();
    texts.extend(mixtures(&texts, 5000, 29));
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let [ours, theirs] = [&path, &path.with_extension("")]
                .map(|path| ModelText::load(path, &[]).unwrap_or_else(|error| panic!("{error}")));
            let ids = |model: &ModelText, text: &str| model.tokenizer.encode(text, false).unwrap();
            let differing = texts.iter().filter(|text| ids(&ours, text) != ids(&theirs, text));
            let differing: Vec<&String> = differing.collect();
            let first = differing.first().map(|text| (text, ids(&ours, text), ids(&theirs, text)));
            println!("{}: {} of {} texts differ", path.display(), differing.len(), texts.len());
            assert!(first.is_none(), "{}: {first:?}", path.display());
        }
    }
}
