//! `skein`: every process of a Skein cluster in one binary. This file only parses the command line and runs
//! the command. Without the feature `worker` the binary contains only routers, gateways and commands that
//! need no weights.

#![cfg_attr(not(feature = "worker"), allow(dead_code, unused_imports))] // the other commands use the rest
#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic when nobody reads; `out` does not

#[macro_use]
mod out;
mod arguments;
#[cfg(feature = "worker")]
mod banner;
#[cfg(feature = "worker")]
mod bench;
mod certificates;
mod certs;
#[cfg(feature = "worker")]
mod cluster_view;
#[cfg(feature = "worker")]
mod doctor;
mod exit;
mod front;
mod gateway;
#[cfg(feature = "worker")]
mod gpu_check;
mod hub;
mod keys;
#[cfg(feature = "worker")]
mod launch;
#[cfg(feature = "worker")]
mod local_workers;
mod membership;
mod model;
#[cfg(feature = "worker")]
mod models;
mod own_path;
mod probe;
mod progress;
#[cfg(feature = "worker")]
mod quantize;
mod reference;
mod router;
#[cfg(feature = "worker")]
mod run;
#[cfg(feature = "worker")]
mod run_batch;
#[cfg(feature = "worker")]
mod serve;
#[cfg(feature = "worker")]
mod serve_settings;
#[cfg(feature = "worker")]
mod server_access;
#[cfg(feature = "worker")]
mod server_events;
mod settings;
#[cfg(feature = "worker")]
mod shipped;
#[cfg(feature = "worker")]
mod supervised;
#[cfg(feature = "worker")]
mod swap;
#[cfg(feature = "worker")]
mod token_windows;
mod upstream;
#[cfg(feature = "worker")]
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, Args, Command};

use exit::{Failure, USAGE};
use settings::{table, with_flags};

/// Threads for a worker's gRPC; computation has its own threads.
const WORKER_IO_THREADS: usize = 2;

#[cfg(not(feature = "worker"))]
const ABOUT: &str = "Skein's front: routers and gateways for workers that run elsewhere.

This build has neither workers nor a model; the full build has all commands.";

#[cfg(feature = "worker")]
const ABOUT: &str = "Skein serves large language models from a cluster, and from any laptop.

Start here:
  skein serve            a whole cluster on this machine, with the model that ships with it
  skein serve NAME       the same with a model of Hugging Face's hub, for example Qwen/Qwen3-0.6B
  skein serve DIR        the same with a model directory
  skein run              talk to a model in the terminal";

const GATEWAY: &str = "Stand in front of several routers, so that streams survive a router's death.

It serves the same API as a router and treats each router as one large worker: a request goes to the least busy router, \
and if that router dies, its stream continues through another one from its last token. Routers find the stream at the \
worker that runs it. With one router a gateway gains nothing; clients that reconnect with Last-Event-ID \
need none.

  skein worker MODEL --listen 127.0.0.1:9001
  skein router MODEL --workers 127.0.0.1:9001 --port 8001
  skein router MODEL --workers 127.0.0.1:9001 --port 8002
  skein gateway MODEL --routers 127.0.0.1:8001,127.0.0.1:8002";

const EXIT_CODES: &str = "Exit codes: 0 success, 1 failure, 2 invalid flags or settings, 3 model cannot be served, \
4 device not usable, 5 address not usable, \
141 output closed by its reader.";

fn main() -> ExitCode {
    // The clock starts when it is first read; "ready after" counts from here.
    skein_node::clock::now();
    let matches = command().try_get_matches_from(command_line()).unwrap_or_else(|error| refuse(&error));
    let outcome = dispatch(&matches);
    skein_node::telemetry::flush(settings::FLUSH_TRACES);
    exit::code_of(outcome)
}

/// Ends the process with clap's message, and for a command of another server what to use here.
fn refuse(error: &clap::Error) -> ! {
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(instead) = arguments::instead_of(name)
    {
        errln!("error: Skein has no command `{name}`: {instead}\n\nFor more information, try '--help'.");
        std::process::exit(USAGE.into());
    }
    error.exit()
}

/// The command line, prepared for clap. Words that are not UTF-8 are left for clap to refuse.
fn command_line() -> Vec<OsString> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let words: Option<Vec<String>> = typed.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    words.map_or(typed, |words| {
        arguments::prepare(&command(), words, model::is_model).into_iter().map(OsString::from).collect()
    })
}

