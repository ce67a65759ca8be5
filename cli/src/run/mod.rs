//! `skein run`: answers one prompt, or chats in the terminal. The router's core runs in this process over one
//! worker, without a port or HTTP; otherwise a request takes the same path as a served one. With `--url` a
//! running server answers instead.

mod chat;
mod chat_command;
mod generate;
mod remote;
mod sampling;
mod server_events;

use std::io::{IsTerminal, Read};
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use skein_node::config::{Settings, text};
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Report, Supervisor};
use skein_node::telemetry;
use skein_proto::sampling::SamplingOptions;
use skein_router::cluster::Cluster;
use skein_router::config::RouterConfig;
use skein_router::refusal::Refusal;
use skein_router::text::sources::TextSources;
use tokio::sync::mpsc;

use generate::{Target, Unanswered};
use remote::Remote;

use crate::exit::{Failure, OTHER, USAGE};
use crate::front::{self, Served};
use crate::model;
use crate::progress::LoadProgress;
use crate::serve::{launch, threads_each};
use crate::settings::{self, EngineSettings, table};

/// The positional arguments: a model directory, a prompt, or both.
pub const WORDS: &str = "WORDS";
/// Flag: URL of a running server.
pub const URL: &str = "url";
/// Flag: API key for that server.
pub const API_KEY: &str = "api-key";
/// Longest prompt read from standard input, bytes.
const MAX_PIPED_BYTES: u64 = 8 << 20;
/// Sequences that run at once: there is one user.
const SEQUENCES: u32 = 4;
/// How long the router may take to see a worker that has reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Options for every answer.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Sampling parameters of every request.
    pub sampling: SamplingOptions,
    /// System message, if any.
    pub system: Option<String>,
    /// Whether to leave out the chat template.
    pub raw: bool,
}

/// Runs one prompt or a chat to its end.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or a refused request.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::RUN, matches)?;
    let log = settings::log_options(&mut settings, "", Some("warn"));
    let mut wishes = Wishes {
        sampling: sampling::read(&mut settings),
        system: settings.value("system", text),
        raw: settings.switch("raw"),
    };
    let text_sources = settings::text_sources(&mut settings);
    let engine = EngineSettings::read_for_one(&mut settings, SEQUENCES);
    let words: Vec<String> = matches.get_many(WORDS).into_iter().flatten().cloned().collect();
    let url = matches.get_one::<String>(URL);
    let (model, prompt) = match url {
        Some(_) => (settings::model_argument(&mut settings), (!words.is_empty()).then(|| words.join(" "))),
        None => split_words(&mut settings, words),
    };
    settings::check(&settings)?;
    let prompt = match prompt {
        None if !std::io::stdin().is_terminal() => Some(piped_prompt()?),
        prompt => prompt,
    };
    if let Some(url) = url {
        let api_key = matches.get_one::<String>(API_KEY).cloned();
        let remote = Remote::connect(url, api_key, model).await?;
        return converse(&Target::Server(remote), wishes, prompt).await;
    }
    let served = Served::find(model.as_deref(), Vec::new())?;
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;

    let engine = Arc::new(engine);
    let threads = threads_each(&engine, 1);
    let launch = launch(&served, 1, &log)?;
    let (changes, seen) = discovery::in_process();
    let command = move |worker| launch.command(worker, "worker", &engine, threads);
    let (supervisor, reports) = Supervisor::start(1, command, &changes);
    let outcome = async {
        let config = router_config(&served, text_sources);
        let (app, cluster) = front::start_over(&supervisor, config, seen).await?;
        wishes.raw |= app.text.chat_template.is_none();
        until_loaded(reports, &cluster).await?;
        converse(&Target::Here(Box::new(app)), wishes, prompt).await
    };
    let outcome = outcome.await;
    supervisor.stop().await;
    outcome
}

async fn converse(target: &Target, wishes: Wishes, prompt: Option<String>) -> Result<(), Failure> {
    match prompt {
        None => chat::talk(target, wishes).await,
        Some(prompt) => {
            let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
            let draft = generate::draft(&wishes, &[], &prompt);
            generate::answer(target, draft, &shutdown).await.map(drop).map_err(|error| unanswered(&error))
        }
    }
}

/// Why there is no answer, as a failure. Invalid values came from flags, so they are usage errors.
fn unanswered(error: &Unanswered) -> Failure {
    let is_usage = matches!(error, Unanswered::Refused(Refusal::Invalid { .. }));
    Failure::new(if is_usage { USAGE } else { OTHER }, error.to_string())
}

/// Splits the positional arguments: the first is the model if it is a directory or a GGUF file; the rest is
/// the prompt.
fn split_words(settings: &mut Settings, words: Vec<String>) -> (Option<String>, Option<String>) {
    let given = settings::model_argument(settings);
    let first_is_model = given.is_none() && words.first().is_some_and(|word| model::is_named_by(word));
    let (model, rest) =
        if first_is_model { (words.first().cloned(), &words[1..]) } else { (given, &words[..]) };
    (model, (!rest.is_empty()).then(|| rest.join(" ")))
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
