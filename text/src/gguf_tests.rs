//! Compares tokenizers of GGUF files with the programs that produced the files.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::model_text::{ChatPrompt, ModelText};

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