fn dispatch(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        #[cfg(feature = "worker")]
        Some(("serve", matches)) => runtime(None)?.block_on(serve::run(matches)),
        Some(("router", matches)) => runtime(None)?.block_on(router::run(matches)),
        Some(("gateway", matches)) => runtime(None)?.block_on(gateway::run(matches)),
        #[cfg(feature = "worker")]
        Some(("worker", matches)) => {
            let runtime = runtime(Some(WORKER_IO_THREADS))?;
            if matches.contains_id(supervised::SUPERVISED) {
                runtime.block_on(supervised::run())
            } else {
                runtime.block_on(worker::run(matches))
            }
        }
        #[cfg(feature = "worker")]
        Some((worker::RANK, _)) => runtime(Some(WORKER_IO_THREADS))?.block_on(worker::run_rank()),
        #[cfg(feature = "worker")]
        Some(("run", matches)) => runtime(None)?.block_on(run::run(matches)),
        #[cfg(feature = "worker")]
        Some((run_batch::RUN_BATCH, matches)) => runtime(None)?.block_on(run_batch::run(matches)),
        Some((name @ (hub::PULL | hub::LIST | hub::REMOVE), matches)) => {
            runtime(None)?.block_on(hub::run(name, matches))
        }
        #[cfg(feature = "worker")]
        Some(("bench", matches)) => runtime(None)?.block_on(bench::run(matches)),
        #[cfg(feature = "worker")]
        Some((quantize::QUANTIZE, matches)) => runtime(None)?.block_on(quantize::run(matches)),
        #[cfg(feature = "worker")]
        Some((doctor::DOCTOR, matches)) => runtime(None)?.block_on(doctor::run(matches)),
        #[cfg(feature = "worker")]
        Some((gpu_check::GPU_CHECK, matches)) => gpu_check::run(matches),
        #[cfg(feature = "worker")]
        Some((launch::LAUNCH, matches)) => runtime(None)?.block_on(launch::run(matches)),
        #[cfg(feature = "worker")]
        Some((cluster_view::STATUS, matches)) => runtime(None)?.block_on(cluster_view::status(matches)),
        #[cfg(feature = "worker")]
        Some((cluster_view::TOP, matches)) => runtime(None)?.block_on(cluster_view::top(matches)),
        Some((certs::CERTS, matches)) => certs::run(matches),
        Some((keys::KEYS, matches)) => keys::run(matches),
        Some((probe::PROBE, matches)) => probe::run(matches),
        Some((probe::RENDER, matches)) => probe::render(matches),
        Some((reference::COMPLETIONS, matches)) => reference::completions(command(), matches),
        Some((reference::MAN, matches)) => reference::man(command(), matches),
        Some((reference::FLAGS_PAGE, _)) => reference::flags_page(command()),
        Some(("help", matches)) => help(matches),
        #[cfg(feature = "worker")]
        Some(("config", matches)) => show_config(matches),
        Some(("version", matches)) => {
            print_version(matches.get_flag("json"));
            Ok(())
        }
        _ => unreachable!("clap requires one of the commands above"),
    }
}

fn command() -> Command {
    let of_command = Arg::new("COMMAND").num_args(0..).help("For example: serve, or bench latency");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    Command::new("skein")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([
            #[cfg(feature = "worker")]
            serve_command(),
            #[cfg(feature = "worker")]
            run_command(),
            serving("router", "Route requests to workers that run elsewhere", table::ROUTER),
            serving(
                "gateway",
                "Stand in front of several routers: streams survive a router's death",
                table::GATEWAY,
            )
            .long_about(GATEWAY),
            #[cfg(feature = "worker")]
            worker_command(),
            #[cfg(feature = "worker")]
            run_batch::command(),
            #[cfg(feature = "worker")]
            bench::command(),
            #[cfg(feature = "worker")]
            quantize::command(),
            #[cfg(feature = "worker")]
            doctor::command(model_arg()),
            #[cfg(feature = "worker")]
            gpu_check::command(),
            #[cfg(feature = "worker")]
            config_command(),
            #[cfg(feature = "worker")]
            launch::command(),
            certs::command(),
            keys::command(),
            probe::command(),
            probe::render_command(),
            #[cfg(feature = "worker")]
            Command::new(worker::RANK).hide(true),
        ])
        .subcommands(observing_commands())
        .subcommands(hub::commands())
        .subcommands(reference::commands())
        .subcommand(Command::new("help").about("Print the help of a command").arg(of_command))
        .subcommand(Command::new("version").about("Print the version").arg(json))
}

