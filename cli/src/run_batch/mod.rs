//! `skein run-batch`: answers a file of requests in OpenAI's batch format, with its own workers or through a
//! running server. The output file is also the record of progress, so that an interrupted run can continue.

pub mod remote;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use indicatif::{ProgressBar, ProgressStyle};
use skein_hub::Need;
use skein_node::clock::{self, Timestamp};
use skein_node::config::{Settings, count, text};
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Report, Supervisor};
use skein_node::telemetry::{self, LogOptions};
use skein_router::batch::Answerer;
use skein_router::batch::WithPriority;
use skein_router::batch::local::Local;
use skein_router::batch::output::Output;
use skein_router::batch::runner::{self, Pace, Progress, RunError};
use skein_router::cluster::Cluster;
use skein_router::config::RouterConfig;
use skein_text::sources::TextSources;
use tokio::fs::File;
use tokio::io::BufReader;
use tokio::sync::mpsc;

use crate::exit::{Failure, MODEL, USAGE};
use crate::front::{self, Served};
use crate::local_workers::{MAX_WORKERS, launch, threads_each, visible_gpus};
use crate::model::ModelArgument;
use crate::progress::LoadProgress;
use crate::server_access::Certificates;
use crate::settings::{self, EngineSettings, table, with_flags};
use remote::Remote;

/// Name of the command.
pub const RUN_BATCH: &str = "run-batch";
/// Requests in flight for each sequence that the workers can run at once, so that batches stay full.
const IN_FLIGHT_PER_SEQUENCE: usize = 2;
/// Requests in flight at a server whose limits are not known: half of what a worker runs at once, so that
/// other clients find seats.
const IN_FLIGHT_AT_SERVER: usize = 64;
/// Most requests in flight by default, however many workers there are.
const MOST_IN_FLIGHT: usize = 4096;
/// How long the router may take to see a worker that has reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
const ABOUT: &str = "Answer a file of requests in OpenAI's batch format";
/// Interval of the progress lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Flags of this command only, beside the table of settings.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
struct Flags {
    #[arg(short, long, value_name = "FILE", help = "Requests, one JSON object a line; - = standard input")]
    input_file: PathBuf,
    #[arg(short, long, value_name = "FILE", help = "Answers; an incomplete file is completed")]
    output_file: PathBuf,
    #[arg(
        long,
        value_name = "URL",
        help = "Send to this OpenAI-compatible server [default: start workers here]"
    )]
    server: Option<String>,
    #[arg(
        long,
        env = "OPENAI_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help = "API key of --server"
    )]
    api_key: Option<String>,
    #[command(flatten)]
    certificates: Certificates,
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        help = "Most requests in flight [default: twice what the workers run at once; with --server 64]"
    )]
    max_concurrency: Option<u32>,
    #[arg(
        long,
        default_value_t = 600,
        value_name = "SECONDS",
        help = "How long a request is retried while the server is full or unreachable"
    )]
    retry_for: u64,
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = "Priority of requests that have none; with 100, Skein runs them only on idle capacity"
    )]
    priority: Option<i32>,
}

/// The command for clap.
pub fn command() -> Command {
    let model =
        Arg::new("MODEL").help("Model directory or GGUF file [default: the model that ships with Skein]");
    let command = Command::new(RUN_BATCH).arg(model.conflicts_with_all(["model", "server"]));
    // After the flags: clap would take the doc comment of `Flags` for the command's text.
    Flags::augment_args(with_flags(command, table::RUN_BATCH)).about(ABOUT).long_about(None)
}

/// Settings for running the batch in this process.
struct Here {
    log: LogOptions,
    engine: EngineSettings,
    workers: Option<usize>,
    served: Served,
    text: TextSources,
}

/// Runs the batch to its end.
///
/// # Errors
/// Invalid settings or input, a model that cannot be served, or a server that cannot be reached.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let flags = Flags::from_arg_matches(matches).map_err(|error| error.exit())?;
    let mut settings = settings::load(table::RUN_BATCH, matches)?;
    let log = settings::log_options(&mut settings, "", Some("warn"));
    let here =
        if flags.server.is_none() { Some(Here::read(&mut settings, log.clone()).await?) } else { None };
    settings::check(&settings)?;
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;

    let total = lines_of(&flags.input_file).await?;
    let is_new = !flags.output_file.exists();
    let mut output =
        Output::open(&flags.output_file).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let outcome = answer_somewhere(here, &flags, total, &mut output).await;
    if outcome.is_err() && is_new && output.is_empty() {
        // An empty file would look like the output of an empty batch.
        let _ = std::fs::remove_file(&flags.output_file);
    }
    outcome.and_then(|(progress, seconds)| summary(progress, seconds, &flags))
}

