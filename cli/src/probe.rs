//! Tries a model's chat template and its tokenizer, each in a child process with limited memory, before this
//! process uses them: both are programs, and not everything they can do is limited within a process. For the
//! same reason chats are rendered in child processes.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{self, Output, Stdio};
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use skein_router::text::probe::{probe, probe_tokenizer};
use skein_router::text::render_process::{RenderProcesses, serve};
use skein_router::text::sources::TextSources;
use skein_sys::memory_limit::of_this_process;
use skein_sys::process::limit_address_space;
use tokio::process::Command;

use crate::exit::{Failure, MODEL};

/// The hidden command that the child runs.
pub const PROBE: &str = "probe-text";
/// The hidden command of a child that renders chats.
pub const RENDER: &str = "render-chats";
/// Address space of such a child that it does not fill: its stack, this binary, what the allocator reserves.
const RENDER_RESERVES: u64 = 512 * MIB;
/// What it may fill: an eighth of what this process may have, so that the router is not ended for its child,
/// within these bounds. A conversation of 8 MB takes some 60 MiB.
const RENDER_MEMORY: RangeInclusive<u64> = 128 * MIB..=512 * MIB;
const MIB: u64 = 1024 * 1024;
/// Flag: directory of the tokenizer's files, if not the model's.
const TOKENIZER: &str = "tokenizer";
/// Flag: a template that replaces the model's.
const TEMPLATE: &str = "chat-template";
/// Exit codes of a shell that cannot start the command.
const NOT_STARTED: [i32; 2] = [126, 127];

/// What a child tries.
struct Trial {
    /// Name on the child's command line.
    name: &'static str,
    /// For messages.
    what: &'static str,
    fix: &'static str,
    /// Longest trial.
    timeout: Duration,
    /// Address space of the child in KiB, of which its threads' stacks reserve some hundred MiB.
    address_space: u64,
}

/// A normal template takes milliseconds.
const TEMPLATE_TRIAL: Trial = Trial {
    name: "template",
    what: "chat template",
    fix: "fix it or remove it (without one /v1/completions works and chats are refused)",
    timeout: Duration::from_secs(10),
    address_space: 1024 * 1024,
};

/// A normal tokenizer takes a tenth of a second, and one of 35 MB some seconds and a gigabyte.
const TOKENIZER_TRIAL: Trial = Trial {
    name: "tokenizer",
    what: "tokenizer.json",
    fix: "use the file of the model's repository; its normalizer, pre_tokenizer or model was changed",
    timeout: Duration::from_secs(30),
    address_space: 4 * 1024 * 1024,
};

/// The child's command line.
pub fn command() -> clap::Command {
    let trial = Arg::new("TRIAL").required(true).value_parser([TEMPLATE_TRIAL.name, TOKENIZER_TRIAL.name]);
    clap::Command::new(PROBE).hide(true).arg(trial).args(files())
}

/// The command line of a child that renders chats.
pub fn render_command() -> clap::Command {
    clap::Command::new(RENDER).hide(true).args(files())
}

fn files() -> [Arg; 3] {
    let model = Arg::new("MODEL").required(true).value_parser(value_parser!(PathBuf));
    let tokenizer = Arg::new(TOKENIZER).long(TOKENIZER).value_parser(value_parser!(PathBuf));
    let template = Arg::new(TEMPLATE).long(TEMPLATE).allow_hyphen_values(true);
    [model, tokenizer, template]
}

fn sources_of(matches: &ArgMatches) -> TextSources {
    TextSources {
        tokenizer: matches.get_one(TOKENIZER).cloned(),
        chat_template: matches.get_one(TEMPLATE).cloned(),
        ..TextSources::default()
    }
}

/// The child's work. Only whether it exits normally matters, and what it prints otherwise.
///
/// # Errors
/// What the tokenizer fails on.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let sources = sources_of(matches);
    let Some(model) = matches.get_one::<PathBuf>("MODEL") else { return Ok(()) };
    if matches.get_one::<String>("TRIAL").is_some_and(|name| name == TOKENIZER_TRIAL.name) {
        return probe_tokenizer(model, &sources).map_err(|reason| Failure::new(MODEL, reason));
    }
    probe(model, &sources);
    Ok(())
}

