//! Follows published schemas with random answers, checks the answers with an independent validator, and
//! prints statistics. Reads lines of
//! `{"name": …, "schema": …, "valid": [instances], "invalid": [instances]}`, which `tests/grammar/published`
//! creates from published packages.
//!
//! Each schema is either refused, with the name of a keyword, or followed by random answers. The validator
//! must accept every answer that completes, and the grammar must accept each valid instance, both byte by
//! byte and as tokens of byte-pair encoding, and reject each invalid one. Fails on any difference from
//! [`EXPECTED`].

#![allow(clippy::unwrap_used)] // a test program
#![allow(clippy::disallowed_methods)] // it measures, and knows no clock of a process

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Compiled, Library, Matcher, Refused, Source};

/// Longest answer, in tokens.
const MOST_TOKENS: usize = 400;

/// Valid instances that the grammar rejects, by a part of the case's name.
const EXPECTED: [&str; 2] = [
    // Draft 7 ignores keywords beside `$ref`. We apply them, as all later drafts do.
    "draft7/ref.json: ref overrides any sibling keywords",
    // Members that parts of `allOf` describe in another order, and patterns beyond a limit.
    "jsonschemabench/",
];

#[derive(Default)]
struct Figures {
    schemas: usize,
    refused: BTreeMap<String, usize>,
    answers: usize,
    ended: usize,
    /// Completed answers that the validator rejects.
    invalid: Vec<String>,
    /// Completed answers with a number beyond the range of doubles, which the validator cannot read.
    beyond_doubles: usize,
    /// Answers that a matcher error ended.
    stuck: Vec<String>,
    /// Positions at which a matcher was compared with a new one that replayed the tokens so far.
    replayed: usize,
    /// Positions at which the two allowed different tokens.
    differing: usize,
    instances: usize,
    /// Instances accepted only with `1` instead of `1.0`: a grammar allows one spelling of a constant.
    respelt: usize,
    /// Valid instances that the grammar rejects.
    not_accepted: Vec<String>,
    invalid_instances: usize,
    /// Invalid instances that the grammar accepts.
    not_rejected: Vec<String>,
    /// Schemas that compile, accept every valid instance as it is and reject every invalid one: the coverage
    /// as MaskBench counts it.
    passing: usize,
    compiling: Vec<Duration>,
    masks: Vec<Duration>,
}

struct Vocabulary {
    bytes: TokenBytes,
    library: Library,
    /// The token of each sequence of bytes; lower ids are merged first.
    ids: HashMap<Vec<u8>, u32>,
}

impl Vocabulary {
    /// The tokens of `text` by byte-pair encoding, without splitting it into words first.
    fn encode(&self, text: &str) -> Vec<u32> {
        let mut parts: Vec<Vec<u8>> = text.bytes().map(|byte| vec![byte]).collect();
        let merged = |parts: &[Vec<u8>], at: usize| {
            let right = parts.get(at + 1)?;
            self.ids.get(&[&*parts[at], &**right].concat()).copied()
        };
        let mut ranks: Vec<Option<u32>> = (0..parts.len()).map(|at| merged(&parts, at)).collect();
        loop {
            let pairs = ranks.iter().enumerate().filter_map(|(at, rank)| Some((rank.as_ref()?, at)));
            let Some((_, at)) = pairs.min() else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
            ranks.remove(at + 1);
            ranks[at] = merged(&parts, at);
            if let Some(before) = at.checked_sub(1) {
                ranks[before] = merged(&parts, before);
            }
        }
        parts.iter().map(|part| self.ids[part]).collect()
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (tokenizer, each) = (arguments.next().unwrap(), arguments.next().unwrap().parse().unwrap());
    let tree = serde_json::from_slice(&std::fs::read(tokenizer).unwrap()).unwrap();
    let bytes = TokenBytes::from_tokenizer_json(&tree).unwrap();
    let library = Library::new(&bytes, bytes.vocab_size()).unwrap();
    let ids = (0..bytes.vocab_size()).rev().map(|token| (bytes.get(token).to_vec(), token)).collect();
    let vocabulary = Vocabulary { ids, bytes, library };
    let mut is_as_expected = true;
    for file in arguments {
        let mut figures = Figures::default();
        let lines = std::io::BufReader::new(std::fs::File::open(&file).unwrap()).lines();
        for (number, line) in lines.enumerate() {
            let case: Value = serde_json::from_str(&line.unwrap()).unwrap();
            figures.case(&vocabulary, &case, each, number as u64);
        }
        figures.print(&file);
        is_as_expected &= figures.is_as_expected();
    }
    if !is_as_expected {
        std::process::exit(1);
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
                        let reason = reason.rsplit_once(": ").map_or(&*reason, |(_, reason)| reason);
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
                    match serde_json::from_str::<Value>(&text).map(without_negative_zero) {
                        Ok(value) if validator.is_valid(&value) => {}
                        Err(error) if error.to_string().starts_with("number out of range") => {
                            self.beyond_doubles += 1;
                        }
                        _ => self.invalid.push(format!("{name}: {schema}\n      {text}")),
                    }
                }
                Err(stuck) => self.stuck.push(format!("{name}: {stuck}")),
            }
        }
        let mut passes = true;
        for instance in case["valid"].as_array().into_iter().flatten() {
            self.instances += 1;
            passes &= accepts_bytes(vocabulary, &compiled, &instance.to_string());
            let instance = in_order(instance, schema);
            if accepts(vocabulary, &compiled, &instance.to_string()) {
                continue;
            }
            if accepts(vocabulary, &compiled, &whole_numbers(&instance).to_string()) {
                self.respelt += 1;
            } else {
                self.not_accepted.push(format!("{name}: {schema}\n      {instance}"));
            }
        }
        for instance in case["invalid"].as_array().into_iter().flatten() {
            self.invalid_instances += 1;
            if accepts_bytes(vocabulary, &compiled, &instance.to_string()) {
                passes = false;
                self.not_rejected.push(format!("{name}: {schema}\n      {instance}"));
            }
        }
        self.passing += usize::from(passes);
    }

    fn is_as_expected(&self) -> bool {
        let is_expected = |case: &String| EXPECTED.iter().any(|name| case.starts_with(name));
        self.invalid.is_empty()
            && self.stuck.is_empty()
            && self.differing == 0
            && self.not_accepted.iter().all(is_expected)
            && self.not_rejected.is_empty()
    }

    /// Generates a random answer; `None` if it was cut.
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
        let (mut text, mut tokens) = (Vec::new(), Vec::new());
        for step in 0..MOST_TOKENS {
            let started = Instant::now();
            let next = matcher.next_tokens().map_err(|stuck| stuck.to_string())?;
            self.masks.push(started.elapsed());
            if below(64) == 0 {
                self.replayed += 1;
                self.differing += usize::from(replay(compiled, &tokens)?.next_tokens().as_ref() != Ok(&next));
            }
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
            tokens.push(token);
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
            "  answers {}, ended by themselves {}, of these invalid {}, with numbers beyond doubles {}; stuck {}",
            self.answers,
            self.ended,
            self.invalid.len(),
            self.beyond_doubles,
            self.stuck.len()
        );
        println!(
            "  valid instances {}, accepted with 1.0 written as 1 {}, not accepted {}",
            self.instances,
            self.respelt,
            self.not_accepted.len()
        );
        println!(
            "  invalid instances {}, not rejected {}; schemas passing {} of {}",
            self.invalid_instances,
            self.not_rejected.len(),
            self.passing,
            self.schemas
        );
        println!("  matchers replayed {}, differing {}", self.replayed, self.differing);
        println!("  compile {}", percentiles(&mut self.compiling));
        println!("  mask    {}", percentiles(&mut self.masks));
        for (what, list) in [
            ("invalid", &self.invalid),
            ("stuck", &self.stuck),
            ("not accepted", &self.not_accepted),
            ("not rejected", &self.not_rejected),
        ] {
            for one in list {
                println!("  {what}: {one}");
            }
        }
    }
}