/// Commands that look at a running cluster.
fn observing_commands() -> Vec<Command> {
    #[cfg(feature = "worker")]
    return cluster_view::commands().into();
    #[cfg(not(feature = "worker"))]
    Vec::new()
}

fn model_arg() -> Arg {
    let help = if cfg!(feature = "worker") {
        "Model directory, GGUF file, or a name as organisation/model [default: the model that ships with Skein]"
    } else {
        "Model directory or name, for its tokenizer and chat template"
    };
    Arg::new("MODEL").help(help).conflicts_with("model")
}

#[cfg(feature = "worker")]
fn serve_command() -> Command {
    let models = model_arg().num_args(0..).help(
        "Model directory, GGUF file, or a name as organisation/model; several of them, or a directory of models, are \
         loaded as they are asked for [default: the model that ships with Skein]",
    );
    let serve = Command::new("serve").about("Serve models: router and workers on this machine").arg(models);
    with_flags(serve, table::SERVE)
}

/// A command that serves a model, with the settings that it reads.
fn serving(name: &'static str, about: &'static str, which: u8) -> Command {
    with_flags(Command::new(name).about(about).arg(model_arg()), which)
}

#[cfg(feature = "worker")]
fn run_command() -> Command {
    let words = Arg::new(run::WORDS).value_name("MODEL|PROMPT").num_args(0..);
    let words = words.help("A model, a prompt, or both; without a prompt, starts a chat");
    let url = Arg::new(run::URL).long(run::URL).value_name("URL");
    let url = url
        .help("Talk to a running server, for example https://skein.example; --model names one of its models");
    let api_key = Arg::new(run::API_KEY).long(run::API_KEY).value_name("KEY").requires(run::URL);
    let api_key = api_key.help("API key for --url");
    let run = Command::new("run").arg(words).args([url, api_key]);
    let run = server_access::Certificates::augment_args(run);
    // After the flags: clap would take their struct's doc comment for the command's text.
    with_flags(run, table::RUN).about("Talk to a model in the terminal").long_about(None)
}

#[cfg(feature = "worker")]
fn worker_command() -> Command {
    let worker = Command::new("worker").about("Run one worker, for a router").arg(model_arg());
    with_flags(worker.arg(supervised::flag()), table::WORKER)
}

#[cfg(feature = "worker")]
fn config_command() -> Command {
    let about = "The effective settings of `skein serve`, and where each came from";
    let show = Command::new("show").about(about).arg(model_arg().num_args(0..));
    let show = with_flags(show, table::SERVE);
    Command::new("config").about("Show settings").subcommand_required(true).subcommand(show)
}

/// The runtime of a command that serves or connects, which needs a descriptor for each connection.
fn runtime(threads: Option<usize>) -> Result<tokio::runtime::Runtime, Failure> {
    skein_sys::descriptors::raise_limit();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    threads.map(|threads| builder.worker_threads(threads));
    builder.enable_all().build().map_err(Failure::other)
}

/// Runs `skein help COMMAND…`, which prints the same as `skein COMMAND… --help`.
fn help(matches: &ArgMatches) -> Result<(), Failure> {
    let mut skein = command();
    skein.build();
    let mut found = &mut skein;
    for name in matches.get_many::<String>("COMMAND").into_iter().flatten() {
        let unknown = || Failure::new(USAGE, format!("there is no command `{name}`; skein help lists them"));
        found = found.find_subcommand_mut(name).ok_or_else(unknown)?;
    }
    out!("{}", found.render_long_help());
    Ok(())
}

#[cfg(feature = "worker")]
fn show_config(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(("show", matches)) = matches.subcommand() else { return Ok(()) };
    let mut settings = settings::load(table::SERVE, matches)?;
    serve_settings::ServeSettings::read(&mut settings);
    settings::check(&settings)?;
    out!("{}", settings::show(&settings));
    Ok(())
}

