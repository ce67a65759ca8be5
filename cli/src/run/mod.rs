//! `skein run`: answers one prompt, or chats in the terminal. The router's core runs in this process over one
//! worker, without a port and without HTTP; otherwise a request takes the same path as in a server. With
//! `--url`, a running server answers instead.

mod answer;
mod chat;
mod chat_command;
mod generate;
mod options;
mod remote;
mod sampling;

use std::io::{IsTerminal, Read};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, FromArgMatches};
use skein_hub::Need;
use skein_node::config::text;
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Report, Supervisor};
use skein_node::telemetry;
use skein_router::cluster::Cluster;
use skein_router::config::RouterConfig;
use skein_router::refusal::Refusal;
use skein_text::sources::TextSources;
use tokio::sync::mpsc;

use answer::Unanswered;
use generate::Target;
use options::AnswerOptions;
use remote::Remote;

use crate::exit::{Failure, MODEL, OTHER, USAGE};
use crate::front::{self, Served};
use crate::local_workers::{launch, threads_each};
use crate::model::{self, ModelArgument};
use crate::progress::LoadProgress;
use crate::server_access::Certificates;
use crate::settings::{self, EngineSettings, table};

/// The positional arguments: a model directory, a prompt, or both.
pub const WORDS: &str = "WORDS";
/// Flag with the URL of a running server.
pub const URL: &str = "url";
/// Flag with the API key for that server.
pub const API_KEY: &str = "api-key";
/// Longest prompt read from standard input, bytes.
const MAX_PIPED_BYTES: u64 = 8 << 20;
/// Sequences that run at once: there is one user.
const SEQUENCES: u32 = 4;
/// How long the router may take to see a worker that has reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Runs one prompt or a chat to its end.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or a refused request.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::RUN, matches)?;
    let log = settings::log_options(&mut settings, "", Some("warn"));
    let mut options = AnswerOptions {
        sampling: sampling::read(&mut settings),
        system: settings.value("system", text),
        raw: settings.switch("raw"),
    };
    let text_sources = settings::text_sources(&mut settings);
    let engine = EngineSettings::read_for_one(&mut settings, SEQUENCES);
    let words: Vec<String> = matches.get_many(WORDS).into_iter().flatten().cloned().collect();
    let url = matches.get_one::<String>(URL);
    let mut argument = ModelArgument::given(&mut settings);
    let prompt = if url.is_some() { words } else { split_words(&mut argument, words)? };
    argument.check(&mut settings);
    let prompt = (!prompt.is_empty()).then(|| prompt.join(" "));
    settings::check(&settings)?;
    let prompt = match prompt {
        None if !std::io::stdin().is_terminal() => Some(piped_prompt()?),
        prompt => prompt,
    };
    if let Some(url) = url {
        let api_key = matches.get_one::<String>(API_KEY).cloned();
        let certificates = Certificates::from_arg_matches(matches).map_err(|error| error.exit())?;
        let remote = Remote::connect(url, &certificates, api_key, argument.given).await?;
        return converse(&Target::Server(Box::new(remote)), options, prompt).await;
    }
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let served = Served::find(&argument, Vec::new(), Need::All).await?;

    let engine = Arc::new(engine);
    let threads = threads_each(&engine, 1);
    let launch = launch(&served, 1, &log)?;
    let (changes, seen) = discovery::in_process();
    let start = move |worker| launch.start(worker, "worker", &engine, threads);
    let (supervisor, reports) = Supervisor::start(1, start, &changes);
    let outcome = async {
        let config = router_config(&served, text_sources);
        let (app, cluster) = front::start_over(&supervisor, config, seen).await?;
        options.raw |= app.text.chat_template.is_none();
        until_loaded(reports, &cluster).await?;
        converse(&Target::Here(Box::new(app)), options, prompt).await
    };
    let outcome = outcome.await;
    supervisor.stop().await;
    outcome
}

async fn converse(target: &Target, options: AnswerOptions, prompt: Option<String>) -> Result<(), Failure> {
    match prompt {
        None => chat::talk(target, options).await,
        Some(prompt) => {
            if std::io::stdout().is_terminal() {
                errln!("{} answers:", target.model());
            }
            let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
            let draft = generate::draft(&options, &[], &prompt);
            generate::answer(target, draft, &shutdown).await.map(drop).map_err(|error| unanswered(&error))
        }
    }
}

