//! Reading a request's body: `cargo bench -p skein-bench --bench bodies`. From the bytes to drafts, and for
//! comparison the same bytes as JSON values alone, from which drafts were made before.

use std::hint::black_box;

use http::HeaderMap;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use skein_node::clock;
use skein_router::config::RouterConfig;
use skein_router::gateway::picked;

const ROUNDS: usize = 5;

fn main() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut ids = |count: usize| (0..count).map(|_| rng.random_range(0..32_000)).collect::<Vec<u32>>();
    let words = "the quick brown fox jumps over the lazy dog ".repeat(400);
    let turns: Vec<Value> = (0..9)
        .map(|turn| json!({"role": ["user", "assistant"][turn % 2], "content": &words[..200 + turn]}))
        .collect();
    let completion = |prompt: Value| json!({"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": true, "stream": true});
    let chat = json!({"model": "m", "messages": turns, "max_tokens": 64, "temperature": 0.7, "stream": true});
    println!("{:<22} {:>9} {:>15} {:>15} {:>7}", "", "bytes", "JSON values, us", "drafts, us", "ratio");
    for (name, path, body) in [
        ("32 ids", "/v1/completions", completion(ids(32).into())),
        ("2,048 ids", "/v1/completions", completion(ids(2048).into())),
        ("32,768 ids", "/v1/completions", completion(ids(32_768).into())),
        ("16 KB of text", "/v1/completions", completion(Value::from(&words[..16_384]))),
        ("chat of 9 messages", "/v1/chat/completions", chat),
    ] {
        let (values, drafts) = measure(path, body.to_string().as_bytes());
        let bytes = body.to_string().len();
        println!("{name:<22} {bytes:>9} {values:>15.2} {drafts:>15.2} {:>7.2}", drafts / values);
    }
}

/// Medians over rounds in turn, in microseconds.
fn measure(path: &str, body: &[u8]) -> (f64, f64) {
    let (config, headers) = (RouterConfig::new("", ["m"]), HeaderMap::new());
    let count = (4_000_000 / body.len()).clamp(20, 20_000);
    let timed = |work: &dyn Fn()| {
        let begun = clock::now();
        (0..count).for_each(|_| work());
        clock::now().since(begun).as_secs_f64() * 1e6 / count as f64
    };
    let values = || drop(black_box(serde_json::from_slice::<Value>(black_box(body))));
    let drafts = || {
        let drafts = picked::drafts(path, &headers, black_box(body), "id", &config);
        assert!(black_box(drafts).is_ok_and(|drafts| drafts.is_some()), "the body is valid");
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((timed(&values), timed(&drafts)));
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    };
    (
        median(rounds.iter().map(|round| round.0).collect()),
        median(rounds.iter().map(|round| round.1).collect()),
    )
}
