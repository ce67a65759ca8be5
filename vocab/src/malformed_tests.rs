//! Vocabularies that are damaged or hostile: an error that names the file and the fault, and never a panic.

use std::path::{Path, PathBuf};

use crate::{Converted, OTHERS, Vocabulary, identity, look_alikes, tokenizer_json};
use serde_json::{Value, json};

fn golden(name: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tokenizers");
    std::fs::read(directory.join(name)).unwrap()
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&golden(name)).unwrap()
}

fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

fn convert(files: &[(&str, &[u8])]) -> Result<Converted, String> {
    let directory = directory(files);
    let vocabulary = Vocabulary::find(directory.path()).map_err(|error| error.to_string())?;
    vocabulary.expect("a vocabulary").convert().map_err(|error| error.to_string())
}

/// The error of these files has all of `parts`.
fn check(files: &[(&str, &[u8])], parts: &[&str]) {
    let error = convert(files).err().unwrap_or_else(|| panic!("{parts:?} is accepted"));
    assert!(parts.iter().all(|part| error.contains(part)), "{error}\nhas not all of {parts:?}");
}

/// A field of a message, delimited by its length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat())
}

#[test]
fn a_damaged_sentence_piece_file_is_refused_with_the_fault() {
    let name = "tokenizer.model";
    let of =
        |parts: &[Vec<u8>], fault: &[&str]| check(&[(name, &parts.concat())], &[fault, &[name]].concat());
    let good = golden("bpe.model");
    check(&[(name, &good[..good.len() - 3])], &["it is no SentencePiece model"]);
    check(&[(name, b"\xff\xff\xff")], &["it is no SentencePiece model", "download it again"]);
    check(&[(name, b"version https://git-lfs.github.com/spec/v1\n")], &["it is no SentencePiece model"]);
    check(&[(name, b"")], &["it has no pieces"]);
    let bpe = field(2, &[3 << 3, 2]);
    let unknown = || piece("<unk>", 0.0, 2);
    of(std::slice::from_ref(&bpe), &["it has no pieces"]);
    of(&[unknown(), piece("a", 0.0, 1), piece("a", 0.0, 1), bpe.clone()], &[r#"piece 2, "a", occurs twice"#]);
    of(&[unknown(), piece("", 0.0, 1), bpe.clone()], &["piece 1 is empty"]);
    of(&[unknown(), piece("a", f32::NAN, 1), bpe], &[r#"the score of piece 1, "a", is NaN"#]);
    of(
        &[unknown(), field(2, &[3 << 3, 3])],
        &["its model_type is WORD; supported: UNIGRAM, BPE", "save_pretrained"],
    );
    of(&[unknown(), field(2, &[3 << 3, 9])], &["its model_type is 9"]);
    // `unk_id` has the number 40: two bytes.
    of(&[unknown(), field(2, &[0xc0, 2, 7])], &["unk_id is 7, and it has 1 pieces"]);
    of(&[field(1, b"\x0a\x01\xff"), field(2, &[])], &["it is no SentencePiece model"]);
    let map = |map: &[u8]| field(3, &field(2, map));
    for (content, fault) in [
        (&[0xff; 9][..], "states a table of 4294967295 bytes, and has 9"),
        (&[1, 0], "has 2 bytes"),
        (&[4, 0, 0, 0, 1, 2, 3, 4, 0xff], "is not UTF-8"),
    ] {
        of(&[unknown(), field(2, &[]), map(content)], &["the normalization map", fault]);
    }
    let many = field(1, &[]).repeat((1 << 20) + 1);
    of(&[many], &["it has 1048577 pieces; at most 1048576"]);
}

#[test]
fn no_part_of_a_file_panics() {
    let models = ["bpe.model", "unigram.model"].map(|name| ("tokenizer.model", golden(name)));
    let others = ["tekken.json", "tiktoken.model"].map(|name| (name, golden(name)));
    for (name, good) in models.into_iter().chain(others) {
        for length in (0..good.len()).step_by(good.len() / 200) {
            let _ = convert(&[(name, &good[..length])]);
            let mut changed = good.clone();
            changed[length] ^= 0x55;
            let _ = convert(&[(name, &changed)]);
        }
        assert!(convert(&[(name, &good)]).is_ok());
    }
}

#[test]
fn a_damaged_tekken_file_is_refused_with_the_fault() {
    let of = |change: &dyn Fn(&mut Value), fault: &str| {
        let mut tree = json("tekken.json");
        change(&mut tree);
        check(&[("tekken.json", tree.to_string().as_bytes())], &["tekken.json", fault]);
    };
    check(&[("tekken.json", b"{")], &["tekken.json is malformed: EOF"]);
    of(&|tree| tree["config"]["pattern"] = Value::Null, "config has no pattern");
    of(&|tree| tree["vocab"] = json!([]), "default_vocab_size is");
    of(&|tree| tree["vocab"] = Value::Null, "it has no vocab");
    of(&|tree| tree["vocab"][300]["token_bytes"] = json!("a*"), r#"token 300, "a*", is not base64"#);
    of(&|tree| tree["vocab"][300]["token_bytes"] = json!(""), "token 300 is empty");
    of(
        &|tree| tree["vocab"][300]["token_bytes"] = tree["vocab"][299]["token_bytes"].clone(),
        "tokens 299 and 300 are the same",
    );
    of(&|tree| tree["vocab"][7]["token_bytes"] = json!("aGVsbG8="), "the byte 0x07 has no token");
    of(&|tree| tree["vocab"][300]["rank"] = json!(3), "it must have the rank 300");
    of(&|tree| tree["special_tokens"][2]["rank"] = json!(77), "no special token has the rank 2");
    of(
        &|tree| tree["special_tokens"][2]["token_str"] = json!("<s>"),
        r#"the special token "<s>" occurs twice"#,
    );
    of(&|tree| tree["config"]["default_num_special_tokens"] = json!(1_u64 << 40), "at most 65536");
    of(&|tree| tree["config"]["default_vocab_size"] = json!(5), "default_vocab_size is 5");
    of(&|tree| tree["config"]["default_vocab_size"] = json!(1_000_000), "default_vocab_size is 1000000");
}

#[test]
fn a_damaged_tiktoken_file_is_refused_with_the_fault() {
    let good = String::from_utf8(golden("tiktoken.model")).unwrap();
    let of =
        |text: String, fault: &str| check(&[("tiktoken.model", text.as_bytes())], &["tiktoken.model", fault]);
    of(good.replace(" 300\n", " 999\n"), "no token has the rank 300");
    of(good.replace(" 300\n", " 299\n"), "two tokens have the rank 299");
    of(good.replace(" 300\n", "\n"), "line 301 is");
    of(good.replacen("AA== 0\n", "A=== 0\n", 1), "is not base64");
    of(String::new(), "it has no tokens");
    check(&[("tiktoken.model", b"\xff")], &["it is not UTF-8"]);
    let far = json!({"added_tokens_decoder": {"4000000000": {"content": "<far>"}}}).to_string();
    let files = [("tiktoken.model", good.as_bytes()), ("tokenizer_config.json", far.as_bytes())];
    check(&files, &["declares the id 4000000000, and the file has 416 tokens"]);
}

#[test]
fn a_damaged_pair_of_vocabulary_and_merges_is_refused_with_the_fault() {
    let config = (&b"{\"tokenizer_class\": \"GPT2Tokenizer\"}"[..], "tokenizer_config.json");
    let of = |vocab: &[u8], merges: &[u8], parts: &[&str]| {
        check(&[("vocab.json", vocab), ("merges.txt", merges), (config.1, config.0)], parts);
    };
    let (vocab, merges) = (golden("vocab.json"), golden("merges.txt"));
    of(b"[]", &merges, &["vocab.json is malformed"]);
    of(b"{}", &merges, &["vocab.json is malformed: it has 0 tokens"]);
    of(br#"{"a": 1, "b": 1}"#, b"", &[r#"vocab.json is malformed: "a" and "b" have the same id, 1"#]);
    of(br#"{"a": -1}"#, b"", &[r#"the id of "a" is -1"#]);
    of(br#"{"a": 4000000000}"#, b"", &[r#"the id of "a" is 4000000000; it must be a number below 1048576"#]);
    of(br#"{"a": 1, "b": 2}"#, b"a b\n", &[r#"merges.txt is malformed: line 1 merges "a b""#, r#"no "ab""#]);
    of(&vocab, b"#version: 0.2\na b c\n", &[r#"line 2 is "a b c""#]);
    of(&vocab, b"\xff\xfe", &["merges.txt is malformed: it is not UTF-8"]);
    of(&vocab, b"#version: 0.2\n", &["merges.txt is malformed: it has no merges, but vocab.json has "]);
    // Ids may have holes.
    let files: [(&str, &[u8]); 3] =
        [("vocab.json", br#"{"a": 1, "b": 500, "ab": 90}"#), ("merges.txt", b"a b\n"), (config.1, config.0)];
    let built: Value = serde_json::from_slice(&convert(&files).unwrap().json).unwrap();
    assert_eq!(built["model"]["vocab"], json!({"a": 1, "ab": 90, "b": 500}));
    // Without a class nobody knows how text is split.
    check(
        &[("vocab.json", &vocab), ("merges.txt", &merges)],
        &["tokenizer_class in tokenizer_config.json is not set", "supported: GPT2Tokenizer, Qwen2Tokenizer"],
    );
}

#[test]
fn a_class_that_is_converted_otherwise_is_refused_by_name() {
    let config = br#"{"tokenizer_class": "XLMRobertaTokenizerFast"}"#;
    check(
        &[("tokenizer.model", &golden("unigram.model")), ("tokenizer_config.json", config)],
        &["its tokenizer_class is XLMRobertaTokenizer, which is not supported", "save_pretrained"],
    );
}

#[test]
fn a_huge_file_and_a_pipe_are_not_read() {
    for (name, at) in OTHERS.iter().zip(0..).filter(|(name, _)| **name != "merges.txt") {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        let fault = if at % 2 == 0 {
            std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
            "it has 1099511627776 bytes, and at most"
        } else {
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            "it is a named pipe"
        };
        let error = Vocabulary::find(directory.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("cannot read {}: {fault}", path.display())), "{error}");
    }
}

#[test]
fn tokenizer_json_counts_before_other_files_and_none_is_no_error() {
    let empty = directory(&[("config.json", b"{}"), ("qwen.tiktoken", b"AA== 0\n"), ("vocab.json", b"{}")]);
    assert!(Vocabulary::find(empty.path()).unwrap().is_none() && identity(empty.path()).unwrap().is_none());
    assert!(tokenizer_json(empty.path()).unwrap().is_none());
    assert_eq!(look_alikes(empty.path()), ["qwen.tiktoken", "vocab.json"]);
    let both = directory(&[("tokenizer.json", b"{}"), ("tokenizer.model", b"\xff")]);
    assert_eq!(tokenizer_json(both.path()).unwrap().unwrap(), b"{}");
    assert_eq!(identity(both.path()).unwrap().unwrap(), b"{}");
}

#[test]
fn the_identity_follows_the_files_and_declared_tokens() {
    let identity_of = |files: &[(&str, &[u8])]| identity(directory(files).path()).unwrap().unwrap();
    let model = golden("bpe.model");
    let plain = identity_of(&[("tokenizer.model", &model)]);
    assert_eq!(
        plain,
        identity_of(&[("tokenizer.model", &model), ("config.json", br#"{"model_type": "mistral"}"#)])
    );
    assert_ne!(plain, identity_of(&[("tokenizer.model", &golden("unigram.model"))]));
    assert_ne!(plain, identity_of(&[("tokenizer.model", &model), ("added_tokens.json", br#"{"<x>": 430}"#)]));
}

#[test]
fn a_file_is_found_in_a_directory_that_is_none() {
    assert!(Vocabulary::find(&PathBuf::from("/nowhere")).unwrap().is_none());
}
