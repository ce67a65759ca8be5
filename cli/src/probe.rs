//! Tries a model's chat template in a child process with little memory before this process compiles it: a
//! template is a program, and not everything it can do is limited within a process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use skein_router::text::sources::TextSources;
use tokio::process::Command;

use crate::exit::{Failure, MODEL};

/// The hidden command that the child runs.
pub const PROBE: &str = "probe-template";
/// Flag: directory of the tokenizer's files, if not the model's.
const TOKENIZER: &str = "tokenizer";
/// Flag: a template that replaces the model's.
const TEMPLATE: &str = "chat-template";
/// Longest trial; a normal template takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Address space of the child in KiB, of which its threads' stacks reserve some hundred MiB.
const ADDRESS_SPACE: u64 = 1024 * 1024;
/// Exit codes of a shell that cannot start the command.
const NOT_STARTED: [i32; 2] = [126, 127];

/// The child's command line.
pub fn command() -> clap::Command {
    let model = Arg::new("MODEL").required(true).value_parser(value_parser!(PathBuf));
    let tokenizer = Arg::new(TOKENIZER).long(TOKENIZER).value_parser(value_parser!(PathBuf));
    let template = Arg::new(TEMPLATE).long(TEMPLATE).allow_hyphen_values(true);
    clap::Command::new(PROBE).hide(true).arg(model).arg(tokenizer).arg(template)
}

/// The child's work. Only whether it exits normally matters.
///
/// # Errors
/// None; all commands return a `Result`.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let sources = TextSources {
        tokenizer: matches.get_one(TOKENIZER).cloned(),
        chat_template: matches.get_one(TEMPLATE).cloned(),
        ..TextSources::default()
    };
    let model = matches.get_one::<PathBuf>("MODEL");
    model.into_iter().for_each(|model| skein_router::text::probe::probe(model, &sources));
    Ok(())
}

/// Tries the chat template of the model in `directory`, or the one in `sources`.
///
/// # Errors
/// If the trial crashes or does not end; exit code 3.
pub async fn try_template(directory: &Path, sources: &TextSources) -> Result<(), Failure> {
    match tokio::time::timeout(TIMEOUT, trial(directory, sources)).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) if status.code().is_some_and(|code| NOT_STARTED.contains(&code)) => {
            tracing::warn!(%status, "cannot start the trial of the chat template; using it untested");
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "no shell for the trial of the chat template; using it untested");
            Ok(())
        }
        Ok(Ok(status)) => Err(unusable(directory, &format!("the trial ended with {status}"))),
        Err(_) => Err(unusable(directory, &format!("the trial took over {} s", TIMEOUT.as_secs()))),
    }
}

/// Runs the trial. On systems that cannot limit address space, only the timeout limits it.
async fn trial(directory: &Path, sources: &TextSources) -> io::Result<ExitStatus> {
    let limited = format!("ulimit -c 0; ulimit -v {ADDRESS_SPACE} 2>/dev/null; exec \"$0\" {PROBE} \"$@\"");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(limited).arg(std::env::current_exe()?).arg(directory);
    if let Some(tokenizer) = &sources.tokenizer {
        shell.arg(format!("--{TOKENIZER}")).arg(tokenizer);
    }
    if let Some(template) = &sources.chat_template {
        shell.arg(format!("--{TEMPLATE}={template}"));
    }
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.kill_on_drop(true).status().await
}

fn unusable(directory: &Path, how: &str) -> Failure {
    let message = format!(
        "{}: the chat template needs too much memory, stack or time ({how}); fix it or remove it (without one \
         /v1/completions works and chats are refused)",
        directory.display()
    );
    Failure::new(MODEL, message)
}
