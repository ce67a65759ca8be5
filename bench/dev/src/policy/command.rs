//! Flags of `policy`, and what it does with them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use skein_choice::policy::Policy;
use skein_node::config::duration;

use super::figures::Figures;
use super::simulation::{Cluster, Placer, replay};
use super::trace;
use super::worker::Machine;
use crate::failure::Failure;
use crate::terminal::print;

/// Upper bound of the simulated time per token.
const A_SECOND: Duration = Duration::from_secs(1);
/// Upper bound of the spread of arrivals.
const A_MINUTE: Duration = Duration::from_secs(60);
/// Number of workers at which the trace runs at `--speed`; with more, the request rate grows in proportion.
const SPEED_WORKERS: f64 = 8.0;

/// Flags of `policy`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct PolicyBench {
    #[arg(
        long,
        value_name = "FILE",
        help = "Trace in Mooncake's format: a JSON object a line with timestamp, input_length, output_length, hash_ids"
    )]
    trace: PathBuf,
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "8,64,256,1000",
        help = "Numbers of workers"
    )]
    workers: Vec<u16>,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), help = "Routers that share the workers without knowing each other; each request arrives at a random one")]
    routers: u16,
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = noise, help = "By how much the rates that workers report differ from their actual one at most, as a fraction of it")]
    rate_noise: f32,
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = token_time, help = "Time until a router hears what a worker says")]
    delay: Duration,
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = names(), help = "Policies [default: all, and the oracle]")]
    policies: Vec<String>,
    #[arg(long, value_name = "N", default_value_t = 100_000, help = "Most requests of the trace")]
    requests: usize,
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64), help = "Divide the recorded lengths by this")]
    shrink: u32,
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        help = "Replay this many times as fast at 8 workers; with more workers in proportion"
    )]
    speed: f64,
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::value_parser!(u32).range(1..=1 << 24), help = "Blocks of 16 tokens in each worker's cache")]
    blocks: u32,
    #[arg(long, value_name = "TIME", default_value = "40us", value_parser = token_time, help = "Prefill of a token")]
    prefill_time: Duration,
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = token_time, help = "Time between two tokens of an answer")]
    token_time: Duration,
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(..=1 << 20), help = "Most prompt tokens in a step, in which each running answer gets a token; 0 = prompts one at a time, which cost answers nothing")]
    step_tokens: u32,
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = spread, help = "Delay each request by up to this, drawn evenly: traces round arrivals, Mooncake's to 3 s")]
    spread: Duration,
    #[arg(long, value_name = "N", default_value_t = 256, help = "Sequences that a worker runs at once")]
    max_num_seqs: u32,
}

const ORACLE: &str = "oracle";

fn token_time(given: &str) -> Result<Duration, String> {
    duration(Duration::ZERO..=A_SECOND)(given)
}

fn spread(given: &str) -> Result<Duration, String> {
    duration(Duration::ZERO..=A_MINUTE)(given)
}

fn noise(given: &str) -> Result<f32, String> {
    let noise = given.parse::<f32>().ok().filter(|noise| (0.0..=0.9).contains(noise));
    noise.ok_or_else(|| "give a number from 0 to 0.9".to_owned())
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(Policy::ALL.iter().map(|(name, _)| *name).chain([ORACLE]))
}

/// Runs `policy`.
///
/// # Errors
/// A trace that cannot be read, or a speed of zero.
pub fn run(flags: &PolicyBench) -> Result<(), Failure> {
    if !(flags.speed.is_finite() && flags.speed > 0.0) || flags.workers.contains(&0) {
        return Err(Failure::Usage("--speed and --workers must be above zero".to_owned()));
    }
    let text = std::fs::read_to_string(&flags.trace)
        .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", flags.trace.display())))?;
    let machine = Machine {
        prefill_ns: flags.prefill_time.as_nanos() as u64,
        token_ns: flags.token_time.as_nanos() as u64,
        blocks: flags.blocks as usize,
        block_size: 16,
        seats: flags.max_num_seqs,
        step_tokens: flags.step_tokens,
    };
    let mut trace = trace::parse(&text, flags.requests, flags.shrink, machine.block_size)
        .map_err(|error| Failure::Usage(format!("{}, {error}", flags.trace.display())))?;
    if trace.is_empty() {
        return Err(Failure::Usage(format!("{} has no requests", flags.trace.display())));
    }
    trace::spread(&mut trace, flags.spread);
    print(&format!(
        "{:>7}  {:<15}  {:>5}  {:>6}  {:>21}  {:>13}  {:>8}  {:>5}  {:>15}\n",
        "workers",
        "policy",
        "hit",
        "again",
        "TTFT mean/p50/p99 ms",
        "error p50/p90",
        "max/mean",
        "CoV",
        "decision us"
    ))?;
    for &workers in &flags.workers {
        let speed = flags.speed * f64::from(workers) / SPEED_WORKERS;
        for (name, placer) in placers(&flags.policies) {
            let (workers, routers) = (usize::from(workers), usize::from(flags.routers));
            let delay = flags.delay.as_nanos() as u64;
            let cluster = Cluster { workers, routers, machine, rate_noise: flags.rate_noise, delay };
            let figures = Figures::of(&replay(&trace, speed, cluster, placer), &trace, &cluster);
            print(&row(workers, name, &figures))?;
        }
    }
    Ok(())
}

fn placers(wanted: &[String]) -> Vec<(&'static str, Placer)> {
    let all = Policy::ALL.iter().map(|&(name, policy)| (name, Placer::Router(policy)));
    let all = all.chain([(ORACLE, Placer::Oracle)]);
    all.filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)).collect()
}

fn row(workers: usize, name: &str, figures: &Figures) -> String {
    let ms = |seconds: f64| format!("{:.0}", seconds * 1e3);
    let times = format!("{} / {} / {}", ms(figures.mean), ms(figures.p50), ms(figures.p99));
    let decision = match name {
        ORACLE => "-".to_owned(),
        _ => format!("{:.1} / {:.1}", figures.decision_p50 * 1e6, figures.decision_p99 * 1e6),
    };
    let (hit, again) = (figures.hit, figures.follow_up_hit);
    let error = match name {
        ORACLE => "-".to_owned(),
        _ => format!("{:.3} / {:.3}", figures.error_p50, figures.error_p90),
    };
    let (most, cov) = (figures.most_over_mean, figures.load_cov);
    format!(
        "{workers:>7}  {name:<15}  {hit:>5.3}  {again:>6.3}  {times:>21}  {error:>13}  {most:>8.2}  {cov:>5.3}  {decision:>15}\n"
    )
}
