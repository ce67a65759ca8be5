//! Flags of `batching`, and what it does with them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use skein_bench::load::HeldBack;
use skein_worker::config::SchedulerConfig;

use super::comparison::comparison;
use super::jobs::Lengths;
use super::machine::Machine;
use super::report::{self, Row};
use super::step_time::StepTime;
use super::sweep::{Rule, Setup, Statistic, Sweep};
use crate::failure::Failure;
use crate::terminal::{print, progress_bar};

/// Flags of `batching`.
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
/// KV memory in tokens, longest sequence in tokens, and most sequences, by default: those of the
/// PagedAttention paper's OPT-13B on 40 GB.
const KV_TOKENS: u32 = 15_700;
const MAX_MODEL_LEN: u32 = 2048;
const MAX_NUM_SEQS: u32 = 256;

/// Runs `batching`.
///
/// # Errors
/// Invalid flags, or files that cannot be written.
pub fn run(flags: &Batching) -> Result<(), Failure> {
    if !flags.compare.is_empty() {
        return print(&comparison(&flags.compare)?);
    }
    let machine = if flags.measure { Some(Machine::measure(&flags.worker)?) } else { None };
    simulate(flags, machine.as_ref())
}

fn simulate(flags: &Batching, machine: Option<&Machine>) -> Result<(), Failure> {
    let setup = flags.setup(machine).map_err(Failure::Usage)?;
    let rules = flags.rules().map_err(Failure::Usage)?;
    let bound = flags.bound(&setup).map_err(Failure::Usage)?;
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
        let mut all = report::to_json(&sweep.setup, bound, &rows);
        all["measured"] = machine.map(Machine::to_json).unwrap_or_default();
        print(&format!("{all:#}\n"))?;
    } else {
        print(&machine.map(Machine::table).unwrap_or_default())?;
        print(&report::table(&sweep.setup, bound, &rows))?;
    }
    if with_curves {
        let curves = report::curves(&sweep, lowest, &rows);
        write(flags.csv.as_ref(), || report::csv(&curves))?;
        write(flags.plot.as_ref(), || report::plots(bound, &curves, &rows))?;
    }
    Ok(())
}

fn write(path: Option<&PathBuf>, content: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content())
        .map_err(|error| Failure::other(format!("cannot write {}: {error}", path.display())))?;
    eprintln!("saved {}", path.display());
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
                Some(machine) => machine.step_time,
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
