//! `skein bench`: load over HTTP, an engine in this process, start-up, and models to measure. vLLM's flags and JSON keys,
//! so that scripts carry over.

mod engine;
mod make_model;
mod serve;
mod startup;

use std::io::IsTerminal;
use std::path::Path;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Failure;
use crate::settings::{table, with_flags};

/// Benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Load on a running server, over the OpenAI API: latencies, throughput, goodput
    Serve(Box<serve::Serve>),
    /// A batch that runs alone, on an engine in this process: time of a step, share of the device's limits
    Latency(engine::Latency),
    /// As many requests as fit at once, on an engine in this process: tokens a second
    Throughput(engine::Throughput),
    /// Time from exec to ready and to the first token of a server
    Startup(startup::Startup),
    /// Write a model of a real shape with random weights, for speed work
    MakeModel(make_model::MakeModel),
}

/// The command with its subcommands; those that run an engine take a worker's flags too.
pub fn command() -> Command {
    let command = Bench::augment_subcommands(Command::new("bench").subcommand_required(true));
    let command = command.about("Measure a server or an engine, or make a model to measure");
    ["latency", "throughput"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |engine| with_flags(engine.arg(engine::model()), table::BENCH))
    })
}

/// Runs `skein bench`.
///
/// # Errors
/// Bad flags, an unreachable server, a model that cannot be served, files that cannot be read or written.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let bench = Bench::from_arg_matches(matches).map_err(|error| error.exit())?;
    let flags = matches.subcommand().map_or(matches, |(_, flags)| flags);
    match bench {
        Bench::Serve(serve) => serve::run(&serve).await,
        Bench::Latency(latency) => engine::latency(&latency, flags).await,
        Bench::Throughput(throughput) => engine::throughput(&throughput, flags).await,
        Bench::Startup(startup) => startup::run(&startup).await,
        Bench::MakeModel(flags) => make_model::run(&flags),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
