//! `skein-dev`: what only developers run, beside `skein` in the target folder. Nothing here is in the
//! product's binary.
//!
//! - `make_model`, `make_adapters`: random weights of real sizes, for benchmarks and for tests on GPUs
//! - `policy`: routing policies over a recorded trace, simulated
//! - `batching`: batching rules against Skein's scheduler, simulated
//!
//! It needs the fleet and its policies of `choice`, and the worker's scheduler and list of tensors. The
//! worker also brings its gRPC, which does not run here.

mod batching;
mod failure;
mod make_adapters;
mod make_model;
mod policy;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Make models to measure, and simulate policies and batching rules
#[derive(Debug, Parser)]
#[command(name = "skein-dev", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a model of a real size with random weights, for benchmarks
    MakeModel(make_model::MakeModel),
    /// Write LoRA adapters with random weights for a model, for benchmarks
    MakeAdapters(make_adapters::MakeAdapters),
    /// Replay a trace over simulated workers by each routing policy and an oracle: hits, time to first token
    Policy(policy::command::PolicyBench),
    /// Compare batching rules and KV reservations with Skein's scheduler, simulated: rates, latency, KV use
    Batching(Box<batching::command::Batching>),
}

fn main() -> ExitCode {
    let Err(failure) = run(&Line::parse().command) else { return ExitCode::SUCCESS };
    if !failure.is_quiet() {
        eprintln!("error: {failure}");
    }
    ExitCode::from(failure.code())
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::MakeModel(flags) => make_model::run(flags),
        Command::MakeAdapters(flags) => make_adapters::run(flags),
        Command::Policy(flags) => policy::command::run(flags),
        Command::Batching(flags) => batching::command::run(flags),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Line::command().debug_assert();
    }

    #[test]
    fn the_main_commands_parse() {
        let check = |line: &str, works: bool| {
            let outcome = Line::try_parse_from(line.split(' '));
            assert_eq!(outcome.is_ok(), works, "{line}: {:?}", outcome.err().map(|error| error.to_string()));
        };
        check("skein-dev make-model --shape llama-3.2-1b --dtype bf16 --out x", true);
        check("skein-dev make-model --shape llama-9 --out x", false);
        check("skein-dev make-adapters dir --out x --rank 8 --targets all --count 3", true);
        check("skein-dev policy --trace f --workers 8,64 --policies first_token,round_robin,oracle", true);
        check("skein-dev policy --trace f --policies best", false);
        check("skein-dev batching --plot batching.svg --csv batching.csv", true);
        check("skein-dev batching --measure -- MODEL --device cpu --quantization int8", true);
        check("skein-dev batching -- MODEL", false);
    }
}
