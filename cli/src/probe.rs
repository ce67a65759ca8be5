//! Tests a model's chat template and tokenizer before this process uses them, each in a child process with
//! limited memory: both are programs, and a process cannot bound all that they do. For the same reason chats
//! are rendered in child processes.

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Output, Stdio};
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use skein_sys::memory_limit::of_this_process;
use skein_sys::process::{address_space_limit, limit_address_space};
use skein_text::probe::{probe, probe_tokenizer};
use skein_text::render_process::{RenderProcesses, serve};
use skein_text::sources::TextSources;
use tokio::process::Command;

use crate::exit::{Failure, MODEL};
use crate::own_path::own_path;

/// The hidden command that the child runs.
pub const PROBE: &str = "probe-text";
/// Hidden command of a child that renders chats.
pub const RENDER: &str = "render-chats";
/// Address space that such a child reserves without using it: stack, binary, and the allocator's arenas.
const RENDER_RESERVES: u64 = 512 * MIB;
/// Bounds of such a child's memory. Within them, the limit is an eighth of this process's memory limit: a
/// child must not get the router killed for memory. A conversation of 8 MB takes some 60 MiB.
const RENDER_MEMORY: RangeInclusive<u64> = 128 * MIB..=512 * MIB;
const MIB: u64 = 1024 * KIB;
const KIB: u64 = 1024;
/// Flag: directory of the tokenizer's files, if not the model's.
const TOKENIZER: &str = "tokenizer";
/// Flag: a template that replaces the model's.
const TEMPLATE: &str = "chat-template";
/// The child's output once it runs the trial. What ends it before is not the tested file.
const BEGUN: &str = "begun";
/// Number of the signal by which the system ends a process for memory.
const SIGKILL: i32 = 9;
/// Exit codes of a shell that cannot start the command.
const NOT_STARTED: [i32; 2] = [126, 127];

/// A test that runs in a child.
struct Trial {
    /// Name on the child's command line.
    name: &'static str,
    /// What messages call the tested file.
    what: &'static str,
    fix: &'static str,
    /// Time limit of the child.
    timeout: Duration,
    /// Limit of the child's address space, in KiB. Its threads' stacks reserve some hundred MiB of it.
    address_space: u64,
}

impl Trial {
    /// Whether the failure of a trial is this machine's: it never began, the system killed it, or a limit
    /// below the trial's own ended it. A trial that exceeds its own limit aborts.
    fn lacked_memory(&self, Output { status, stdout, .. }: &Output) -> bool {
        !stdout.starts_with(BEGUN.as_bytes()) || status.signal() == Some(SIGKILL) || self.limited().is_some()
    }

    /// The inherited limit of address space, bytes, if it is below the trial's.
    fn limited(&self) -> Option<u64> {
        address_space_limit().filter(|limit| *limit < self.address_space * KIB)
    }

    fn no_memory(&self, Output { status, .. }: &Output, directory: &Path) -> String {
        let limited = self.limited().map_or_else(String::new, |limit| {
            format!("; `ulimit -v` allows {} MiB of address space", limit / MIB)
        });
        format!(
            "{}: the trial of the {} had too little memory ({status}{limited}); it takes up to {} MiB of address \
             space, most of it unused: raise the limit of `ulimit -v` or of the container, or free memory",
            directory.display(),
            self.what,
            self.address_space * KIB / MIB,
        )
    }
}

/// A normal template takes milliseconds.
const TEMPLATE_TRIAL: Trial = Trial {
    name: "template",
    what: "chat template",
    fix: "fix it or remove it (without one /v1/completions works and chats are refused)",
    timeout: Duration::from_secs(10),
    address_space: 1024 * 1024,
};

/// A normal tokenizer takes a tenth of a second; one of 35 MB takes some seconds and a gigabyte.
const TOKENIZER_TRIAL: Trial = Trial {
    name: "tokenizer",
    what: "tokenizer",
    fix: "use the file of the model's repository (tokenizer.json, or the one that replaces it); it was changed",
    timeout: Duration::from_secs(30),
    address_space: 4 * 1024 * 1024,
};

/// The child's command line.
pub fn command() -> clap::Command {
    let trial = Arg::new("TRIAL").required(true).value_parser([TEMPLATE_TRIAL.name, TOKENIZER_TRIAL.name]);
    clap::Command::new(PROBE).hide(true).arg(trial).args(files())
}

/// Command-line definition of a child that renders chats.
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

/// Runs a test in the child. Its exit status, [`BEGUN`] and its error output matter.
///
/// # Errors
/// The tokenizer's error.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let sources = sources_of(matches);
    let Some(model) = matches.get_one::<PathBuf>("MODEL") else { return Ok(()) };
    outln!("{BEGUN}");
    if matches.get_one::<String>("TRIAL").is_some_and(|name| name == TOKENIZER_TRIAL.name) {
        return probe_tokenizer(model, &sources).map_err(|reason| Failure::new(MODEL, reason));
    }
    probe(model, &sources);
    Ok(())
}

/// Runs a child that renders chats, until its input closes.
///
/// # Errors
/// If the template cannot be used, or the parent has exited.
pub fn render(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(model) = matches.get_one::<PathBuf>("MODEL") else { return Ok(()) };
    // Without a memory limit of this process, the upper bound applies.
    let memory = of_this_process().map_or(u64::MAX, |memory| memory.limit / 8);
    let memory = memory.clamp(*RENDER_MEMORY.start(), *RENDER_MEMORY.end());
    let _ = limit_address_space(RENDER_RESERVES + memory);
    serve(model, &sources_of(matches)).map_err(|error| Failure::new(MODEL, error.to_string()))
}

/// Processes that render chats with the template of `sources`, or else of the model in `directory`.
pub fn render_processes(directory: &Path, sources: &TextSources) -> RenderProcesses {
    RenderProcesses::new(start_renderer(directory, sources))
}

/// How to start a process that renders chats.
pub fn start_renderer(
    directory: &Path,
    sources: &TextSources,
) -> impl Fn() -> io::Result<process::Command> + Send + Sync + 'static + use<> {
    let (directory, sources) = (directory.to_owned(), sources.clone());
    move || {
        let mut child = process::Command::new(own_path());
        // A backtrace of a child that runs out of memory would take longer than the rendering.
        child.arg(RENDER).env("RUST_BACKTRACE", "0");
        add_files(&mut child, &directory, &sources);
        Ok(child)
    }
}

/// Tests the chat template of `sources`, or else of the model in `directory`, and if `with_tokenizer` its
/// tokenizer.
///
/// # Errors
/// If a trial fails, crashes or does not end; exit code 3.
pub async fn try_text(directory: &Path, sources: &TextSources, with_tokenizer: bool) -> Result<(), Failure> {
    let tokenizer =
        async { if with_tokenizer { attempt(&TOKENIZER_TRIAL, directory, sources).await } else { Ok(()) } };
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
            let stderr = String::from_utf8_lossy(&stderr);
            let reason = stderr.lines().last().unwrap_or("the trial failed");
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            let message = format!("{}: the {what} failed its trial: {reason}; {fix}", directory.display());
            Err(Failure::new(MODEL, message))
        }
        Ok(Ok(output)) if trial.lacked_memory(&output) => {
            Err(Failure::other(trial.no_memory(&output, directory)))
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
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.kill_on_drop(true).output().await
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
