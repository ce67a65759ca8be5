//! Answers and probes for `tests/grammar/number_ranges.py`. Each line on stdin is `{"schema": …, "probes":
//! […], "seed": …}`; each line on stdout has 20 random `answers`, and which probes are `accepted`, or
//! `refused`.

use std::io::{BufRead, Write};

use serde_json::{Value, json};
use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Compiled, Library, Source};

const ANSWERS: u64 = 20;
/// Characters after which a number is cut and counts as no answer.
const MOST: usize = 80;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = Library::new(&TokenBytes::of_bytes(), 256)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let compiled = Source::json_schema(&case["schema"]).and_then(|source| library.compile(&source));
        let told = compiled.map(|compiled| {
            let seed = case["seed"].as_u64().unwrap_or_default();
            let answers: Vec<_> = (0..ANSWERS).filter_map(|at| answer(&compiled, seed + at)).collect();
            let probes = case["probes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let accepted: Vec<bool> = probes.map(|probe| accepts(&compiled, probe)).collect();
            json!({"answers": answers, "accepted": accepted})
        });
        writeln!(out, "{}", told.unwrap_or_else(|refused| json!({"refused": refused.to_string()})))?;
    }
    Ok(())
}

/// A random answer; `None` if it is cut.
fn answer(compiled: &Compiled, seed: u64) -> Option<String> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit.max(1)
    };
    let (mut matcher, mut text) = (compiled.matcher(), String::new());
    while text.len() < MOST {
        let next = matcher.next_tokens().map_err(|stuck| eprintln!("{stuck} after {text}")).ok()?;
        if next.mask.is_empty() || (next.may_end && below(4) == 0) {
            return Some(text);
        }
        let all: Vec<u32> = next.mask.tokens().collect();
        let token = all[below(all.len())];
        text.push(char::from(u8::try_from(token).ok()?));
        matcher.advance(token).ok()?;
    }
    None
}

fn accepts(compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    text.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
        && matcher.next_tokens().is_ok_and(|next| next.may_end)
}
