//! `skein bench latency` and `skein bench throughput`: measure an engine in this process, without HTTP.

use std::time::Duration;

use clap::{ArgMatches, Args};
use serde_json::{Value, json};
use skein_bench::engine::ceiling::{Ceiling, On, measure, measure_again};
use skein_bench::engine::report::{
    Iteration, LatencyReport, ceiling_json, ceiling_line, latency_head, latency_row,
};
use skein_bench::engine::shares::{Least, Requests};
use skein_bench::engine::{self, Job};
use skein_bench::load::metrics::{Record, Report, Summary, Targets};
use skein_bench::load::report;
use skein_worker::config::{BackendKind, WorkerConfig};
use skein_worker::service::LocalWorker;

use super::settings::read_config;
use crate::exit::{DEVICE, Failure, USAGE};
use crate::progress::progress_bar;
use crate::worker;

/// Flags of `bench latency`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Latency {
    #[arg(long, default_value_t = 128, value_name = "TOKENS", help = "Prompt length of each sequence")]
    input_len: u32,
    #[arg(long, default_value_t = 128, value_name = "TOKENS", help = "Output length of each sequence")]
    output_len: u32,
    #[arg(long, default_values_t = [1], num_args = 1.., value_name = "N", help = "Batch sizes to measure, one after another")]
    batch_size: Vec<usize>,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Warm-up batches, not measured")]
    num_iters_warmup: usize,
    #[arg(long, default_value_t = 5, value_name = "N", help = "Measured batches; the median is reported")]
    num_iters: usize,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
}

/// Flags of `bench throughput`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Throughput {
    #[arg(
        long,
        value_name = "TOKENS",
        help = "Prompt length of each request [default: 1000, or half of what a shorter model holds]"
    )]
    input_len: Option<u32>,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "Output length of each request [default: 1000, or half of what a shorter model holds]"
    )]
    output_len: Option<u32>,
    #[arg(long, default_value_t = 1000, value_name = "N", help = "Number of requests, all sent at once")]
    num_prompts: usize,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Warm-up requests, not measured")]
    num_warmups: usize,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
}

/// Runs `bench latency`.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or a request that did not finish.
pub async fn latency(flags: &Latency, matches: &ArgMatches) -> Result<(), Failure> {
    if flags.num_iters == 0 || flags.batch_size.contains(&0) {
        return Err(Failure::new(USAGE, "--num-iters and --batch-size must be at least 1"));
    }
    let most = flags.batch_size.iter().copied().max().unwrap_or(1);
    let Started { config, worker, on, mut ceiling, .. } =
        start(matches, most, Some(flags.input_len), Some(flags.output_len)).await?;
    let cost = worker.cost;
    let name = format!("{} on {}", config.served_model_name, worker.device.name());
    if !flags.json {
        let line = ceiling_line(&ceiling, cost.product);
        out!("{}", latency_head(&name, flags.input_len, flags.output_len, &line));
    }
    let (mut results, mut reads) = (Vec::new(), Vec::new());
    let mut seed = 0;
    for &batch in &flags.batch_size {
        let mut iterations = Vec::new();
        for iteration in 0..flags.num_iters_warmup + flags.num_iters {
            seed += 1;
            let measured = one_batch(flags, &worker, batch, seed).await?;
            let before = ceiling.read_bytes_per_second;
            measure_again(on, &mut ceiling);
            if iteration >= flags.num_iters_warmup {
                let read_bytes_per_second = f64::midpoint(before, ceiling.read_bytes_per_second);
                reads.push(read_bytes_per_second);
                iterations.push((measured, Ceiling { read_bytes_per_second, ..ceiling }));
            } else if let Some(gaps) = &worker.gaps {
                gaps.take(); // discard those of the warm-up
            }
        }
        let report = LatencyReport::of(&iterations, cost);
        let gap = worker.gaps.as_ref().map(|seen| Summary::of(seen.take().into_iter()));
        if !flags.json {
            print_batch(batch, &report, gap.as_ref());
        }
        results.push(MeasuredBatch { batch, report, gap });
    }
    reads.sort_unstable_by(f64::total_cmp);
    let range = [reads[0], reads[reads.len() - 1]];
    ceiling.read_bytes_per_second = reads[reads.len() / 2];
    if flags.json {
        let mut all = ceiling_json(&ceiling, cost.product);
        all.insert("read_range".into(), json!(range));
        all.insert("model".into(), json!(name));
        all.insert("input_len".into(), json!(flags.input_len));
        all.insert("output_len".into(), json!(flags.output_len));
        all.insert("results".into(), results.iter().map(MeasuredBatch::to_json).collect());
        outln!("{:#}", Value::Object(all));
    } else {
        let [least, most] = range.map(|read| read / 1e9);
        outln!(
            "read bandwidth {least:.1} to {most:.1} GB/s; shares are of the measurements before and after a batch"
        );
    }
    worker.stop().await.map_err(Failure::other)
}

