//! What drafting costs a stream: `cargo bench -p skein-bench --bench drafts`. Texts of 32,768 tokens grow by
//! a token a step, beside a full memory of finished texts. Prints the time of a draft with its bookkeeping,
//! and a text's memory.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_node::clock;
use skein_worker::TokenId;
use skein_worker::draft::{Guesser, Progress, Speculate, Text};
use skein_worker::kv_cache::CacheScope;

const CONTEXT: usize = 32_768;
const STEPS: usize = 20_000;
/// Texts held at once to measure their memory.
const HELD: usize = 200;
/// Finished texts, more than are remembered.
const FINISHED: usize = 200;

/// Token at a position of a text.
type Draw = fn(&mut StdRng, usize) -> TokenId;

fn main() {
    let kinds: [(&str, Draw); 3] = [
        ("random of 32,000", |rng, _| rng.random_range(0..32_000)),
        ("random of 16", |rng, _| rng.random_range(0..16)),
        ("repeated every 97", |_, at| (at % 97) as TokenId),
    ];
    println!("{:20} {:>12} {:>12} {:>18}", "text", "p50 us", "p99 us", "bytes a token");
    for (name, token) in kinds {
        measure(name, token);
    }
}

fn measure(name: &str, token: Draw) {
    let rng = &mut StdRng::seed_from_u64(1);
    let scope = CacheScope::new("model", "");
    let mut guesser = Guesser::new(Speculate::Auto, true).expect("there are sources");
    let tokens: Vec<TokenId> = (0..CONTEXT + STEPS).map(|at| token(rng, at)).collect();
    for _ in 0..FINISHED {
        let finished: Vec<TokenId> = (0..8192).map(|at| token(rng, at)).collect();
        guesser.ended(&scope, &finished, 0);
    }
    let text =
        |len: usize| Text { tokens: &tokens[..len], scope: &scope, stops: &[], forced: &[], modelled: &[] };
    let mut progress = Progress::default();
    // A call indexes a part of a long text.
    (0..CONTEXT / 1024 + 1).for_each(|_| guesser.guess(&text(CONTEXT), 31, &mut progress));
    let mut times: Vec<f64> = (0..STEPS)
        .map(|step| {
            let begun = clock::now();
            guesser.guess(&text(CONTEXT + step), 31, &mut progress);
            guesser.choose(std::iter::once(&progress), 1, 31);
            guesser.drawn(tokens[CONTEXT + step..].iter().copied().take(1), &mut progress);
            clock::now().since(begun).as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let before = resident();
    let held: Vec<Progress> = (0..HELD)
        .map(|_| {
            let mut progress = Progress::default();
            (0..CONTEXT / 1024 + 1).for_each(|_| guesser.guess(&text(CONTEXT), 31, &mut progress));
            progress
        })
        .collect();
    let bytes = (resident() - before) as f64 / (held.len() * CONTEXT) as f64;
    println!("{name:20} {:>12.2} {:>12.2} {bytes:>18.1}", times[STEPS / 2], times[STEPS * 99 / 100]);
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}
