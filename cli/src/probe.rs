//! Tries a model's chat template and its tokenizer, each in a child process with limited memory, before this
//! process uses them: both are programs, and not everything they can do is limited within a process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use skein_router::text::probe::{probe, probe_tokenizer};
use skein_router::text::sources::TextSources;
use tokio::process::Command;

use crate::exit::{Failure, MODEL};

/// The hidden command that the child runs.
pub const PROBE: &str = "probe-text";
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
    let model = Arg::new("MODEL").required(true).value_parser(value_parser!(PathBuf));
    let tokenizer = Arg::new(TOKENIZER).long(TOKENIZER).value_parser(value_parser!(PathBuf));
    let template = Arg::new(TEMPLATE).long(TEMPLATE).allow_hyphen_values(true);
    clap::Command::new(PROBE).hide(true).args([trial, model, tokenizer, template])
}

/// The child's work. Only whether it exits normally matters, and what it prints otherwise.
///
/// # Errors
/// What the tokenizer fails on.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let sources = TextSources {
        tokenizer: matches.get_one(TOKENIZER).cloned(),
        chat_template: matches.get_one(TEMPLATE).cloned(),
        ..TextSources::default()
    };
    let Some(model) = matches.get_one::<PathBuf>("MODEL") else { return Ok(()) };
    if matches.get_one::<String>("TRIAL").is_some_and(|name| name == TOKENIZER_TRIAL.name) {
        return probe_tokenizer(model, &sources).map_err(|reason| Failure::new(MODEL, reason));
    }
    probe(model, &sources);
    Ok(())
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
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(limited).arg(std::env::current_exe()?).arg(directory);
    if let Some(tokenizer) = &sources.tokenizer {
        shell.arg(format!("--{TOKENIZER}")).arg(tokenizer);
    }
    if let Some(template) = &sources.chat_template {
        shell.arg(format!("--{TEMPLATE}={template}"));
    }
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    shell.kill_on_drop(true).output().await
}