/// Converts the error to a failure. Invalid values came from flags, so they are usage errors.
fn unanswered(error: &Unanswered) -> Failure {
    let is_usage = matches!(error, Unanswered::Refused(Refusal::Invalid { .. }));
    Failure::new(if is_usage { USAGE } else { OTHER }, error.to_string())
}

/// Takes the model from the positional arguments if the first can be one; returns the rest.
///
/// # Errors
/// If the first word was probably meant as a model that is not there. As a prompt, it would be answered by
/// another model without a word about that.
fn split_words(argument: &mut ModelArgument, mut words: Vec<String>) -> Result<Vec<String>, Failure> {
    let Some(first) = words.first().filter(|_| argument.given.is_none()) else { return Ok(words) };
    if model::is_model(first) {
        argument.given = Some(words.remove(0));
        return Ok(words);
    }
    // A sentence in quotes behind a word: the word is no part of it.
    let is_before_sentence = || {
        let one = !first.contains(char::is_whitespace);
        one && words.get(1).is_some_and(|second| second.contains(char::is_whitespace))
    };
    if model::resembles_model(first) || is_before_sentence() {
        return Err(Failure::new(
            MODEL,
            format!(
                "`{first}` is neither a model directory nor a GGUF file, and names of the hub are written \
                 organisation/model, for example Qwen/Qwen3-0.6B. If it is a prompt, write it to standard input: \
                 echo '{first}' | skein run"
            ),
        ));
    }
    Ok(words)
}

fn piped_prompt() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_PIPED_BYTES).read_to_end(&mut bytes).map_err(Failure::other)?;
    let prompt =
        String::from_utf8(bytes).map_err(|_| Failure::new(USAGE, "standard input is not UTF-8 text"))?;
    match prompt.trim_end_matches('\n') {
        "" => Err(Failure::new(USAGE, "no prompt: standard input is empty; skein run \"your prompt\"")),
        prompt => Ok(prompt.to_owned()),
    }
}

fn router_config(served: &Served, text: TextSources) -> RouterConfig {
    let config = RouterConfig::new(&served.model, served.names.clone());
    RouterConfig { shutdown_timeout: Duration::ZERO, text, ..config }
}

/// Shows the worker's loading progress until it serves.
async fn until_loaded(mut reports: mpsc::Receiver<Report>, cluster: &Cluster) -> Result<(), Failure> {
    let mut progress = LoadProgress::new(1);
    while let Some(report) = reports.recv().await {
        match report {
            Report::Progress { worker, done, total } => progress.update(worker, done, total),
            Report::Ready { .. } => break,
            Report::Hopeless(failed) => return Err(Failure::of_worker(failed)),
        }
    }
    progress.finish();
    cluster.wait_ready(SEEN_WITHIN).await.map_err(Failure::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_was_meant_as_a_model_is_no_prompt() {
        let split = |line: &[&str]| {
            let mut argument = ModelArgument::default();
            let words = line.iter().map(|word| (*word).to_owned()).collect();
            split_words(&mut argument, words).map(|prompt| (argument.given, prompt.join("|")))
        };
        for line in [
            &["llama3"][..],
            &["qwen3:0.6b"],
            &["skein-7n"],
            &["models/skein-7n/", "hi"],
            &["weights.gguf", "hi"],
            &["phi_4", "hi"],
            &["mistral", "Why is the sky blue?"],
        ] {
            let message = split(line).expect_err(line[0]).message;
            assert!(message.starts_with(&format!("`{}` is neither a model directory", line[0])), "{message}");
        }
        for line in [
            &["Hello"][..],
            &["Hello", "there"],
            &["What is 2+2?"],
            &["2+2"],
            &["x=1"],
            &["Well-", "x"],
            &["note:"],
        ] {
            let (given, prompt) = split(line).expect(line[0]);
            assert_eq!((given, prompt), (None, line.join("|")));
        }
        let (given, prompt) = split(&["Qwen/Qwen3-0.6B", "Why is it?"]).expect("a name of the hub");
        assert_eq!((given.as_deref(), prompt.as_str()), (Some("Qwen/Qwen3-0.6B"), "Why is it?"));
    }
}
