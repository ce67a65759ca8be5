//! Shared by `serve`, `router`, `gateway` and `run`: the router's configuration, listener, text processing
//! and cluster.

#[cfg(feature = "worker")]
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use skein_choice::fleet::NewRequests;
use skein_hub::Need;
use skein_node::clock;
use skein_node::config::{Settings, text};
use skein_node::discovery::{self, Change};
use skein_node::supervisor::{Secrets, Supervisor};
use skein_node::trace::{self, PROCESS};
use skein_router::app::App;
use skein_router::batch::jobs::{self, Store};
use skein_router::cluster::{Cluster, Tuning};
use skein_router::config::RouterConfig;
use skein_router::links::transport::{Connector, Grpc, Transport};
use skein_router::stored::StoredResponses;
use skein_router::tenants::usage_log::UsageLog;
use skein_text::TextError;
use skein_text::files::TextFiles;
use skein_text::model_text::ModelText;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tracing::{Instrument, info_span};

use crate::exit::{ADDRESS, Failure, MODEL, USAGE};
use crate::model::{self, ModelArgument};
use crate::probe::{render_processes, try_text};
use crate::settings::{FrontSettings, ResponseStore};

/// The served model: its directory, and its names for clients.
#[derive(Debug, Clone)]
pub struct Served {
    /// Directory of the model.
    pub model: PathBuf,
    /// Names for clients, at least one.
    pub names: Vec<String>,
}

impl Served {
    /// Finds the model. `need` says which of its files this process reads.
    ///
    /// # Errors
    /// If there is no such model.
    pub async fn find(argument: &ModelArgument, names: Vec<String>, need: Need) -> Result<Self, Failure> {
        let model = model::find(argument, need).await?;
        let names = if names.is_empty() { vec![model::default_name(&model)] } else { names };
        Ok(Self { model, names })
    }

    /// The name that answers carry and workers must serve.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}

/// The model settings, before the model is looked up.
#[derive(Debug)]
pub struct Named {
    /// The model, as it was given.
    pub argument: ModelArgument,
    names: Vec<String>,
}

impl Named {
    /// Reads `--model`, `--revision` and `--served-model-name`; problems are noted in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        Self { argument: ModelArgument::read(settings), names: settings.list("served-model-name", text) }
    }

    /// Uses the adapter's name if no name is given.
    #[cfg(feature = "worker")]
    pub fn or_adapter(self, adapter: Option<&str>) -> Self {
        let names =
            if self.names.is_empty() { adapter.map(str::to_owned).into_iter().collect() } else { self.names };
        Self { names, ..self }
    }

    /// Looks up the model. `need` says which of its files this process reads.
    ///
    /// # Errors
    /// When there is no such model.
    pub async fn find(self, need: Need) -> Result<Served, Failure> {
        Served::find(&self.argument, self.names, need).await
    }
}

/// Members listed by `--{flag}`; `None` if the list is empty or invalid. A problem is recorded in `settings`.
pub fn listed(settings: &mut Settings, flag: &str, addresses: &[String]) -> Option<mpsc::Receiver<Change>> {
    if addresses.is_empty() {
        return None;
    }
    let listed = discovery::static_list(addresses);
    listed.map_err(|error| settings.problem(format!("--{flag}: {error}"))).ok()
}

/// Records two spans: `starting`, and then the wait for the first member that accepts requests.
///
/// # Errors
/// Those of `starting`.
pub async fn trace_start(
    model: &str,
    starting: impl Future<Output = Result<(App, Cluster), Failure>>,
) -> Result<(App, Cluster), Failure> {
    let start = info_span!(target: PROCESS, parent: None, "start", skein.model = model);
    let started = starting.instrument(start.clone()).await;
    let (app, cluster) = started.inspect_err(|failure| trace::fail(&start, failure))?;
    let (waiting, wait) = (cluster.clone(), info_span!(target: PROCESS, parent: &start, "wait for worker"));
    let until_ready = async move {
        // The only possible error is a timeout.
        let _ = waiting.wait_ready(Duration::MAX).await;
    };
    // A span ends when it is last left, so the future is instrumented with both spans.
    tokio::spawn(until_ready.instrument(wait).instrument(start));
    Ok((app, cluster))
}

