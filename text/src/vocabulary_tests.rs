//! Vocabularies without a tokenizer.json, and tokens that other files declare: the ids are those of the
//! reference libraries (tests/golden/tokenizers/make.py, tests/golden/added_tokens.py).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use skein_proto::TokenId;

use super::model_text::ModelText;
use super::tokenizer::Tokenizer;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn goldens() -> Value {
    serde_json::from_slice(&std::fs::read(root("tests/golden/tokenizers/cases.json")).unwrap()).unwrap()
}

/// Content of a file of a golden directory: a golden's name after `@`, or JSON.
fn content(file: &Value) -> Vec<u8> {
    match file.as_str() {
        Some(name) => std::fs::read(root("tests/golden/tokenizers").join(&name[1..])).unwrap(),
        None => file.to_string().into_bytes(),
    }
}

fn write(files: &Value, directory: &Path) {
    for (name, file) in files.as_object().unwrap() {
        std::fs::write(directory.join(name), content(file)).unwrap();
    }
}

fn load(files: &Value) -> Result<ModelText, String> {
    let directory = tempfile::tempdir().unwrap();
    write(files, directory.path());
    ModelText::load(directory.path(), &[]).map_err(|error| error.to_string())
}

/// The tokenizers of the golden directories, by name.
pub fn golden_tokenizers() -> Vec<(String, Tokenizer)> {
    let mut goldens = goldens();
    let cases = goldens["cases"].as_array_mut().unwrap().iter();
    let load = |case: &Value| Some((case["name"].to_string(), load(&case["files"]).ok()?.tokenizer));
    cases.filter_map(load).collect()
}

/// Texts whose ids differ, with both.
fn differences<'a>(
    tokenizer: &Tokenizer,
    expected: impl Iterator<Item = (&'a str, &'a Value)>,
) -> Vec<String> {
    let differs = |(text, expected): (&str, &Value)| {
        let found = json!(tokenizer.encode(text, false).unwrap());
        (found != *expected).then(|| format!("{text:?}: {found}, not {expected}"))
    };
    expected.filter_map(differs).collect()
}

