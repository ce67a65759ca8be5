//! Measures how long steps of a few sizes take on a worker in this process.

use serde::{Deserialize, Serialize};
use skein_worker::engine::EngineHandle;

use super::job::{Job, run};
use super::report::Iteration;

/// Size of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Tokens computed, including padding.
    pub rows: u32,
    /// Tokens of KV cache read, summed over the sequences.
    pub context: u64,
}

/// A step and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Rows and context.
    #[serde(flatten)]
    pub work: Work,
    /// Duration in seconds, above zero.
    pub seconds: f64,
}

/// What [`measure`] found: steps to make a model of step times from, and others to evaluate it at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Steps for a fit.
    pub made_from: Vec<Timed>,
    /// Other steps.
    pub held_out: Vec<Timed>,
}

/// Limits of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most sequences at once.
    pub max_num_seqs: u32,
    /// Most tokens of a sequence.
    pub max_model_len: u32,
    /// Tokens of KV cache.
    pub kv_tokens: u32,
    /// Vocabulary size; prompt tokens are below it.
    pub vocab_size: u32,
}

/// A worker and its step times, as `skein bench step-times` prints them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredWorker {
    /// Its model and device, for people.
    pub model: String,
    /// Its limits.
    pub limits: Limits,
    /// Durations of its steps.
    pub times: StepTimes,
}

/// A step to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Number of decoding sequences, and the prompt tokens of each.
    Decode(u32, u32),
    /// A prompt of this many tokens alone.
    Prefill(u32),
}

/// Times each size is measured; the median counts.
const ROUNDS: u64 = 5;
/// Tokens drawn by each sequence that decodes.
const DECODED: u32 = 24;
/// Sequences in the large batch, and tokens of the long context and the long prompt, if the worker can hold
/// them.
const LARGE_BATCH: u32 = 32;
const LONG: u32 = 1024;
const LONG_PROMPT: u32 = 512;
/// Tokens of the short context and the short prompt.
const SHORT: u32 = 64;

/// Sizes to fit the model to, and sizes to evaluate it at.
fn sizes(limits: &Limits) -> (Vec<Size>, Vec<Size>) {
    let most = limits.max_model_len.saturating_sub(DECODED).max(2);
    let (short, long, prompt) = (SHORT.min(most), LONG.min(most), LONG_PROMPT.min(most));
    let fit = |batch: u32, context: u32| {
        batch.min(limits.max_num_seqs).min(limits.kv_tokens / (context + DECODED)).max(1)
    };
    let decode = |batch, context| Size::Decode(fit(batch, context), context);
    let large = LARGE_BATCH;
    let made_from = vec![
        decode(1, short),
        decode(1, long),
        decode(large / 4, long),
        decode(large, short),
        Size::Prefill(short),
        Size::Prefill(prompt / 2),
        Size::Prefill(prompt),
    ];
    let held_out = vec![
        decode(large / 8, long / 2),
        decode(large / 2, short),
        decode(large, long / 4),
        Size::Prefill(prompt * 3 / 4),
    ];
    (made_from, held_out)
}

/// Measures the steps of `engine`, which must be idle otherwise; calls `on_done` after each size with the
/// total number of sizes.
///
/// # Errors
/// If a request fails.
pub async fn measure(
    engine: &EngineHandle,
    limits: &Limits,
    mut on_done: impl FnMut(usize),
) -> Result<StepTimes, String> {
    let (made_from, held_out) = sizes(limits);
    let all: Vec<Size> = made_from.iter().chain(&held_out).copied().collect();
    let mut seconds = vec![Vec::new(); all.len()];
    let mut seed = 0;
    // Sizes alternate, so that a slow minute of the machine affects all of them. The first round is a
    // warm-up.
    for round in 0..=ROUNDS {
        for (index, &size) in all.iter().enumerate() {
            seed += 1;
            let took = one(engine, size, limits.vocab_size, seed).await?;
            if round > 0 {
                seconds[index].push(took);
            }
            on_done(all.len());
        }
    }
    let timed = |(size, times): (&Size, &mut Vec<f64>)| {
        times.sort_unstable_by(f64::total_cmp);
        Timed { work: work(*size), seconds: times[times.len() / 2] }
    };
    let mut steps: Vec<Timed> = all.iter().zip(&mut seconds).map(timed).collect();
    let held_out = steps.split_off(made_from.len());
    Ok(StepTimes { made_from: steps, held_out })
}