/// Answers the batch with workers `here`, or at the server that the flags name.
async fn answer_somewhere(
    here: Option<Here>,
    flags: &Flags,
    total: Option<u64>,
    output: &mut Output,
) -> Result<(Progress, f64), Failure> {
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    match (here, &flags.server) {
        (Some(here), _) => here.answer(flags, total, output, &shutdown).await,
        (None, server) => {
            let remote = Remote::new(
                server.as_deref().unwrap_or_default(),
                &flags.certificates,
                flags.api_key.clone(),
            )?;
            answer(flags, IN_FLIGHT_AT_SERVER, total, output, &remote, &shutdown).await
        }
    }
}

impl Here {
    async fn read(settings: &mut Settings, log: LogOptions) -> Result<Self, Failure> {
        let text_sources = settings::text_sources(settings);
        let mut engine = EngineSettings::read_compute(settings);
        engine.worker.ranks = settings::ranks_here(settings);
        let workers = settings.value("workers", count(1..=MAX_WORKERS)).map(|count| count as usize);
        let mut names = settings.list("served-model-name", text);
        if let Some(adapter) = engine.worker.merged_adapter.as_ref().filter(|_| names.is_empty()) {
            names.push(adapter.name.clone());
        }
        let argument = ModelArgument::read(settings);
        settings::check(settings)?;
        let served = Served::find(&argument, names, Need::All).await?;
        Ok(Self { log, engine, workers, served, text: text_sources })
    }

    /// Starts workers and answers the batch with them.
    async fn answer(
        self,
        flags: &Flags,
        total: Option<u64>,
        output: &mut Output,
        shutdown: &Shutdown,
    ) -> Result<(Progress, f64), Failure> {
        let Self { log, engine, workers, served, text } = self;
        let gpus = visible_gpus(&engine);
        // On a CPU one worker uses all cores, and reads the weights once per step for all sequences.
        let ranks = engine.worker.ranks.on_node() as usize;
        let workers = workers.unwrap_or((gpus / ranks).max(1));
        let threads = threads_each(&engine, workers);
        let launch = crate::supervised::Launch { gpus, ..launch(&served, workers, &log)? };
        let engine = Arc::new(engine);
        let (changes, seen) = discovery::in_process();
        let start = {
            let engine = engine.clone();
            move |worker| launch.start(worker, &format!("worker-{worker}"), &engine, threads)
        };
        let (supervisor, reports) = Supervisor::start(workers, start, &changes);
        supervisor.kill_after(shutdown.forced());
        let outcome = async {
            let config = RouterConfig::new(&served.model, served.names.clone());
            let config = RouterConfig { shutdown_timeout: Duration::ZERO, text, ..config };
            let (app, cluster) = front::start_over(&supervisor, config, seen).await?;
            let reports = until_ready(reports, workers, &cluster).await?;
            // The supervisor blocks unless its reports are read for as long as workers run.
            let hopeless = tokio::spawn(first_hopeless(reports));
            let at_once = IN_FLIGHT_PER_SEQUENCE * sequences(&cluster);
            let local = Local::new(app);
            tokio::select! {
                outcome = answer(flags, at_once, total, output, &local, shutdown) => outcome,
                Ok(Some(failure)) = hopeless => Err(failure),
            }
        };
        let outcome = outcome.await;
        supervisor.stop().await;
        outcome
    }
}

/// Most sequences that the workers of `cluster` run at once, in total.
fn sequences(cluster: &Cluster) -> usize {
    let workers = cluster.snapshot().workers;
    let of_all: u64 = workers
        .iter()
        .filter_map(|worker| worker.info.as_ref())
        .map(|info| u64::from(info.max_num_seqs))
        .sum();
    usize::try_from(of_all).unwrap_or(usize::MAX).clamp(1, MOST_IN_FLIGHT)
}

