//! `skein bench batching`: simulates batching rules and KV reservations and compares them with Skein's
//! scheduler.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use serde_json::{Value, json};
use skein_bench::batching::{
    Lengths, Limits, Measured, Point, RUNS_OF_A_SIZE, Rule, Setup, Statistic, StepTime, Sweep, Timed, measure,
};
use skein_bench::load::HeldBack;
use skein_bench::plot::{self, Bar, Chart, Dash, Line, Scale};
use skein_worker::config::SchedulerConfig;

use super::{engine, progress_bar, saved, shown};
use crate::exit::{Failure, USAGE};
use crate::settings::{table, with_flags};

/// Flags of `bench batching`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Batching {
    #[arg(long, default_value = "sharegpt", value_name = "NAME", help = "Lengths of the requests")]
    lengths: Preset,
    #[arg(long, default_value_t = 1000, value_name = "N", help = "Requests in each run")]
    num_prompts: usize,
    #[arg(long, default_value_t = 0, value_name = "N", help = "Seed of lengths and arrivals")]
    seed: u64,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "KV memory [default: 15700, what OPT-13B leaves of 40 GB; with --measure that of the worker]"
    )]
    kv_tokens: Option<u32>,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "Longest sequence [default: 2048; with --measure at most the model's]"
    )]
    max_model_len: Option<u32>,
    #[arg(
        long,
        value_name = "N",
        help = "Most sequences at once [default: 256; with --measure that of the worker]"
    )]
    max_num_seqs: Option<u32>,
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", help = "Skein's token budget of a step")]
    max_num_batched_tokens: u32,
    #[arg(long, default_value_t = 16, value_name = "TOKENS", help = "Tokens in a KV block of Skein")]
    block_size: u32,
    #[arg(
        long,
        value_name = "SECONDS",
        help = "Limit of the latency per output token [default: ten times that of a request alone]"
    )]
    latency_bound: Option<f64>,
    #[arg(
        long,
        default_value = "8:50ms",
        value_name = "N:TIME",
        help = "Dynamic batching: largest batch and longest delay"
    )]
    dynamic: String,
    #[arg(
        long,
        value_name = "S,S,S,S",
        help = "Step time in seconds: overhead, reading the weights, a row, a token of context [default: OPT-13B on an A100]"
    )]
    step_time: Option<String>,
    #[arg(
        long,
        conflicts_with = "step_time",
        help = "Measure the step time of a model on this machine first; the model and a worker's flags follow after --"
    )]
    measure: bool,
    #[arg(
        last = true,
        requires = "measure",
        value_name = "MODEL AND FLAGS",
        help = "With --measure: what to measure"
    )]
    worker: Vec<String>,
    #[arg(
        long,
        num_args = 2,
        value_names = ["A.json", "B.json"],
        help = "Compare two results of --json instead of simulating"
    )]
    compare: Vec<PathBuf>,
    #[arg(long, value_name = "FILE", help = "Write latency over rate for every rule as CSV")]
    csv: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = "Write the plots as SVG")]
    plot: Option<PathBuf>,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// Conversations: 161 + 338 tokens on average, with long tails
    Sharegpt,
    /// Instructions: 19 + 58 tokens on average
    Alpaca,
}

/// Lowest rate of a curve, as a share of the rate of requests that run one after another.
const LOWEST_SHARE: f64 = 0.05;
/// Points of each curve.
const CURVE_POINTS: usize = 12;

/// KV memory in tokens, longest sequence in tokens, and most sequences, by default: those of the
/// PagedAttention paper's OPT-13B on 40 GB.
const KV_TOKENS: u32 = 15_700;
const MAX_MODEL_LEN: u32 = 2048;
const MAX_NUM_SEQS: u32 = 256;

/// A rule with the highest rates at which it meets the latency bound.
struct Row {
    rule: Rule,
    mean: Option<Point>,
    p99: Option<Point>,
    at_once: Point,
}

