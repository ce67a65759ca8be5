//! `skein bench`: measures a server over HTTP, an engine in this process, start-up, or routing policies, and
//! generates models for such measurements. Flags and JSON keys follow vLLM, so that scripts work for both.

mod batching;
mod engine;
mod make_adapters;
mod make_model;
mod perplexity;
mod policy;
mod saved;
mod serve;
mod startup;

use std::io::IsTerminal;
use std::path::Path;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Failure;
use crate::settings::{table, with_flags};

/// The benchmarks. The doc lines are help texts.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Put load on a running server over the OpenAI API: latency, throughput, goodput
    Serve(Box<serve::Serve>),
    /// Run one batch alone on an engine in this process: time per step, share of the device's limits
    Latency(engine::Latency),
    /// Run as many requests as fit at once on an engine in this process: tokens a second
    Throughput(engine::Throughput),
    /// Compare batching rules and KV reservations with Skein's scheduler, simulated: rates, latency, KV use
    Batching(Box<batching::Batching>),
    /// Time from exec to ready and to the first token of a server
    Startup(startup::Startup),
    /// Score a text: perplexity, and divergence from a reference, with a worker's number types on the CPU
    Perplexity(perplexity::Perplexity),
    /// Replay a trace over simulated workers by each routing policy and an oracle: hits, time to first token
    Policy(policy::PolicyBench),
    /// Write a model of a real size with random weights, for benchmarks
    MakeModel(make_model::MakeModel),
    /// Write LoRA adapters with random weights for a model, for benchmarks
    MakeAdapters(make_adapters::MakeAdapters),
}

/// The command with its subcommands; those that run an engine also take a worker's flags.
pub fn command() -> Command {
    let command = Bench::augment_subcommands(Command::new("bench").subcommand_required(true));
    let command = command.about("Measure a server or an engine, or make a model to measure");
    ["latency", "throughput", "perplexity"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |engine| with_flags(engine.arg(engine::model()), table::BENCH))
    })
}

/// Runs `skein bench`.
///
/// # Errors
/// Invalid flags, an unreachable server, a model that cannot be served, or files that cannot be read or
/// written.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let bench = Bench::from_arg_matches(matches).map_err(|error| error.exit())?;
    let flags = matches.subcommand().map_or(matches, |(_, flags)| flags);
    match bench {
        Bench::Serve(serve) => serve::run(&serve).await,
        Bench::Latency(latency) => engine::latency(&latency, flags).await,
        Bench::Throughput(throughput) => engine::throughput(&throughput, flags).await,
        Bench::Batching(batching) => batching::run(&batching).await,
        Bench::Startup(startup) => startup::run(&startup).await,
        Bench::Perplexity(of) => perplexity::run(&of, flags).await,
        Bench::Policy(flags) => policy::run(&flags),
        Bench::MakeModel(flags) => make_model::run(&flags),
        Bench::MakeAdapters(flags) => make_adapters::run(&flags),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A bar on a terminal, else nothing.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