fn texts(goldens: &Value) -> impl Iterator<Item = &str> {
    goldens["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}

/// What differs in a golden case.
fn faults(case: &Value, goldens: &Value) -> Vec<String> {
    let tokenizer = match load(&case["files"]) {
        Ok(text) => text.tokenizer,
        Err(error) => return vec![error],
    };
    let encodings = goldens["encodings"].as_array().unwrap().iter();
    let places = case["ids"].as_array().unwrap().iter().map(|place| place.as_u64().unwrap() as usize);
    let ids: Vec<&Value> = encodings.zip(places).map(|(encodings, place)| &encodings[place]).collect();
    let mut faults = differences(&tokenizer, texts(goldens).zip(ids.iter().copied()));
    let around = json!(tokenizer.encode("a", true).unwrap());
    if around != case["around"] {
        faults.push(format!("around is {around}, not {}", case["around"]));
    }
    let every = goldens["decoded_every"].as_u64().unwrap() as usize;
    for (ids, expected) in ids.into_iter().step_by(every).zip(case["decoded"].as_array().unwrap()) {
        let ids: Vec<TokenId> = serde_json::from_value(ids.clone()).unwrap();
        let decoded = json!(tokenizer.decode(&ids, false).unwrap());
        if decoded != *expected {
            faults.push(format!("{ids:?} is {decoded}, not {expected}"));
        }
    }
    faults
}

#[test]
fn ids_of_directories_without_tokenizer_json_are_those_of_transformers() {
    let mut goldens = goldens();
    let mut cases = goldens["cases"].take();
    // Transformers adds no BOS to tekken.json unless it is told to, and mistral-common does.
    let tekken = cases.as_array_mut().unwrap().iter_mut().find(|case| case["name"] == "tekken").unwrap();
    tekken["around"].as_array_mut().unwrap().insert(0, json!(1));
    let cases = cases.as_array().unwrap();
    let faults = cases.iter().flat_map(|case| {
        faults(case, &goldens)
            .into_iter()
            .map(|fault| format!("{}: {fault}", case["name"]))
            .collect::<Vec<_>>()
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{} differ:\n{}", faults.len(), faults.join("\n"));
    assert!(cases.len() > 30);
}

#[test]
fn a_sentence_piece_file_alone_gives_the_ids_of_sentencepiece() {
    let goldens = goldens();
    for (file, ids) in goldens["others"]["sentencepiece"].as_object().unwrap() {
        let files = json!({"config.json": {"model_type": "llama"}, "tokenizer.model": format!("@{file}")});
        let tokenizer = load(&files).unwrap().tokenizer;
        // There the text of a control token is text; that of a piece that users defined is it here, too. It
        // also strips a written mark like a space and takes the name of a byte as text; transformers and we
        // do not.
        let differs = |text: &str| {
            ["<s>", "</s>", "<unk>", "<ctl>", "▁", "<0x"].iter().any(|token| text.contains(token))
        };
        let expected = texts(&goldens).zip(ids.as_array().unwrap()).filter(|(text, _)| !differs(text));
        let faults = differences(&tokenizer, expected);
        assert!(faults.is_empty(), "{file}: {} differ:\n{}", faults.len(), faults.join("\n"));
    }
}

#[test]
fn ids_of_tekken_are_those_of_mistral_common() {
    let goldens = goldens();
    let tokenizer = load(&json!({"tekken.json": "@tekken.json"})).unwrap().tokenizer;
    for (text, ids) in texts(&goldens).zip(goldens["others"]["mistral-common"].as_array().unwrap()) {
        // There the text of a control token is text.
        if !tokenizer.control().contains_control(&json!(text)) {
            assert_eq!(json!(tokenizer.encode(text, true).unwrap()), *ids, "{text:?}");
        }
    }
}

#[test]
fn ids_of_kimi_are_those_of_tiktoken_with_its_pattern() {
    let goldens = goldens();
    let token = |text: &str| json!({"content": text, "special": true});
    let files = json!({
        "config.json": {"model_type": "kimi_k2"},
        "tiktoken.model": "@tiktoken.model",
        "tokenizer_config.json": {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]",
            "added_tokens_decoder": {"416": token("[BOS]"), "418": token("<|im_end|>")}},
    });
    let tokenizer = load(&files).unwrap().tokenizer;
    let expected = texts(&goldens).zip(goldens["others"]["kimi"].as_array().unwrap());
    let faults = differences(&tokenizer, expected);
    assert!(faults.is_empty(), "{} differ:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_directory_without_a_vocabulary_says_what_it_has_and_what_to_do() {
    let files = json!({"config.json": {"model_type": "qwen"}, "qwen.tiktoken": "@tiktoken.model"});
    let error = load(&files).unwrap_err();
    for part in [
        "none of tokenizer.json, tekken.json, tokenizer.model",
        "it has qwen.tiktoken",
        "save_pretrained",
        "--tokenizer DIR",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_fault_that_only_the_library_finds_is_said_of_the_file_itself() {
    let mut tekken: Value = serde_json::from_slice(&content(&json!("@tekken.json"))).unwrap();
    tekken["config"]["pattern"] = json!("(");
    let error = load(&json!({"tekken.json": tekken})).unwrap_err();
    assert!(error.starts_with("tekken.json is malformed: "), "{error}");
}

#[test]
fn tokens_beside_tokenizer_json_are_those_of_transformers() {
    let golden = std::fs::read(root("tests/golden/added_tokens.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(root("models/skein-7m/tokenizer.json"), directory.path().join("tokenizer.json"))
            .unwrap();
        for (name, content) in case["files"].as_object().unwrap() {
            std::fs::write(directory.path().join(name), content.to_string()).unwrap();
        }
        let tokenizer = ModelText::load(directory.path(), &[]).unwrap().tokenizer;
        let ids = tokenizer.encode(golden["text"].as_str().unwrap(), false).unwrap();
        assert_eq!(json!(ids), case["ids"], "{}", case["name"]);
        assert_eq!(json!(tokenizer.decode(&ids, true).unwrap()), case["text"], "{}", case["name"]);
        assert!(ids.iter().all(|id| !tokenizer.bytes().get(*id).is_empty()), "{}", case["name"]);
    }
}

/// Manual test with public models: see tests/golden/tokenizers/public.py.
#[test]
fn public_vocabularies_give_the_ids_of_the_reference_libraries() {
    let Ok(directory) = std::env::var("TEST_VOCABULARIES") else {
        return println!("skipped: TEST_VOCABULARIES names no directory of public vocabularies");
    };
    let mut wrong = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let golden: Value = serde_json::from_slice(&std::fs::read(path.join("ids.json")).unwrap()).unwrap();
        let tokenizer = ModelText::load(&path, &[])
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .tokenizer;
        // Without ids are texts that the reference reads otherwise by design.
        let pairs = texts(&golden).zip(golden["ids"].as_array().unwrap()).filter(|(_, ids)| !ids.is_null());
        let pairs: Vec<(&str, &Value)> = pairs.collect();
        let count = pairs.len();
        let differences = differences(&tokenizer, pairs.into_iter());
        println!("{}: {} of {count} texts differ", path.display(), differences.len());
        println!("{}", differences[..differences.len().min(3)].join("\n"));
        wrong += differences.len();
    }
    assert_eq!(wrong, 0);
}
