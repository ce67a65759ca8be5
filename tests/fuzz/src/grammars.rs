//! What clients constrain answers with: schemas, expressions, grammars, structural tags.

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use skein_grammar::token_bytes::{TokenBytes, TokenDecoder};
use skein_grammar::{Library, Source};

use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "schema",
            about: "a JSON schema, compiled and followed",
            run: schema,
            seeds: schema_seeds,
            replays: 60,
        },
        Target {
            name: "regex",
            about: "a regular expression, compiled and followed",
            run: regex,
            seeds: regex_seeds,
            replays: 60,
        },
        Target {
            name: "grammar",
            about: "a grammar in EBNF or Lark, compiled and followed",
            run: grammar,
            seeds: grammar_seeds,
            replays: 60,
        },
        Target {
            name: "structural_tag",
            about: "a structural tag, compiled and followed",
            run: structural_tag,
            seeds: tag_seeds,
            replays: 60,
        },
    ]
}

/// Tokens that an answer follows its grammar for.
const STEPS: usize = 24;

/// One token per byte, and an end.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let decoder = serde_json::json!({"type": "ByteFallback"});
        let decoder = TokenDecoder::from_json(&decoder).expect("a decoder");
        let bytes = TokenBytes::new(
            &decoder,
            257,
            |id| Some(if id < 256 { format!("<0x{id:02X}>") } else { "<|end|>".to_owned() }),
            |id| id == 256,
        );
        Library::new(&bytes, 257).expect("a table of bytes")
    })
}

/// Compiles, and follows the grammar: each allowed token is accepted.
fn follow(source: Result<Source, impl Sized>) {
    let Ok(source) = source else { return };
    let Ok(compiled) = library().compile(&source) else { return };
    let mut matcher = Arc::new(compiled).matcher();
    for step in 0..STEPS {
        if matcher.is_done() {
            return;
        }
        let Ok(next) = matcher.next_tokens() else { return };
        let allowed: Vec<u32> = (0..256).filter(|token| next.mask.allows(*token)).collect();
        let Some(token) = allowed.get(step * 31 % allowed.len().max(1)) else { return };
        matcher.advance(*token).expect("an allowed token");
    }
}

fn schema(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    follow(Source::json_schema(&value));
}

fn regex(data: &[u8]) {
    let Ok(pattern) = std::str::from_utf8(data) else { return };
    follow(Source::regex(pattern));
}

fn grammar(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    follow(Source::grammar(text));
}

fn structural_tag(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    follow(Source::structural_tag(&value));
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn schema_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r##"{"type":"object","properties":{"a":{"enum":["x","y",1]},"b":{"type":["integer","null"],"minimum":-3,"maximum":900,"multipleOf":3}},"required":["a"],"additionalProperties":false}"##,
        r##"{"$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"},"v":{"type":"string","pattern":"^[a-z]{2,4}$","maxLength":9}}}},"$ref":"#/$defs/node"}"##,
        r##"{"anyOf":[{"type":"array","items":{"type":"number","exclusiveMinimum":0.5},"minItems":1,"maxItems":4},{"const":{"a":[null,true]}}],"allOf":[{"type":["array","object"]}]}"##,
        r##"{"type":"string","format":"date-time"}"##,
        r##"{"type":"object","patternProperties":{"^x":{"type":"string"}},"additionalProperties":{"type":"boolean"},"minProperties":1,"prefixItems":[{"type":"null"}]}"##,
    ])
}

fn regex_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r"^(a|b)*c{2,5}[^x-z]+$",
        r"\d{4}-\d\d(?:T\w+)?",
        r"(?i)[\p{L}&&[^é]]\x41é",
        r"a(?=b)|(?P<n>x)\1",
    ])
}

fn grammar_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "root ::= \"a\" b* | [0-9]{1,3}\nb ::= (\"x\" | 'y')+ ws\nws ::= [ \\t\\n]?\n",
        "start: item (\",\" item)*\nitem: /[a-z]+/ | \"(\" start \")\"\n%ignore / +/\n",
        "root ::= [^\\x00-\\x1f] \"\\u00e9\" root?\n# comment\n",
        "%llguidance {}\nstart: %json {\"type\": \"integer\"}\n",
    ])
}

fn tag_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"type":"structural_tag","structures":[{"begin":"<f>","schema":{"type":"object","properties":{"a":{"type":"string"}}},"end":"</f>"}],"triggers":["<f"]}"#,
        r#"{"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<t"],"tags":[{"begin":"<t>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</t>"}]}}"#,
        r#"{"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"const_string","value":"a"},{"type":"any_text"}]}}"#,
    ])
}
