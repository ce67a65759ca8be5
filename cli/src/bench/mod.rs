//! `skein bench`: measures a server over HTTP, an engine in this process, or start-up. Flags and JSON keys
//! follow vLLM, so that scripts work for both.

mod engine;
mod perplexity;
mod serve;
mod settings;
mod startup;
mod steps;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};

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
    /// Time from exec to ready and to the first token of a server
    Startup(startup::Startup),
    /// Score a text: perplexity, and divergence from a reference, with a worker's number types on the CPU
    Perplexity(perplexity::Perplexity),
    /// What steps of a few sizes take, as JSON for skein-dev
    #[command(hide = true)]
    StepTimes,
}

/// The command with its subcommands; those that run an engine also take a worker's flags.
pub fn command() -> Command {
    let command = Bench::augment_subcommands(Command::new("bench").subcommand_required(true));
    let command = command.about("Measure a server or an engine");
    ["latency", "throughput", "perplexity", "step-times"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |engine| with_flags(engine.arg(settings::model()), table::BENCH))
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
        Bench::Startup(startup) => startup::run(&startup).await,
        Bench::Perplexity(of) => perplexity::run(&of, flags).await,
        Bench::StepTimes => steps::run(flags).await,
    }
}
