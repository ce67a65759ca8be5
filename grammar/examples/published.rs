//! Follows published schemas with random answers, checks the answers with an independent validator, and
//! prints statistics. Reads lines of `{"name": …, "schema": …, "valid": [instances]}`, which
//! `tests/grammar/published` creates from published packages.
//!
//! Each schema is either refused with the name of a keyword or followed. The validator must accept every
//! completed answer, and the grammar must accept each valid instance byte by byte.

#![allow(clippy::unwrap_used)] // a program of tests
#![allow(clippy::disallowed_methods)] // it measures, and knows no clock of a process

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Compiled, Library, Refused, Source};

/// Longest answer, in tokens.
const MOST_TOKENS: usize = 400;

#[derive(Default)]
struct Figures {
    schemas: usize,
    refused: BTreeMap<String, usize>,
    answers: usize,
    ended: usize,
    /// Completed answers that the validator rejects.
    invalid: Vec<String>,
    /// Answers that ended with a matcher error.
    stuck: Vec<String>,
    instances: usize,
    /// Valid instances that the grammar rejects.
    not_accepted: Vec<String>,
    compiling: Vec<Duration>,
    masks: Vec<Duration>,
}

struct Vocabulary {
    bytes: TokenBytes,
    library: Library,
    single: Vec<u32>,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (tokenizer, each) = (arguments.next().unwrap(), arguments.next().unwrap().parse().unwrap());
    let tree = serde_json::from_slice(&std::fs::read(tokenizer).unwrap()).unwrap();
    let bytes = TokenBytes::from_tokenizer_json(&tree).unwrap();
    let library = Library::new(&bytes, bytes.vocab_size()).unwrap();
    let single = (0..=255_u8)
        .map(|byte| (0..bytes.vocab_size()).find(|token| bytes.get(*token) == [byte]).unwrap_or(u32::MAX));
    let vocabulary = Vocabulary { single: single.collect(), bytes, library };
    for file in arguments {
        let mut figures = Figures::default();
        let lines = std::io::BufReader::new(std::fs::File::open(&file).unwrap()).lines();
        for (number, line) in lines.enumerate() {
            let case: Value = serde_json::from_str(&line.unwrap()).unwrap();
            figures.case(&vocabulary, &case, each, number as u64);
        }
        figures.print(&file);
    }
}

impl Figures {
    fn case(&mut self, vocabulary: &Vocabulary, case: &Value, each: u64, number: u64) {
        self.schemas += 1;
        let (name, schema) = (case["name"].as_str().unwrap_or_default(), &case["schema"]);
        let started = Instant::now();
        let compiled = Source::json_schema(schema).and_then(|source| vocabulary.library.compile(&source));
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(refused) => {
                let what = match refused {
                    Refused::Keyword { keyword, .. } => format!("keyword {keyword}"),
                    Refused::TooLarge { what, unit, .. } => format!("{what}: too many {unit}"),
                    Refused::Unusable { reason, .. } => {
                        format!("unusable: {}", reason.chars().take(60).collect::<String>())
                    }
                    Refused::Unavailable { reason } => reason,
                };
                *self.refused.entry(what).or_default() += 1;
                return;
            }
        };
        self.compiling.push(started.elapsed());
        let validator = jsonschema::options().should_validate_formats(true).build(schema);
        let Ok(validator) = validator else { return };
        for seed in 0..each {
            self.answers += 1;
            match self.answer(vocabulary, &compiled, number * 1_000_003 + seed) {
                Ok(None) => {}
                Ok(Some(text)) => {
                    self.ended += 1;
                    let value: Result<Value, _> = serde_json::from_str(&text);
                    if !value.is_ok_and(|value| validator.is_valid(&value)) {
                        self.invalid.push(format!("{name}: {schema}\n      {text}"));
                    }
                }
                Err(stuck) => self.stuck.push(format!("{name}: {stuck}")),
            }
        }
        for instance in case["valid"].as_array().into_iter().flatten() {
            self.instances += 1;
            if !accepts(vocabulary, &compiled, &in_order(instance, schema).to_string()) {
                self.not_accepted.push(format!("{name}: {schema}\n      {instance}"));
            }
        }
    }

    /// Generates a random answer; `None` if it was cut off.
    fn answer(
        &mut self,
        vocabulary: &Vocabulary,
        compiled: &Compiled,
        seed: u64,
    ) -> Result<Option<String>, String> {
        let mut matcher = compiled.matcher();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit.max(1)
        };
        let mut text = Vec::new();
        for step in 0..MOST_TOKENS {
            let started = Instant::now();
            let next = matcher.next_tokens().map_err(|stuck| stuck.to_string())?;
            self.masks.push(started.elapsed());
            if next.mask.is_empty() || (next.may_end && below(2) == 0) {
                return String::from_utf8(text).map(Some).map_err(|error| error.to_string());
            }
            let all: Vec<u32> = next.mask.tokens().collect();
            // Random logits seldom close a construct, so closing tokens are drawn more often later on.
            let closes = |token: &&u32| matches!(vocabulary.bytes.get(**token), [b'"' | b'}' | b']']);
            let closing: Vec<u32> = all.iter().filter(closes).copied().collect();
            let from = if closing.is_empty() || below(MOST_TOKENS) > 4 * step { &all } else { &closing };
            let token = from[below(from.len())];
            text.extend_from_slice(vocabulary.bytes.get(token));
            matcher.advance(token).map_err(|stuck| stuck.to_string())?;
        }
        Ok(None)
    }

    fn print(&mut self, file: &str) {
        let refused: usize = self.refused.values().sum();
        println!("{file}");
        println!("  schemas {}, compiled {}, refused {refused}", self.schemas, self.schemas - refused);
        for (what, count) in &self.refused {
            println!("    {count:5}  {what}");
        }
        println!(
            "  answers {}, completed {}, of these invalid {}; stuck {}",
            self.answers,
            self.ended,
            self.invalid.len(),
            self.stuck.len()
        );
        println!("  valid instances {}, not accepted {}", self.instances, self.not_accepted.len());
        println!("  compile {}", percentiles(&mut self.compiling));
        println!("  mask    {}", percentiles(&mut self.masks));
        for (what, list) in
            [("invalid", &self.invalid), ("stuck", &self.stuck), ("not accepted", &self.not_accepted)]
        {
            for one in list {
                println!("  {what}: {one}");
            }
        }
    }
}

/// The instance with members in schema order, which the grammar enforces.
fn in_order(instance: &Value, schema: &Value) -> Value {
    let (Value::Object(members), Some(properties)) = (instance, schema["properties"].as_object()) else {
        return instance.clone();
    };
    let mut ordered = serde_json::Map::new();
    for (name, inner) in properties {
        ordered.extend(members.get(name).map(|member| (name.clone(), in_order(member, inner))));
    }
    for (name, member) in members {
        ordered.entry(name.clone()).or_insert_with(|| member.clone());
    }
    ordered.into()
}

fn accepts(vocabulary: &Vocabulary, compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    for byte in text.bytes() {
        let token = vocabulary.single[byte as usize];
        if !matcher.next_tokens().is_ok_and(|next| next.mask.allows(token)) || matcher.advance(token).is_err()
        {
            return false;
        }
    }
    matcher.next_tokens().is_ok_and(|next| next.may_end)
}

fn percentiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| {
        times.get((times.len() as f64 * share) as usize).or(times.last()).copied().unwrap_or_default()
    };
    format!(
        "p50 {:?}, p99 {:?}, p99.9 {:?}, most {:?} (n = {})",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        times.len()
    )
}
