//! Random constraints of every kind. Each is refused, or compiled and followed; none panics or takes too
//! long.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests
#![allow(clippy::disallowed_methods)] // real time is what the limit is about

mod walk;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_grammar::{Refused, Source};
use walk::{Random, compile, vocabulary};

/// Mutated constraints of each kind.
const EACH: u64 = 400;
/// Work is bounded by fuel, which has tests of its own. Beyond this time something hangs; a busy machine
/// takes seconds for what takes milliseconds.
const MOST_TIME: Duration = Duration::from_secs(60);

fn texts() -> [(&'static str, &'static str); 5] {
    [
        ("regex", r#"(?:[a-z]{2,5}|\d+(\.\d+)?)(, [^"]*)?\p{Lu}[[:alpha:]&&[^x]]"#),
        (
            "lark",
            "start: (word \" \")* number?\nword: /[a-z]+/ | \"(\" start \")\"\nnumber[lazy]: /[0-9]+/ \";\"\n",
        ),
        (
            "ebnf",
            "root ::= item (\",\" item)*\nitem ::= [a-z]+ | \"[\" root? \"]\" | \"\\\"\" [^\"]{0,9} \"\\\"\"\n",
        ),
        (
            "schema",
            r##"{"type": "object", "properties": {"a": {"anyOf": [{"type": "string", "pattern": "^x+$", "maxLength": 9}, {"$ref": "#/$defs/b"}]},
            "c": {"type": ["integer", "null"], "minimum": -3, "multipleOf": 2}, "d": {"enum": [1, "x", null]}}, "required": ["a"], "additionalProperties": false,
            "$defs": {"b": {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 3}}}"##,
        ),
        (
            "tag",
            r#"{"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}"#,
        ),
    ]
}

/// `text` with pieces removed, duplicated, swapped, or replaced by tokens of some notation.
fn changed(text: &str, random: &mut Random) -> String {
    const WORDS: [&str; 24] = [
        "(", ")", "[", "]", "{", "}", "*", "{0,9999}", "|", "\\", "\"", "/", "::=", "start", "root", ": ",
        "%json {}", "[lazy]", "\n", "é", "$ref", "null", "-1", "true",
    ];
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(characters.len() as u64 + 1) as usize;
        let piece = at..(at + random.below(12) as usize).min(characters.len());
        match random.below(4) {
            0 => drop(characters.drain(piece)),
            1 => {
                let doubled = characters[piece.clone()].to_vec();
                characters.splice(piece.start..piece.start, doubled);
            }
            2 => drop(characters.splice(piece, WORDS[random.below(24) as usize].chars())),
            _ => drop(characters.splice(at..at, WORDS[random.below(24) as usize].chars())),
        }
    }
    characters.into_iter().collect()
}

fn source(kind: &str, text: &str) -> Result<Source, Refused> {
    let parsed = || serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    match kind {
        "regex" => Source::regex(text),
        "lark" | "ebnf" => Source::grammar(text),
        "schema" => Source::json_schema(&parsed()),
        "tag" => Source::structural_tag(&parsed()),
        _ => Source::json_schema(&json!({})),
    }
}

#[test]
fn random_constraints_are_refused_or_followed() {
    vocabulary();
    for (kind, text) in texts() {
        compile(&source(kind, text).unwrap()).unwrap_or_else(|refused| panic!("{kind}: {refused}"));
        let mut compiled_count = 0;
        for seed in 0..EACH {
            let mut random = Random(seed);
            let text = changed(text, &mut random);
            let started = Instant::now();
            let compiled = source(kind, &text).and_then(|source| compile(&source));
            assert!(started.elapsed() < MOST_TIME, "{kind}, seed {seed}: {:?}: {text}", started.elapsed());
            let Ok(compiled) = compiled else { continue };
            compiled_count += 1;
            let mut matcher = compiled.matcher();
            for _ in 0..12 {
                let started = Instant::now();
                let next = matcher.next_tokens();
                assert!(
                    started.elapsed() < MOST_TIME,
                    "{kind}, seed {seed}: {:?}: {text}",
                    started.elapsed()
                );
                // Only the answer that exceeds a limit ends.
                let Ok(next) = next else { break };
                let all: Vec<u32> = next.mask.tokens().collect();
                if all.is_empty() || matcher.advance(all[random.below(all.len() as u64) as usize]).is_err() {
                    break;
                }
            }
        }
        println!("{kind}: {compiled_count} of {EACH} compiled");
        assert!(compiled_count > EACH / 50, "{kind}: {compiled_count}");
    }
}