/// New matcher that has consumed `tokens`.
fn replay(compiled: &Compiled, tokens: &[u32]) -> Result<Matcher, String> {
    let mut matcher = compiled.matcher();
    tokens.iter().try_for_each(|token| matcher.advance(*token)).map_err(|stuck| stuck.to_string())?;
    Ok(matcher)
}

/// The instance with members in schema order, which a grammar requires.
fn in_order(instance: &Value, schema: &Value) -> Value {
    let constants = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    if let Some(constant) = constants.into_iter().find(|constant| *constant == instance) {
        return constant.clone();
    }
    let Value::Object(members) = instance else { return instance.clone() };
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let properties = std::iter::once(schema).chain(parts).filter_map(|part| part["properties"].as_object());
    let mut ordered = serde_json::Map::new();
    for (name, inner) in properties.flatten() {
        ordered.extend(members.get(name).map(|member| (name.clone(), in_order(member, inner))));
    }
    for (name, member) in members {
        ordered.entry(name.clone()).or_insert_with(|| member.clone());
    }
    ordered.into()
}

/// The answer with `-0` written as `0`: it is a whole number, but the parser makes it a double.
fn without_negative_zero(answer: Value) -> Value {
    match answer {
        Value::Number(number) if number.as_f64().is_some_and(|float| float == 0.0) => 0.into(),
        Value::Array(items) => items.into_iter().map(without_negative_zero).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, member)| (name, without_negative_zero(member))).collect()
        }
        other => other,
    }
}

/// The instance with `1.0` written as `1`.
fn whole_numbers(instance: &Value) -> Value {
    match instance {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e18);
            whole.map_or_else(|| instance.clone(), |float| (float as i64).into())
        }
        Value::Array(items) => items.iter().map(whole_numbers).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), whole_numbers(member))).collect()
        }
        _ => instance.clone(),
    }
}

/// Whether the grammar accepts `text` byte by byte and in the tokens of byte-pair encoding.
fn accepts(vocabulary: &Vocabulary, compiled: &Compiled, text: &str) -> bool {
    accepts_bytes(vocabulary, compiled, text) && accepts_tokens(compiled, &vocabulary.encode(text))
}

fn accepts_bytes(vocabulary: &Vocabulary, compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    let mut follows = |byte: u8| matcher.advance(vocabulary.ids[&vec![byte]]).is_ok();
    text.bytes().all(&mut follows) && matcher.next_tokens().is_ok_and(|next| next.may_end)
}

fn accepts_tokens(compiled: &Compiled, tokens: &[u32]) -> bool {
    let mut matcher = compiled.matcher();
    let mut follows = |token: &u32| {
        matcher.next_tokens().is_ok_and(|next| next.mask.allows(*token)) && matcher.advance(*token).is_ok()
    };
    tokens.iter().all(&mut follows) && matcher.next_tokens().is_ok_and(|next| next.may_end)
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
