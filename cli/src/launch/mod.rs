//! `skein launch`: starts a coding agent with this server as its model. The agent's own files stay as they
//! are: all that it must know is in its arguments and its environment.

mod agents;
mod served;

use std::os::unix::process::CommandExt;
use std::process::Command as Process;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};

use self::agents::{AGENTS, Agent, Start};
use self::served::Served;
use crate::cluster_view::server::{DEFAULT_URL, Server};
use crate::exit::{Failure, USAGE};
use crate::server_access::Certificates;

/// Name of the command.
pub const LAUNCH: &str = "launch";

const AGENT: &str = "AGENT";
const MODEL: &str = "model";
const SHOW: &str = "show";
const WORDS: &str = "ARGUMENTS";

/// The command's definition for clap.
pub fn command() -> Command {
    let agent = Arg::new(AGENT).required(true).value_parser(AGENTS.map(|agent| agent.name));
    let agent = agent.help("Agent to start; it must be installed");
    let url = Arg::new("url").long("url").value_name("URL").default_value(DEFAULT_URL);
    let url = url.help("Router, gateway or skein serve");
    let key =
        Arg::new("api-key").long("api-key").value_name("KEY").env("SKEIN_API_KEY").hide_env_values(true);
    let key = key.help("API key of the server");
    let model = Arg::new(MODEL).long(MODEL).value_name("NAME");
    let model = model.help("Model, if the server has several [default: the first that it lists]");
    let show = Arg::new(SHOW).long(SHOW).action(ArgAction::SetTrue);
    let show = show.help("Print the command with its variables instead, without the key");
    let words = Arg::new(WORDS).num_args(0..).last(true);
    let words = words.help("Arguments for the agent, after --");
    let command = Command::new(LAUNCH).args([agent, url, key, model, show, words]);
    Certificates::augment_args(command)
        .about("Start a coding agent on a running server: codex, claude, opencode, qwen")
        .long_about(None)
        .after_help("For example: skein launch claude -- -p \"Say hello\"")
}

/// Runs `skein launch`: returns only if the agent cannot be started.
///
/// # Errors
/// If the server cannot be asked, its model's context is too short for the agent, or the agent is not there.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let agent = matches.get_one::<String>(AGENT).and_then(|name| agents::named(name));
    let Some(agent) = agent else { return Err(Failure::new(USAGE, "no such agent")) };
    let server = Server::read(matches)?;
    let key = matches.get_one::<String>("api-key").cloned();
    let served = Served::ask(&server, matches.get_one(MODEL), key).await?;
    check_context(agent, &served)?;
    let start = (agent.start)(&served);
    let words: Vec<&String> = matches.get_many(WORDS).into_iter().flatten().collect();
    if matches.get_flag(SHOW) {
        out!("{}", shown(agent, &start, &words));
        return Ok(());
    }
    let mut process = Process::new(agent.program);
    for name in start.removed {
        process.env_remove(name);
    }
    process
        .args(&start.arguments)
        .args(words)
        .envs(start.variables.iter().map(|(name, value)| (name, value)));
    let error = process.exec();
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("`{}` is not on the PATH; install it with: {}", agent.program, agent.install)
        }
        _ => format!("`{}` does not start: {error}", agent.program),
    };
    Err(Failure::other(why))
}

/// Refuses a context in which the agent's first prompt leaves no room.
fn check_context(agent: &Agent, served: &Served) -> Result<(), Failure> {
    let Some(max_model_len) = served.max_model_len else { return Ok(()) };
    if max_model_len >= agent.least_context() {
        return Ok(());
    }
    Err(Failure::other(format!(
        "{} has a context of {max_model_len} tokens, and {} needs {}: its first prompt has about {} before any work; \
         serve a model with a longer context, or raise --max-model-len",
        served.model,
        agent.name,
        agent.least_context(),
        agent.first_prompt,
    )))
}

/// The command as a shell takes it, without the key.
fn shown(agent: &Agent, start: &Start, words: &[&String]) -> String {
    let mut lines: Vec<String> = start.removed.iter().map(|name| format!("unset {name}")).collect();
    lines.extend(start.variables.iter().map(|(name, value)| {
        let value = if start.secret.contains(name) { "..." } else { value };
        format!("export {name}={}", quoted(value))
    }));
    let words = start.arguments.iter().chain(words.iter().copied()).map(|word| quoted(word));
    let words: Vec<String> = std::iter::once(agent.program.to_owned()).chain(words).collect();
    lines.push(words.join(" "));
    lines.join("\n") + "\n"
}

fn quoted(word: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':' | b'=');
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(max_model_len: Option<u32>) -> Served {
        Served {
            base_url: "http://h:1".into(),
            api_key: Some("secret".into()),
            model: "some/model's".into(),
            max_model_len,
        }
    }

    #[test]
    fn an_agent_is_told_the_server_the_model_and_its_context() {
        for agent in &AGENTS {
            let start = (agent.start)(&served(Some(65_536)));
            let said = shown(agent, &start, &[&"Say hello".to_owned()]);
            let all = format!("{:?} {:?}", start.arguments, start.variables);
            for part in ["http://h:1", "some/model's", "secret"] {
                assert!(all.contains(part), "{}: {part} is missing in {all}", agent.name);
            }
            assert!(all.contains("65536") || agent.name == "qwen", "{}: {all}", agent.name);
            assert!(!said.contains("secret"), "{}: {said}", agent.name);
            assert!(said.ends_with(" 'Say hello'\n"), "{said}");
        }
    }

    #[test]
    fn a_context_that_is_too_short_is_refused_with_both_numbers() {
        for agent in &AGENTS {
            let refused = check_context(agent, &served(Some(1024))).expect_err(agent.name).message;
            assert!(refused.contains("context of 1024 tokens"), "{refused}");
            assert!(refused.contains(&agent.least_context().to_string()), "{refused}");
            for enough in [Some(agent.least_context()), None] {
                assert_eq!(check_context(agent, &served(enough)), Ok(()));
            }
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(["a-b.c", "", "it's", "a b"].map(quoted), ["a-b.c", "''", "'it'\\''s'", "'a b'"]);
    }
}