/// Logs the URL for clients once the first member of `cluster` accepts requests.
pub fn say_when_ready(cluster: &Cluster, model: &str, url: String) {
    let (cluster, model) = (cluster.clone(), model.to_owned());
    tokio::spawn(async move {
        if cluster.wait_ready(Duration::MAX).await.is_ok() {
            let seconds = clock::now().since_start().as_secs_f64();
            tracing::info!(model, url, seconds, "ready");
        }
    });
}

/// The router's configuration. Opens the usage log.
///
/// # Errors
/// If that cannot be opened.
pub fn router_config(
    front: FrontSettings,
    served: &Served,
    listen: SocketAddr,
) -> Result<RouterConfig, Failure> {
    Ok(RouterConfig {
        listen,
        model: served.model.clone(),
        served_model_names: served.names.clone(),
        usage_log: usage_log(&front)?,
        responses: stored_responses(&front)?,
        ..front.router
    })
}

/// Opens the usage log, if there is to be one.
///
/// # Errors
/// If it cannot be opened.
pub fn usage_log(front: &FrontSettings) -> Result<Option<UsageLog>, Failure> {
    let open = |path: &Path| {
        let failed = |error| Failure::new(USAGE, format!("--usage-log: {}: {error}", path.display()));
        UsageLog::open(path).map_err(failed)
    };
    front.usage_log.as_deref().map(open).transpose()
}

/// Opens the stored responses, if there are to be any.
///
/// # Errors
/// If they cannot be used.
pub fn stored_responses(front: &FrontSettings) -> Result<Option<StoredResponses>, Failure> {
    let FrontSettings { response_store, response_limits: limits, .. } = front;
    let opened = match response_store {
        ResponseStore::None => return Ok(None),
        ResponseStore::Memory => StoredResponses::in_memory(*limits),
        ResponseStore::Directory(path) => StoredResponses::open(path, *limits),
    };
    opened.map(Some).map_err(|error| Failure::new(USAGE, format!("--response-store: {error}")))
}

/// Starts the core of a router over the workers of `supervisor`, which replaces workers that the router gives
/// up.
///
/// # Errors
/// As [`start_with`].
pub async fn start_over(
    supervisor: &Supervisor,
    config: RouterConfig,
    changes: mpsc::Receiver<Change>,
) -> Result<(App, Cluster), Failure> {
    let connector = SupervisedWorkers { secrets: supervisor.secrets() };
    let (app, cluster) = start_with(config, changes, Arc::new(connector)).await?;
    cluster.report_lost(supervisor.on_lost());
    // Their files may change under them; only a swap moves requests to another version.
    cluster.set_new_requests(NewRequests::First);
    Ok((app, cluster))
}

/// Starts a router's core over `changes`, whose members `connector` reaches. Also returns the cluster, for
/// its status.
///
/// # Errors
/// If the model's tokenizer or chat template cannot be used.
pub async fn start_with(
    config: RouterConfig,
    changes: mpsc::Receiver<Change>,
    connector: Arc<dyn Connector>,
) -> Result<(App, Cluster), Failure> {
    skein_sys::memory::unmap_large_allocations();
    let text = load_text(&config).instrument(info_span!(target: PROCESS, "load tokenizer")).await?;
    let text = text.rendered_by(render_processes(&config.model, &config.text));
    let text = ModelText { facts: model::facts(&config.model), ..text };
    let name = text.name();
    let batches =
        config.batch_dir.as_deref().map(|directory| Store::open(directory, config.batch_limits)).transpose();
    let batches = batches.map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let cluster = Cluster::start_with(&config, changes, &name, Tuning::default(), connector);
    cluster.expect_tokenizer(text.workers_tokenizer, text.grammars.fingerprint());
    let mut app = App::new(Arc::new(text), Arc::new(cluster.clone()), config);
    if let Some(store) = batches.map(Arc::new) {
        app.store_batches(store.clone());
        tokio::spawn(jobs::work(app.clone(), store));
    }
    tokio::spawn(skein_router::api::finish_responses(app.clone()));
    Ok((app, cluster))
}