/// Waits until every worker is ready.
async fn until_ready(
    mut reports: mpsc::Receiver<Report>,
    workers: usize,
    cluster: &Cluster,
) -> Result<mpsc::Receiver<Report>, Failure> {
    let mut progress = LoadProgress::new(workers);
    let mut ready = std::collections::BTreeSet::new();
    while ready.len() < workers {
        match reports.recv().await {
            Some(Report::Progress { worker, done, total }) => progress.update(worker, done, total),
            Some(Report::Ready { worker, .. }) => {
                ready.insert(worker);
            }
            Some(Report::Hopeless(failed)) => return Err(Failure::of_worker(failed)),
            None => return Err(Failure::other("the workers ended before they were ready")),
        }
    }
    progress.finish();
    cluster.wait_ready(SEEN_WITHIN).await.map_err(Failure::other)?;
    Ok(reports)
}

async fn first_hopeless(mut reports: mpsc::Receiver<Report>) -> Option<Failure> {
    while let Some(report) = reports.recv().await {
        if let Report::Hopeless(failed) = report {
            return Some(Failure::of_worker(failed));
        }
    }
    None
}

/// Checks the input and counts its lines; `None` for a pipe, which can be read only once.
async fn lines_of(path: &Path) -> Result<Option<u64>, Failure> {
    if !path.is_file() {
        return Ok(None);
    }
    let lines = runner::count(open(path).await?).await;
    lines.map(Some).map_err(|error| Failure::new(USAGE, error.to_string()))
}

async fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let file = File::open(path).await;
    let file = file.map_err(|error| Failure::new(USAGE, format!("{}: {error}", path.display())))?;
    Ok(BufReader::new(file))
}

/// Answers the batch with `answerer`; returns the progress and the seconds it took.
async fn answer(
    flags: &Flags,
    at_once: usize,
    total: Option<u64>,
    output: &mut Output,
    answerer: &dyn Answerer,
    shutdown: &Shutdown,
) -> Result<(Progress, f64), Failure> {
    let pace = Pace {
        at_once: flags.max_concurrency.map_or(at_once, |given| given as usize),
        retry_for: Duration::from_secs(flags.retry_for),
        checked: total.is_some(),
        waits_for_room: false,
    };
    let input = open(&flags.input_file).await?;
    let mut shown = Shown::new(total);
    let start = clock::now();
    let answerer = WithPriority { answerer, priority: flags.priority };
    let run = runner::run(input, output, &answerer, pace, |progress| shown.update(progress));
    let outcome = tokio::select! {
        outcome = run => outcome.map_err(failure),
        () = shutdown.requested() => {
            let message = "interrupted; answers so far are kept, and the same command continues from there";
            Err(Failure::other(message))
        }
    };
    shown.finish();
    Ok((outcome?, clock::now().since(start).as_secs_f64()))
}

fn failure(error: RunError) -> Failure {
    match error {
        RunError::Input(_) | RunError::Changed { .. } => Failure::new(USAGE, error.to_string()),
        RunError::Output(_) | RunError::Unanswered { .. } => Failure::other(error),
    }
}

/// Prints the counts. Fails if not a single line could be answered.
fn summary(progress: Progress, seconds: f64, flags: &Flags) -> Result<(), Failure> {
    let Progress { before, answered, failed, output_tokens } = progress;
    let rate = output_tokens as f64 / seconds.max(1e-9);
    let earlier = if before > 0 { format!(", {before} answered earlier") } else { String::new() };
    outln!(
        "{answered} answered, {failed} refused{earlier}; {output_tokens} output tokens in {seconds:.1} s, {rate:.0} tokens/s; {}",
        flags.output_file.display()
    );
    match (failed, answered + before) {
        (1.., 0) => Err(Failure::new(
            MODEL,
            format!("every request was refused; the reasons are in {}", flags.output_file.display()),
        )),
        _ => Ok(()),
    }
}

/// Progress display: a bar on a terminal, otherwise occasional lines.
struct Shown {
    bar: Option<ProgressBar>,
    total: Option<u64>,
    last_line: Timestamp,
}

impl Shown {
    fn new(total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "  {bar:32} {pos}/{len} {per_sec}, {eta} left; {msg}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total.unwrap_or(0)).with_style(style)
        });
        Self { bar, total, last_line: clock::now() }
    }

    fn update(&mut self, progress: Progress) {
        let Progress { failed, output_tokens, .. } = progress;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total.unwrap_or_else(|| progress.done()));
            bar.set_position(progress.done());
            bar.set_message(format!("{failed} refused"));
        } else if clock::now().since(self.last_line) >= LINE_EVERY {
            self.last_line = clock::now();
            let of = self.total.map_or(String::new(), |total| format!(" of {total}"));
            errln!("{}{of} lines done, {failed} refused, {output_tokens} output tokens", progress.done());
        }
    }

    fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