/// Runs `bench batching`.
///
/// # Errors
/// Invalid flags, or files that cannot be written.
pub async fn run(flags: &Batching) -> Result<(), Failure> {
    if !flags.compare.is_empty() {
        out!("{}", saved::batching_comparison(&flags.compare)?);
        return Ok(());
    }
    let machine = if flags.measure { Some(Machine::measure(&flags.worker).await?) } else { None };
    simulate(flags, machine.as_ref())
}

/// A worker with measured step times.
struct Machine {
    name: String,
    limits: Limits,
    measured: Measured,
}

impl Machine {
    /// Starts the worker described by `arguments`, which are those of `bench latency`, and measures its
    /// steps.
    async fn measure(arguments: &[String]) -> Result<Self, Failure> {
        let command = Command::new("skein bench batching --measure --").arg(engine::model());
        let name = std::iter::once("--measure --".to_owned());
        let matches = with_flags(command, table::BENCH)
            .try_get_matches_from(name.chain(arguments.iter().cloned()))
            .map_err(|error| error.exit())?;
        let (config, worker) = engine::start_worker(&matches).await?;
        let limits = Limits {
            max_num_seqs: worker.max_num_seqs,
            max_model_len: worker.max_model_len,
            kv_tokens: worker.kv_tokens,
            vocab_size: worker.vocab_size,
        };
        let bar = progress_bar(RUNS_OF_A_SIZE, "  {bar:32} {pos}/{len} measurements, {elapsed}");
        let measured = measure(&worker.engine, &limits, |sizes| {
            bar.set_length(RUNS_OF_A_SIZE * sizes as u64);
            bar.inc(1);
        });
        let measured = measured.await.map_err(Failure::other)?;
        bar.finish_and_clear();
        let name = format!("{} on {}", config.served_model_name, worker.device.name());
        worker.stop().await.map_err(Failure::other)?;
        Ok(Self { name, limits, measured })
    }

    fn table(&self) -> String {
        let StepTime { overhead, weights, row, context_token } = self.measured.step_time;
        let mut out = format!(
            "{}: step time {:.3} ms + the longer of {:.3} ms and {:.4} ms a row, + {:.4} us a token of context\n\
             {:<12}{:>8}{:>10}{:>12}{:>12}{:>9}\n",
            self.name,
            overhead * 1e3,
            weights * 1e3,
            row * 1e3,
            context_token * 1e6,
            "",
            "rows",
            "context",
            "measured ms",
            "model ms",
            "error"
        );
        let mut lines = |what: &str, steps: &[Timed]| {
            for step in steps {
                let model = self.measured.step_time.of(step.work).as_secs_f64();
                let (rows, context) = (step.work.rows, step.work.context);
                let (measured, error) = (step.seconds * 1e3, step.error(&self.measured.step_time) * 100.0);
                let _ = writeln!(
                    out,
                    "{what:<12}{rows:>8}{context:>10}{measured:>12.3}{:>12.3}{error:>+8.1}%",
                    model * 1e3
                );
            }
        };
        lines("made from", &self.measured.made_from);
        lines("held out", &self.measured.held_out);
        out + "\n"
    }

    fn to_json(&self) -> Value {
        let step = |step: &Timed| {
            json!({
                "rows": step.work.rows, "context": step.work.context, "measured_s": step.seconds,
                "error": step.error(&self.measured.step_time),
            })
        };
        json!({
            "model": self.name,
            "made_from": self.measured.made_from.iter().map(step).collect::<Vec<_>>(),
            "held_out": self.measured.held_out.iter().map(step).collect::<Vec<_>>(),
            "worst_error": self.measured.worst(),
        })
    }
}

