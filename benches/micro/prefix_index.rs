//! The router's prefix index with many workers: `cargo bench -p skein-bench --bench prefix_index`. Each
//! worker caches conversations of eight runs that no other worker has, the worst case for memory.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_choice::prefix_index::{Hits, PrefixIndex};
use skein_choice::worker_id::WorkerId;
use skein_node::clock;
use skein_proto::runs::{Gaps, RunStored};

/// Runs per conversation.
const TURNS: usize = 8;
/// Blocks of the searched prompt; no worker caches the last one.
const PROMPT: usize = 65;
const SEARCHES: usize = 20_000;

fn main() {
    println!(
        "workers x blocks (a run)   bytes a block held   M blocks/s   search p50 / p99 us   snapshot part us"
    );
    for (workers, blocks, run) in
        [(64, 50_000, 64), (256, 50_000, 64), (1000, 12_800, 64), (64, 1_000_000, 64), (64, 200_000, 8)]
    {
        measure(workers, blocks, run);
    }
}

fn measure(workers: u32, blocks: usize, run: usize) {
    let mut rng = StdRng::seed_from_u64(1);
    let mut index = PrefixIndex::new(usize::MAX);
    let (mut prompts, mut storing) = (Vec::new(), 0.0);
    for worker in 0..workers {
        let runs = conversations(&mut rng, blocks, run);
        prompts.extend(runs.chunks(TURNS).take(200).map(prompt));
        let begun = clock::now();
        index.replace(WorkerId(worker), &runs, &Gaps::default()).expect("runs of one worker fit");
        storing += clock::now().since(begun).as_secs_f64();
    }
    let mut hits = Hits::default();
    let mut times: Vec<f64> = (0..SEARCHES)
        .map(|_| {
            let prompt = &prompts[rng.random_range(0..prompts.len())];
            let begun = clock::now();
            index.search(prompt, &mut hits);
            clock::now().since(begun).as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let part = conversations(&mut rng, 4096, run);
    let begun = clock::now();
    index.store(WorkerId(workers), &part).expect("runs of one worker fit");
    let part = clock::now().since(begun).as_secs_f64() * 1e6;
    let held = workers as usize * blocks;
    println!(
        "{workers:>7} x {blocks:<7} ({run:>2})   {:>18.1}   {:>10.1}   {:>9.2} / {:<7.2}   {part:>16.0}",
        index.bytes() as f64 / held as f64,
        held as f64 / storing / 1e6,
        times[SEARCHES / 2],
        times[SEARCHES * 99 / 100],
    );
}

/// `blocks` blocks in chains of up to eight runs.
fn conversations(rng: &mut StdRng, blocks: usize, run: usize) -> Vec<RunStored> {
    (0..blocks.div_ceil(run))
        .map(|at| RunStored {
            handle: at as u64 + 1,
            parent: if at % TURNS == 0 { 0 } else { at as u64 },
            depth: (at % TURNS * run) as u32,
            hashes: (0..run.min(blocks - at * run)).map(|_| rng.random()).collect(),
        })
        .collect()
}

fn prompt(runs: &[RunStored]) -> Vec<u64> {
    let blocks = runs.iter().flat_map(|run| run.hashes.iter().copied());
    blocks.take(PROMPT - 1).chain([0]).collect()
}