/// The work of a child that renders chats, until its input closes.
///
/// # Errors
/// If the template cannot be used, or the other side is gone.
pub fn render(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(model) = matches.get_one::<PathBuf>("MODEL") else { return Ok(()) };
    // Where the system has no such limit, only the deadline is left.
    let memory = of_this_process().map_or(u64::MAX, |memory| memory.limit / 8);
    let memory = memory.clamp(*RENDER_MEMORY.start(), *RENDER_MEMORY.end());
    let _ = limit_address_space(RENDER_RESERVES + memory);
    serve(model, &sources_of(matches)).map_err(|error| Failure::new(MODEL, error.to_string()))
}

/// Processes that render chats with the template of the model in `directory`, or that in `sources`.
pub fn render_processes(directory: &Path, sources: &TextSources) -> RenderProcesses {
    let (directory, sources) = (directory.to_owned(), sources.clone());
    RenderProcesses::new(move || {
        let mut child = process::Command::new(this_binary()?);
        // A backtrace of a child that runs out of memory would take longer than its rendering.
        child.arg(RENDER).env("RUST_BACKTRACE", "0");
        add_files(&mut child, &directory, &sources);
        Ok(child)
    })
}

/// Tries the tokenizer and the chat template of the model in `directory`, or those in `sources`.
///
/// # Errors
/// If a trial fails, crashes or does not end; exit code 3.
pub async fn try_text(directory: &Path, sources: &TextSources) -> Result<(), Failure> {
    let tokenizer = attempt(&TOKENIZER_TRIAL, directory, sources);
    let template = attempt(&TEMPLATE_TRIAL, directory, sources);
    tokio::try_join!(tokenizer, template).map(|_| ())
}

async fn attempt(trial: &Trial, directory: &Path, sources: &TextSources) -> Result<(), Failure> {
    let Trial { what, fix, timeout, .. } = trial;
    let unusable = |how: &str| {
        let message = format!(
            "{}: the {what} needs too much memory, stack or time ({how}); {fix}",
            directory.display()
        );
        Err(Failure::new(MODEL, message))
    };
    match tokio::time::timeout(*timeout, in_child(trial, directory, sources)).await {
        Ok(Ok(Output { status, .. })) if status.success() => Ok(()),
        Ok(Ok(Output { status, .. })) if status.code().is_some_and(|code| NOT_STARTED.contains(&code)) => {
            tracing::warn!(%status, "cannot start the trial of the {what}; using it untested");
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "no shell for the trial of the {what}; using it untested");
            Ok(())
        }
        Ok(Ok(Output { status, stderr, .. })) if status.code() == Some(i32::from(MODEL)) => {
            unusable(String::from_utf8_lossy(&stderr).lines().last().unwrap_or("the trial failed"))
        }
        Ok(Ok(Output { status, .. })) => unusable(&format!("the trial ended with {status}")),
        Err(_) => unusable(&format!("the trial took over {} s", timeout.as_secs())),
    }
}

/// Runs the trial. On systems that cannot limit address space, only the timeout limits it.
async fn in_child(trial: &Trial, directory: &Path, sources: &TextSources) -> io::Result<Output> {
    let Trial { name, address_space, .. } = trial;
    let limited =
        format!("ulimit -c 0; ulimit -v {address_space} 2>/dev/null; exec \"$0\" {PROBE} {name} \"$@\"");
    let mut shell = process::Command::new("sh");
    shell.arg("-c").arg(limited).arg(std::env::current_exe()?);
    add_files(&mut shell, directory, sources);
    let mut shell = Command::from(shell);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    shell.kill_on_drop(true).output().await
}

/// This program even if its file has been replaced or removed since it was started.
fn this_binary() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}

fn add_files(child: &mut process::Command, directory: &Path, sources: &TextSources) {
    child.arg(directory);
    if let Some(tokenizer) = &sources.tokenizer {
        child.arg(format!("--{TOKENIZER}")).arg(tokenizer);
    }
    if let Some(template) = &sources.chat_template {
        child.arg(format!("--{TEMPLATE}={template}"));
    }
}