/// Loads tokenizer and chat template, after their trials.
///
/// # Errors
/// If one of them cannot be used.
pub async fn load_text(config: &RouterConfig) -> Result<ModelText, Failure> {
    let RouterConfig { model, served_model_names: names, text: sources, .. } = config.clone();
    let unusable = |error: TextError| bad_model(&config.model, &error);
    let vocab_size = model::vocab_size(&model);
    let files = blocking({
        let (model, sources) = (model.clone(), sources.clone());
        move || TextFiles::read(&model, &sources)
    });
    let files = files.await?.map_err(unusable)?;
    let needs_trial = files.needs_trial();
    let trials = try_text(&config.model, &config.text, needs_trial);
    let files = if needs_trial {
        trials.await?;
        files
    } else {
        let (files, ()) = tokio::try_join!(blocking(|| files.build_tokenizer()), trials)?;
        files.map_err(unusable)?
    };
    let text = blocking(move || {
        let text = ModelText::of(files, &model, &names, &sources)?;
        vocab_size.map_or(Ok(()), |vocab_size| text.check_vocabulary(vocab_size)).map(|()| text)
    });
    text.await?.map_err(unusable)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    task::spawn_blocking(work).await.map_err(Failure::other)
}

/// Connects to the workers that this process has started, each with its secret.
#[derive(Debug)]
struct SupervisedWorkers {
    secrets: Secrets,
}

impl Connector for SupervisedWorkers {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        Box::pin(async move {
            let gone = || "the worker there has ended".to_owned();
            let secret = self.secrets.of(address).ok_or_else(gone)?;
            let way = Grpc::default().with_key(secret.expose()).ok_or("its secret is not printable ASCII")?;
            way.connect(address).await
        })
    }
}

/// Adds the model's directory to an error that names no path.
fn bad_model(model: &Path, error: &TextError) -> Failure {
    let message = match error {
        // These name the file.
        TextError::Unreadable { .. } | TextError::NoTokenizer { .. } | TextError::Gguf(_) => {
            error.to_string()
        }
        _ => format!("{}: {error}", model.display()),
    };
    Failure::new(MODEL, message)
}

/// Most connections that the system queues before they are accepted; `net.core.somaxconn` may lower it.
const LISTEN_BACKLOG: u32 = 4096;

/// Like tokio's `bind`, with a longer backlog so that bursts of clients are not refused.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Binds `host:port`.
///
/// # Errors
/// If the name does not resolve or the address cannot be used; exit code 5.
pub async fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |message: String| Failure::new(ADDRESS, message);
    let bare = host.trim_matches(['[', ']']);
    let mut found = tokio::net::lookup_host((bare, port))
        .await
        .map_err(|error| failed(format!("--host {host} does not resolve: {error}")))?;
    let address = found.next().ok_or_else(|| failed(format!("--host {host} has no address")))?;
    let listener = listen(address).map_err(|error| {
        failed(match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {port} on {host} is in use, perhaps by another skein; choose another with --port, or --port 0 \
                 for any free one"
            ),
            std::io::ErrorKind::PermissionDenied => {
                format!("not allowed to listen on port {port}: ports below 1024 need privileges; choose another with --port")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("{host} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all addresses")
            }
            _ => format!("cannot listen on {address}: {error}"),
        })
    })?;
    let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
    Ok((listener, address))
}

/// Serves the port of `--metrics-port`, if there is one, until the result is dropped.
///
/// # Errors
/// If the address cannot be used; exit code 5.
pub async fn metrics_port(app: &App) -> Result<JoinSet<()>, Failure> {
    let opened = skein_router::metrics_port::of_router(app).await;
    opened.map_err(|error| Failure::new(ADDRESS, error.to_string()))
}

/// Explains Ctrl-C to the user; the router logs a line of its own.
#[cfg(feature = "worker")]
pub fn announce_shutdown() {
    if std::io::stderr().is_terminal() {
        errln!("\nshutting down: running requests finish, new ones are refused; Ctrl-C again exits at once");
    }
}

/// Warns if the API is open to the network without a key.
pub fn warn_if_exposed(front: &FrontSettings) {
    if !front.is_loopback() && !front.router.has_keys() {
        tracing::warn!(
            host = front.host,
            "the API is open to everyone who can reach this machine; set --api-key or --api-keys-file"
        );
    }
}
