//! Runs thousands of seeds. `TEST_SIM_SEED=n` runs one and prints its log; `TEST_SIM_SEEDS=n` runs n seeds,
//! starting at `TEST_SIM_FIRST=n`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skein_simulation::run::{Summary, run_seed};

/// Seeds in a normal test run.
const SEEDS: u64 = 2000;
/// Simulated time must run at least this many times as fast as real time.
const SPEED: f64 = 1000.0;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn fail(summary: &Summary) -> ! {
    for line in &summary.tail {
        println!("{line}");
    }
    let Summary { seed, hash, violation, .. } = summary;
    let violation = violation.as_deref().unwrap_or_default();
    panic!("seed {seed} (log {hash:016x}): {violation}\nTEST_SIM_SEED={seed} reproduces it");
}

#[test]
#[allow(clippy::disallowed_methods)] // real time is what this test measures
fn nothing_is_lost_in_any_run() {
    if let Some(seed) = setting("TEST_SIM_SEED") {
        // Prints the product's own log between the simulator's lines: RUST_LOG=debug.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false).init();
        let summary = run_seed(seed, true);
        println!("log {:016x}, {} lines", summary.hash, summary.lines);
        if summary.violation.is_some() {
            fail(&summary);
        }
        return;
    }
    let (first, count) = (setting("TEST_SIM_FIRST").unwrap_or(0), setting("TEST_SIM_SEEDS").unwrap_or(SEEDS));
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sums = Mutex::new(Sums::default());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let summary = run_seed(first + number, false);
                    stop.fetch_or(summary.violation.is_some(), Ordering::Relaxed);
                    sums.lock().expect("no thread panics with it").add(summary);
                }
            });
        }
    });
    let sums = sums.into_inner().expect("no thread panics with it");
    let took = started.elapsed();
    let speed = sums.simulated.as_secs_f64() / took.as_secs_f64();
    println!(
        "{} seeds, {} requests ({} completed), {} disturbances, {} draft tokens right, {:.1} h simulated in {:.1} s: {speed:.0} times real time",
        sums.seeds,
        sums.requests,
        sums.completed,
        sums.disturbances,
        sums.accepted,
        sums.simulated.as_secs_f64() / 3600.0,
        took.as_secs_f64()
    );
    if let Some(failed) = sums.failed {
        fail(&failed);
    }
    assert!(count < 100 || sums.accepted > count, "drafts were verified");
    if setting("TEST_SIM_SPEED").is_some_and(|wanted| wanted > 0) {
        assert!(speed >= SPEED, "simulated time runs {speed:.0} times as fast as real time");
    }
}

#[derive(Default)]
struct Sums {
    seeds: u64,
    requests: u64,
    completed: u64,
    disturbances: u64,
    accepted: u64,
    simulated: Duration,
    /// The lowest seed that failed.
    failed: Option<Summary>,
}

impl Sums {
    fn add(&mut self, summary: Summary) {
        self.seeds += 1;
        self.requests += u64::from(summary.requests);
        self.completed += u64::from(summary.completed);
        self.disturbances += summary.disturbances;
        self.accepted += summary.accepted;
        self.simulated += summary.simulated;
        let lower = self.failed.as_ref().is_none_or(|failed| summary.seed < failed.seed);
        if summary.violation.is_some() && lower {
            self.failed = Some(summary);
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in 0..20 {
        let (one, other) = (run_seed(seed, false), run_seed(seed, false));
        assert_eq!((one.hash, one.lines), (other.hash, other.lines), "seed {seed}");
    }
}