/// Runs a batch alone.
async fn one_batch(
    flags: &Latency,
    worker: &LocalWorker,
    batch: usize,
    seed: u64,
) -> Result<Iteration, Failure> {
    let job = Job {
        requests: batch,
        at_once: batch,
        input_len: flags.input_len,
        output_len: flags.output_len,
        vocab_size: worker.vocab_size,
        seed,
    };
    let records = engine::run(&worker.engine, job, |_| {}).await;
    Iteration::of(&records, flags.input_len, flags.output_len).map_err(Failure::other)
}

/// A batch size with its figures.
struct MeasuredBatch {
    batch: usize,
    report: LatencyReport,
    /// Times that the device waited between two steps, in milliseconds.
    gap: Option<Summary>,
}

impl MeasuredBatch {
    fn to_json(&self) -> Value {
        let mut entry = self.report.to_json();
        entry.insert("batch_size".into(), json!(self.batch));
        if let Some(gap) = &self.gap {
            entry.insert("device_gap_us".into(), json!({"50": gap.p50 * 1e3, "99": gap.p99 * 1e3}));
        }
        Value::Object(entry)
    }
}

/// Prints a batch size as soon as it is measured: a run that is stopped has said what it knows.
fn print_batch(batch: usize, report: &LatencyReport, gap: Option<&Summary>) {
    out!("{}", latency_row(batch, report));
    if let Some(gap) = gap {
        let (median, most) = (gap.p50 * 1e3, gap.p99 * 1e3);
        outln!("device gap per step, batch {batch}: p50 {median:.1} us, p99 {most:.1} us");
    }
}

/// Runs `bench throughput`.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or no request that finished.
pub async fn throughput(flags: &Throughput, matches: &ArgMatches) -> Result<(), Failure> {
    if flags.num_prompts == 0 {
        return Err(Failure::new(USAGE, "--num-prompts is 0; ask for at least one"));
    }
    let Started { config, worker, on, mut ceiling, input_len, output_len } =
        start(matches, flags.num_prompts, flags.input_len, flags.output_len).await?;
    let job = |requests, seed| Job {
        requests,
        at_once: requests,
        input_len,
        output_len,
        vocab_size: worker.vocab_size,
        seed,
    };
    engine::run(&worker.engine, job(flags.num_warmups, 0), |_| {}).await;
    let bar =
        progress_bar(flags.num_prompts as u64, "  {bar:32} {pos}/{len} requests, {elapsed} ({eta} left)");
    let records = engine::run(&worker.engine, job(flags.num_prompts, 1), |_| bar.inc(1)).await;
    bar.finish_and_clear();
    let before = ceiling.read_bytes_per_second;
    measure_again(on, &mut ceiling);
    ceiling.read_bytes_per_second = f64::midpoint(before, ceiling.read_bytes_per_second);
    let report = Report::of(&records, &Targets::default());
    let limits = config.scheduler_on(worker.device);
    let (count, at_once) = (report.completed as u64, u64::from(limits.max_num_seqs));
    let requests = Requests { count, at_once, input_len, output_len };
    let least = Least::of_requests(requests, worker.cost, &ceiling);
    let shares = least.shares(Duration::from_secs_f64(report.duration_s));
    if flags.json {
        let mut all = report.to_json();
        all.extend(ceiling_json(&ceiling, worker.cost.product));
        all.insert("bandwidth_share".into(), json!(shares.reading));
        all.insert("multiply_share".into(), json!(shares.multiplying));
        all.insert("roofline_share".into(), json!(shares.roofline()));
        outln!("{:#}", Value::Object(all));
    } else {
        let title = format!(
            "{} on {}, {} requests of {} + {} tokens at once",
            config.served_model_name,
            worker.device.name(),
            flags.num_prompts,
            input_len,
            output_len
        );
        out!("{}", report::table(&title, &report));
        outln!(
            "\n{}; the run used {:.1}% of reading, {:.1}% of multiplying",
            ceiling_line(&ceiling, worker.cost.product),
            shares.reading * 100.0,
            shares.multiplying * 100.0
        );
    }
    if report.completed == 0 {
        let first = records.iter().find_map(Record::failure).unwrap_or_else(|| "none was sent".to_owned());
        return Err(Failure::other(format!("no request finished; the first one: {first}")));
    }
    worker.stop().await.map_err(Failure::other)
}