/// Number of steps that [`measure`] runs per size.
pub const RUNS_OF_A_SIZE: u64 = ROUNDS + 1;

fn work(size: Size) -> Work {
    match size {
        Size::Decode(batch, context) => {
            Work { rows: batch, context: u64::from(batch) * u64::from(context + DECODED / 2) }
        }
        Size::Prefill(tokens) => Work { rows: tokens, context: tokens.into() },
    }
}

/// Measures one step; returns its seconds.
async fn one(engine: &EngineHandle, size: Size, vocab_size: u32, seed: u64) -> Result<f64, String> {
    let (requests, input_len, output_len) = match size {
        Size::Decode(batch, context) => (batch as usize, context, DECODED),
        Size::Prefill(tokens) => (1, tokens, 1),
    };
    let job = Job { requests, at_once: requests, input_len, output_len, vocab_size, seed };
    let records = run(engine, job, |_| {}).await;
    let measured = Iteration::of(&records, input_len, output_len)?;
    let took = match size {
        Size::Decode(..) => measured.decode_step.unwrap_or(measured.latency / output_len),
        Size::Prefill(_) => measured.prefill,
    };
    Ok(took.as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skein_worker::backend::fake::{FakeBackend, FakeOptions, StepCost};
    use skein_worker::config::SchedulerConfig;
    use skein_worker::engine::Engine;
    use skein_worker::scheduler::Scheduler;

    use super::*;

    #[test]
    fn sizes_fit_what_the_worker_holds() {
        let check = |limits: Limits| {
            let (made_from, held_out) = sizes(&limits);
            for size in made_from.into_iter().chain(held_out) {
                let (batch, tokens) = match size {
                    Size::Decode(batch, context) => (batch, context + DECODED),
                    Size::Prefill(tokens) => (1, tokens + 1),
                };
                assert!((1..=limits.max_num_seqs).contains(&batch), "{size:?}");
                assert!(tokens <= limits.max_model_len && batch * tokens <= limits.kv_tokens, "{size:?}");
            }
        };
        let limits = Limits { max_num_seqs: 64, max_model_len: 4096, kv_tokens: 65_536, vocab_size: 9 };
        check(limits);
        check(Limits { max_model_len: 1024, kv_tokens: 2048, ..limits });
        check(Limits { max_num_seqs: 4, max_model_len: 96, kv_tokens: 200, ..limits });
    }

    #[tokio::test]
    async fn a_worker_of_known_speed_is_measured_as_such() {
        let cost = StepCost {
            fixed: Duration::from_millis(4),
            per_row: Duration::from_micros(20),
            per_context_token: Duration::ZERO,
        };
        let backend = FakeBackend::new(FakeOptions { kv_blocks: 1024, cost, ..FakeOptions::default() });
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 1024, 512);
        let (engine, handle) = Engine::new(scheduler, Box::new(backend), 64);
        let thread = std::thread::spawn(move || engine.run());
        let limits = Limits { max_num_seqs: 8, max_model_len: 512, kv_tokens: 16_384, vocab_size: 100 };
        let mut done = 0;
        let measured = measure(&handle, &limits, |_| done += 1).await.expect("all requests end");
        assert_eq!(done, RUNS_OF_A_SIZE as usize * (measured.made_from.len() + measured.held_out.len()));
        // A step cannot be faster than the device; how much slower it is depends on the machine.
        for step in measured.made_from.iter().chain(&measured.held_out) {
            assert!(step.seconds >= 0.0039, "{step:?}");
        }
        assert!(measured.made_from.iter().any(|step| step.seconds < 1.0), "{measured:?}");
        handle.stop().await;
        assert!(thread.join().is_ok_and(|ended| ended.is_ok()));
    }
}