fn print_version(json: bool) {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        outln!(
            "{}",
            serde_json::json!({"name": "skein", "version": version, "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH})
        );
    } else {
        outln!("skein {version} ({}, {})", std::env::consts::OS, std::env::consts::ARCH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    /// clap breaks lines at this width, and keeps the breaks that a text has.
    #[test]
    fn no_help_has_a_line_that_is_broken_twice() {
        const WIDTH: usize = 100;
        let mut commands = vec![command()];
        while let Some(command) = commands.pop() {
            for text in [command.get_about(), command.get_long_about(), command.get_after_help()]
                .into_iter()
                .flatten()
            {
                let text = text.to_string();
                for (line, next) in text.lines().zip(text.lines().skip(1)) {
                    // Rows of tables begin with spaces.
                    let is_paragraph = !line.starts_with(' ') && !next.is_empty() && !next.starts_with(' ');
                    let is_broken_twice = line.chars().count() > WIDTH && is_paragraph;
                    assert!(!is_broken_twice, "{}: {line}", command.get_name());
                }
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn the_main_commands_parse() {
        let check = |line: &str, works: bool| {
            let outcome = command().try_get_matches_from(line.split(' '));
            assert_eq!(outcome.is_ok(), works, "{line}: {:?}", outcome.err().map(|error| error.to_string()));
        };
        check("skein serve", true);
        check("skein serve dir --host 0.0.0.0 --port 0 --workers 3 --no-enable-prefix-caching", true);
        check("skein serve a b --models-file models.toml --pinned-models a --models-memory 4GiB", true);
        check("skein serve dir --model dir", false);
        check("skein serve --worker 3", false);
        check("skein worker dir --listen 127.0.0.1:0 --supervised worker-0", true);
        check("skein router --workers a:1,b:2", true);
        check("skein router --worker-urls http://a:1,http://b:2 --policy round_robin --resume-by-text", true);
        check("skein gateway dir --routers a:1,b:2 --router-api-key k --port 0", true);
        check("skein gateway --workers a:1", false);
        check("skein router --discovery etcd://a:2379/blue --etcd-user me --etcd-password-file f", true);
        check(
            "skein worker dir --discovery etcds://a:2379 --advertise b:9000 --worker-id w --etcd-ca f",
            true,
        );
        check("skein run dir hello there --temperature 0 --seed -1", true);
        check(
            "skein bench serve --request-rate 5 --goodput ttft:200 tpot:50 --dataset-name multi-turn",
            true,
        );
        check("skein bench step-times dir --device cpu --quantization int8", true);
        check("skein bench make-model --shape tiny-llama --out x", false);
        check("skein quantize dir out --method gptq --group-size -1 --calibration a --calibration b", true);
        check("skein quantize dir --method rtn", false);
        check("skein quantize dir out --method best", false);
        check("skein bench perplexity dir --text f --reference dir --kv-cache-dtype int8", true);
        check("skein bench perplexity dir --text f --tokens g", false);
        check("skein pull Qwen/Qwen3-0.6B --revision v1", true);
        check("skein pull", false);
        check("skein list --json", true);
        check("skein remove Qwen/Qwen3-0.6B", true);
        check("skein run --url https://a --cacert c --cert d --key k hello", true);
        check("skein bench serve --base-url https://a --cacert c --cert d", true);
        check("skein certs ca --out a --days 5", true);
        check("skein certs node a --host b --host 10.0.0.7 --ca c --out d --days 5 --renew", true);
        check("skein certs node", false);
        check("skein certs secret --out f", true);
        check("skein certs", false);
        check("skein status --url https://a --cacert c --api-key k --json", true);
        check("skein top --url http://a", true);
        check("skein top b", false);
        check("skein launch claude --url https://a --model m --show -- -p hello", true);
        check("skein launch vim", false);
        check("skein keys new --tenant acme --models a --models b --highest-priority -5 --admin", true);
        check("skein keys new", false);
        check("skein keys new --tenant acme --max-concurrent 0", false);
        check("skein keys list keys.toml --json", true);
        check("skein gpu-check", true);
        check("skein gpu-check kernels --scale full --only gemv --seed 3 --device 1 --json", true);
        check("skein gpu-check nothing", false);
        check("skein config show --port 1", true);
        check("skein doctor", true);
        check("skein doctor dir --url http://a:1 --api-key k --discovery etcd://a:2379 --json", true);
        check("skein version --json", true);
        check("skein help", true);
        check("skein help bench latency", true);
        check("skein completions fish", true);
        check("skein completions csh", false);
        check("skein man --out dir", true);
        check("skein", false);
    }
}