fn simulate(flags: &Batching, machine: Option<&Machine>) -> Result<(), Failure> {
    let usage = |message| Failure::new(USAGE, message);
    let setup = flags.setup(machine).map_err(usage)?;
    let rules = flags.rules().map_err(usage)?;
    let bound = flags.bound(&setup).map_err(usage)?;
    let lowest = LOWEST_SHARE / (setup.step_time.alone(setup.context / 2) * setup.lengths.output_mean);
    let sweep = Sweep { setup };
    let with_curves = flags.csv.is_some() || flags.plot.is_some();
    let bar = progress_bar(rules.len() as u64, "  {bar:32} {pos}/{len} rules, {elapsed}");
    let mut rows = Vec::new();
    for &rule in &rules {
        rows.push(Row {
            rule,
            mean: sweep.highest(rule, Statistic::Mean, bound, lowest),
            p99: sweep.highest(rule, Statistic::P99, bound, lowest),
            at_once: sweep.at(rule, None),
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    if flags.json {
        let mut all = to_json(&sweep.setup, bound, &rows);
        all["measured"] = machine.map(Machine::to_json).unwrap_or_default();
        outln!("{all:#}");
    } else {
        out!("{}", machine.map(Machine::table).unwrap_or_default());
        out!("{}", table(&sweep.setup, bound, &rows));
    }
    if with_curves {
        let curves = curves(&sweep, lowest, &rows);
        write(flags.csv.as_ref(), || csv(&curves))?;
        write(flags.plot.as_ref(), || plots(bound, &curves, &rows))?;
    }
    Ok(())
}

fn write(path: Option<&PathBuf>, content: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content())
        .map_err(|error| Failure::other(format!("cannot write {}: {error}", shown(path))))?;
    eprintln!("saved {}", shown(path));
    Ok(())
}

impl Batching {
    fn setup(&self, machine: Option<&Machine>) -> Result<Setup, String> {
        let limits = machine.map(|machine| &machine.limits);
        let kv_tokens = self.kv_tokens.or(limits.map(|limits| limits.kv_tokens)).unwrap_or(KV_TOKENS);
        let longest = limits.map_or(u32::MAX, |limits| limits.max_model_len);
        let max_model_len = self.max_model_len.unwrap_or(MAX_MODEL_LEN.min(longest));
        let most = self.max_num_seqs.or(limits.map(|limits| limits.max_num_seqs)).unwrap_or(MAX_NUM_SEQS);
        for (name, value) in [
            ("num-prompts", self.num_prompts as u64),
            ("max-num-seqs", u64::from(most)),
            ("max-num-batched-tokens", u64::from(self.max_num_batched_tokens)),
            ("block-size", u64::from(self.block_size)),
        ] {
            if value == 0 {
                return Err(format!("--{name} is 0; give at least 1"));
            }
        }
        if max_model_len < 16 || max_model_len > kv_tokens / self.block_size * self.block_size {
            return Err(format!(
                "--max-model-len {max_model_len} must be at least 16 and fit into --kv-tokens {kv_tokens}"
            ));
        }
        let lengths = match self.lengths {
            Preset::Sharegpt => Lengths::SHAREGPT,
            Preset::Alpaca => Lengths::ALPACA,
        };
        Ok(Setup {
            capacity: kv_tokens,
            context: max_model_len,
            most,
            step_time: match machine {
                Some(machine) => machine.measured.step_time,
                None => self.step_time()?,
            },
            lengths: Lengths { most: max_model_len, ..lengths },
            count: self.num_prompts,
            seed: self.seed,
            scheduler: SchedulerConfig {
                block_size: self.block_size,
                max_num_batched_tokens: self.max_num_batched_tokens,
                ..SchedulerConfig::default()
            },
        })
    }

    fn step_time(&self) -> Result<StepTime, String> {
        let Some(text) = &self.step_time else { return Ok(StepTime::OPT_13B_A100) };
        let complaint = || {
            format!(
                "--step-time `{text}` is not four numbers of seconds such as 0.002,0.017,0.0002,0.0000005"
            )
        };
        let numbers: Result<Vec<f64>, _> = text.split(',').map(|number| number.trim().parse()).collect();
        let numbers = numbers.map_err(|_| complaint())?;
        let [overhead, weights, row, context_token] = numbers[..] else { return Err(complaint()) };
        let valid = |number: f64| number.is_finite() && (0.0..1000.0).contains(&number);
        if !numbers.iter().all(|number| valid(*number)) || overhead + weights + row <= 0.0 {
            return Err(complaint());
        }
        Ok(StepTime { overhead, weights, row, context_token })
    }

    fn rules(&self) -> Result<Vec<Rule>, String> {
        let held = self.dynamic.split_once(':').and_then(|(most, delay)| HeldBack::dynamic(most, delay));
        let HeldBack { most, delay } =
            held.ok_or_else(|| format!("--dynamic `{}` is not N:TIME such as 8:50ms", self.dynamic))?;
        Ok(vec![
            Rule::Static,
            Rule::Dynamic { most, delay },
            Rule::OrcaMax,
            Rule::OrcaPowerOfTwo,
            Rule::OrcaOracle,
            Rule::Skein,
        ])
    }

    fn bound(&self, setup: &Setup) -> Result<f64, String> {
        let alone = setup.step_time.alone(setup.lengths.prompt_mean as u32);
        match self.latency_bound {
            Some(bound) if bound.is_finite() && bound > alone => Ok(bound),
            Some(bound) => Err(format!(
                "--latency-bound {bound} must be above {alone:.4} seconds, the time of a token of a request alone"
            )),
            None => Ok(10.0 * alone),
        }
    }
}

fn rate(point: Option<&Point>) -> f64 {
    point.and_then(|point| point.rate).unwrap_or(0.0)
}

fn table(setup: &Setup, bound: f64, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail, here and below.
    let _ = writeln!(
        out,
        "{} requests, {:.0} + {:.0} tokens on average, {} tokens of KV memory, context {}; simulated",
        setup.count, setup.lengths.prompt_mean, setup.lengths.output_mean, setup.capacity, setup.context
    );
    let _ =
        writeln!(out, "highest rate with a latency per output token of at most {:.0} ms\n", bound * 1000.0);
    let _ = writeln!(
        out,
        "{:<18}{:>10}{:>10}{:>11}{:>8}{:>7}{:>9}{:>9}{:>9}{:>8}",
        "", "req/s", "req/s", "all at", "Skein", "KV", "", "internal", "external", ""
    );
    let _ = writeln!(
        out,
        "{:<18}{:>10}{:>10}{:>11}{:>8}{:>7}{:>9}{:>9}{:>9}{:>8}",
        "rule", "mean", "p99", "once, r/s", "is ×", "live", "reserved", "waste", "waste", "idle"
    );
    let ours = rows.iter().find(|row| row.rule == Rule::Skein).map_or(0.0, |row| rate(row.mean.as_ref()));
    for row in rows {
        let shown = row.mean.as_ref().unwrap_or(&row.at_once);
        let [live, reserved, internal, external] = shown.run.kv.shares().map(|share| share * 100.0);
        let _ = writeln!(
            out,
            "{:<18}{:>10.3}{:>10.3}{:>11.3}{:>8.2}{live:>6.1}%{reserved:>8.1}%{internal:>8.1}%{external:>8.1}%{:>7.1}%",
            row.rule.to_string(),
            rate(row.mean.as_ref()),
            rate(row.p99.as_ref()),
            row.at_once.run.requests_per_second(),
            ours / rate(row.mean.as_ref()).max(f64::MIN_POSITIVE),
            shown.run.idle_share() * 100.0,
        );
    }
    out
}

fn to_json(setup: &Setup, bound: f64, rows: &[Row]) -> Value {
    let one = |row: &Row| {
        let shown = row.mean.as_ref().unwrap_or(&row.at_once);
        let [live, reserved, internal, external] = shown.run.kv.shares();
        json!({
            "rule": row.rule.to_string(),
            "request_rate_mean_bound": rate(row.mean.as_ref()),
            "request_rate_p99_bound": rate(row.p99.as_ref()),
            "all_at_once_requests_per_second": row.at_once.run.requests_per_second(),
            "kv_live": live, "kv_reserved": reserved,
            "kv_internal_waste": internal, "kv_external_waste": external,
            "idle": shown.run.idle_share(),
        })
    };
    json!({
        "num_prompts": setup.count, "seed": setup.seed, "kv_tokens": setup.capacity,
        "max_model_len": setup.context, "latency_bound_s": bound,
        "step_time_s": [setup.step_time.overhead, setup.step_time.weights, setup.step_time.row,
                        setup.step_time.context_token],
        "results": rows.iter().map(one).collect::<Vec<_>>(),
    })
}

/// Simulates every rule at rates up to slightly more than it can sustain.
fn curves(sweep: &Sweep, lowest: f64, rows: &[Row]) -> Vec<(Rule, Vec<Point>)> {
    let bar = progress_bar((rows.len() * CURVE_POINTS) as u64, "  {bar:32} {pos}/{len} points, {elapsed}");
    let curve = |row: &Row| {
        let highest = rate(row.mean.as_ref()).max(lowest) * 1.15;
        let at = |point: usize| highest * (point + 1) as f64 / CURVE_POINTS as f64;
        let points = (0..CURVE_POINTS).map(|point| {
            bar.inc(1);
            sweep.at(row.rule, Some(at(point)))
        });
        (row.rule, points.collect())
    };
    let curves = rows.iter().map(curve).collect();
    bar.finish_and_clear();
    curves
}

fn csv(curves: &[(Rule, Vec<Point>)]) -> String {
    let mut out = "rule,request_rate,requests_per_second,mean_s_per_token,p50_s_per_token,p99_s_per_token,\
                   kv_live,kv_reserved,kv_internal_waste,kv_external_waste,idle\n"
        .to_owned();
    for (rule, point) in
        curves.iter().flat_map(|(rule, points)| points.iter().map(move |point| (rule, point)))
    {
        let run = &point.run;
        let [live, reserved, internal, external] = run.kv.shares();
        let _ = writeln!(
            out,
            "{rule},{:.5},{:.5},{:.6},{:.6},{:.6},{live:.4},{reserved:.4},{internal:.4},{external:.4},{:.4}",
            point.rate.unwrap_or(0.0),
            run.requests_per_second(),
            run.mean(),
            run.percentile(50.0),
            run.percentile(99.0),
            run.idle_share()
        );
    }
    out
}

/// Points up to `most`, where the curve is cut: beyond it, latency only shows how long the queue kept
/// growing.
fn until(most: f64, points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        if y > most {
            if let Some(&(before_x, before_y)) = kept.last() {
                kept.push((before_x + (x - before_x) * (most - before_y) / (y - before_y), most));
            }
            break;
        }
        kept.push((x, y));
    }
    kept
}

fn plots(bound: f64, curves: &[(Rule, Vec<Point>)], rows: &[Row]) -> String {
    let lines = |statistic: Statistic| {
        let one = |(colour, (rule, points)): (usize, &(Rule, Vec<Point>))| {
            let all = points.iter().map(|point| (point.rate.unwrap_or(0.0), statistic.of(&point.run)));
            Line { name: rule.to_string(), points: until(3.0 * bound, all), colour, dash: Dash::Solid }
        };
        let mut lines: Vec<Line> = curves.iter().enumerate().map(one).collect();
        let highest = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
        let (points, colour) = (vec![(0.0, bound), (highest, bound)], lines.len());
        lines.push(Line { name: "bound".into(), points, colour, dash: Dash::Dashed });
        lines
    };
    let about = |title| Chart {
        title,
        x: "requests per second",
        y: "seconds per output token",
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
    };
    let bar = |row: &Row| Bar {
        name: row.rule.to_string(),
        parts: row.mean.as_ref().unwrap_or(&row.at_once).run.kv.shares().to_vec(),
    };
    let memory: Vec<Bar> = rows.iter().map(bar).collect();
    plot::document(&[
        plot::chart(&about("Mean latency per output token"), &lines(Statistic::Mean)),
        plot::chart(&about("p99 latency per output token"), &lines(Statistic::P99)),
        plot::bars(
            "KV memory that is held or cannot be used",
            &["live", "reserved", "internal waste", "external waste"],
            &memory,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_it_meets_the_limit() {
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 12.0), (4.0, 5.0)];
        assert_eq!(until(8.0, points.into_iter()), [(1.0, 2.0), (2.0, 4.0), (2.5, 8.0)]);
        assert_eq!(until(20.0, points.into_iter()), points);
        assert_eq!(until(1.0, points.into_iter()), []);
    }
}