/// What a benchmark runs on.
struct Started {
    config: WorkerConfig,
    worker: LocalWorker,
    on: On,
    ceiling: Ceiling,
    input_len: u32,
    output_len: u32,
}

/// Default of `bench throughput --input-len` and `--output-len`, as in vLLM, in tokens.
const THROUGHPUT_LEN: u32 = 1000;

/// Measures the device's limits, then loads an engine that can run `requests` of this length at once.
async fn start(
    matches: &ArgMatches,
    requests: usize,
    input_len: Option<u32>,
    output_len: Option<u32>,
) -> Result<Started, Failure> {
    let mut config = read_config(matches).await?;
    config.cuda.times_gaps = true;
    let queue = &mut config.scheduler.max_num_queued_reqs;
    *queue = (*queue).max(u32::try_from(requests).unwrap_or(u32::MAX));
    // Before the model takes the memory.
    let on_gpu = match config.backend {
        BackendKind::Cuda => true,
        BackendKind::Auto => skein_worker::visible_gpus() > 0,
        BackendKind::Cpu | BackendKind::Fake => false,
    };
    let on =
        if on_gpu { On::Cuda { ordinal: config.cuda.ordinal } } else { On::Cpu { threads: config.threads } };
    let ceiling = measure(on).map_err(|error| Failure::new(DEVICE, error))?;
    let worker = LocalWorker::start(&config, |_, _| {}).map_err(|error| worker::failure(&error))?;
    let (input_len, output_len) = lengths(input_len, output_len, worker.max_model_len);
    let needed = input_len.saturating_add(output_len);
    if input_len == 0 || output_len == 0 || needed > worker.max_model_len {
        let message = format!(
            "--input-len {input_len} and --output-len {output_len} must be at least 1, and together at most {}, \
             what {} holds",
            worker.max_model_len, config.served_model_name
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok(Started { config, worker, on, ceiling, input_len, output_len })
}

/// Prompt and output lengths; those that were not given are chosen to fit into `max_model_len` together.
fn lengths(input_len: Option<u32>, output_len: Option<u32>, max_model_len: u32) -> (u32, u32) {
    let beside = |other: Option<u32>| match other {
        Some(other) => THROUGHPUT_LEN.min(max_model_len.saturating_sub(other)),
        None => THROUGHPUT_LEN.min(max_model_len / 2),
    };
    (input_len.unwrap_or_else(|| beside(output_len)), output_len.unwrap_or_else(|| beside(input_len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_fits_the_shipped_model_by_default() {
        assert_eq!(lengths(None, None, 1024), (512, 512));
        assert_eq!(lengths(None, None, 131_072), (1000, 1000));
        assert_eq!(lengths(Some(1000), None, 1024), (1000, 24));
        assert_eq!(
            lengths(Some(9000), Some(9), 1024),
            (9000, 9),
            "what was asked for is refused later, not changed"
        );
    }
}
