//! The stages of a worker: listen, load, serve, drain.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use skein_grammar::tokenizer_fingerprint;
use skein_model::pooling::PoolingSpec;
use skein_node::clock;
use skein_node::trace::{self, PROCESS};
use skein_proto::info::WorkerInfo;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tonic_health::ServingStatus;
use tracing::{Instrument, Span, info_span};

use super::server::Server;
use super::{ModelFacts, Ready, WorkerService};
use crate::backend::BackendError;
use crate::config::{SchedulerConfig, WorkerConfig};
use crate::draft::{Guesser, Speculate};
use crate::engine::{Engine, EngineHandle};
use crate::epoch::draw_epoch;
use crate::error::WorkerError;
use crate::load::{LoadedBackend, check_settings, load, sizing};
use crate::metrics::{Metrics, Observer};
use crate::scheduler::{Drafts, Scheduler};

/// Serves the model of `config` until `shutdown`, then drains.
///
/// `progress` gets (bytes done, total bytes) while the weights load; `on_ready` gets the address as soon as
/// requests can be served. Until then health says NOT_SERVING.
pub async fn serve(
    config: WorkerConfig,
    progress: impl FnMut(u64, u64) + Send + 'static,
    on_ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    let loading = config.clone();
    serve_backend(config, move || load(&loading, progress), on_ready, shutdown).await
}

/// [`serve`] with the backend that `load` returns; `load` runs on a thread of its own.
pub async fn serve_backend(
    config: WorkerConfig,
    load: impl FnOnce() -> Result<LoadedBackend, WorkerError> + Send + 'static,
    on_ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    check_settings(&config.scheduler)?;
    let mut shutdown = pin!(shutdown);
    let model = &*config.served_model_name;
    let span = info_span!(target: PROCESS, parent: None, "start", skein.model = model);
    let started = start(&config, load, shutdown.as_mut()).instrument(span.clone()).await;
    let started = started.inspect_err(|error| trace::fail(&span, error))?;
    drop(span);
    let Some(mut running) = started else { return Ok(()) };
    on_ready(running.server.address);
    let ended = tokio::select! {
        // The engine failed, and every stream has received its error. Give them time to be sent; a supervisor
        // then starts a new process.
        ended = &mut running.engine => Some(ended),
        () = &mut shutdown => None,
    };
    let span = info_span!(target: PROCESS, parent: None, "shutdown", skein.model = model);
    let ended = running.end(&config, ended).instrument(span.clone()).await;
    ended.inspect_err(|error| trace::fail(&span, error))
}

/// A serving worker.
struct Running {
    server: Server,
    service: WorkerService,
    handle: EngineHandle,
    engine: oneshot::Receiver<Result<(), BackendError>>,
}

/// Binds the port, loads the model and starts to serve; `None` if `shutdown` comes first.
async fn start(
    config: &WorkerConfig,
    load: impl FnOnce() -> Result<LoadedBackend, WorkerError> + Send + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<Option<Running>, WorkerError> {
    let service = WorkerService::default();
    let metrics = Arc::new(Metrics::new(&config.served_model_name));
    let server = Server::start(config, service.clone(), metrics.clone()).await?;
    let span = Span::current();
    let loading = on_thread("model loader", move || span.in_scope(load))?;
    let loaded = tokio::select! {
        loaded = loading => loaded.unwrap_or(Err(WorkerError::Panicked("model loader")))?,
        // The loader thread is abandoned; it ends with the process.
        () = shutdown => {
            server.stop().await;
            return Ok(None);
        }
    };
    let (mut ready, mut engine) = prepare(config, loaded)?;
    metrics.loaded(&ready.facts.info, ready.adapters.as_ref());
    ready.metrics = Some(metrics.clone());
    engine.observe(Observer::new(metrics));
    let handle = ready.engine.clone();
    let engine = on_thread("engine", move || engine.run())?;
    assert!(service.ready.set(ready).is_ok(), "a worker loads once");
    server.say(ServingStatus::Serving).await;
    Ok(Some(Running { server, service, handle, engine }))
}

impl Running {
    /// Drains, unless the engine has already `ended`, and stops.
    async fn end(
        self,
        config: &WorkerConfig,
        ended: Option<Result<Result<(), BackendError>, RecvError>>,
    ) -> Result<(), WorkerError> {
        self.server.say(ServingStatus::NotServing).await;
        let ended = match ended {
            Some(ended) => ended,
            None => {
                let drain = info_span!(target: PROCESS, "drain");
                let drained = self.service.drain(config.drain_grace, config.shutdown_timeout);
                drained.instrument(drain).await;
                self.handle.stop().await;
                self.engine.await
            }
        };
        self.service.end_exchanges();
        self.server.stop().await;
        Ok(ended.map_err(|_| WorkerError::Panicked("engine"))??)
    }
}

/// Builds scheduler and engine over a loaded backend.
pub(super) fn prepare(config: &WorkerConfig, loaded: LoadedBackend) -> Result<(Ready, Engine), WorkerError> {
    let mut limits = config.scheduler_on(loaded.device);
    let whole_prompts = loaded.pooling.as_ref().is_some_and(PoolingSpec::reads_whole);
    limits.enable_prefix_caching &= !whole_prompts;
    let limits = &limits;
    let kv_blocks = loaded.backend.kv_blocks();
    let max_model_len = sizing::max_model_len(limits, loaded.model_len, kv_blocks);
    if max_model_len < 2 {
        let allowed = "room for 2 tokens or more; raise the KV cache's memory".to_owned();
        return Err(WorkerError::Setting { setting: "max_model_len", got: max_model_len.into(), allowed });
    }
    let (window, state_slots) = (loaded.backend.window_blocks(), loaded.backend.state_slots());
    let mut scheduler = Scheduler::new(limits, loaded.backend.all_blocks(), max_model_len);
    scheduler.set_stages(loaded.backend.stages() as u32);
    if whole_prompts {
        scheduler.set_whole_prompts();
    }
    let guesser = Guesser::new(limits.speculate, limits.enable_prefix_caching);
    let guesser = match &loaded.draft_model {
        Some(_) => guesser.map(Guesser::with_model),
        None => guesser,
    };
    match guesser {
        // There is nothing to draft.
        Some(_) if loaded.pooling.is_some() => {}
        Some(guesser) if loaded.backend.verifies() => scheduler.set_drafts(Drafts::guessed(guesser)),
        Some(_) if limits.speculate != Speculate::Auto => tracing::warn!(
            backend = loaded.device.name(),
            "drafts on a GPU need --batch-invariant: tokens are decoded one by one, as with --speculate off"
        ),
        Some(_) | None => {}
    }
    let max_num_seqs = scheduler.max_num_seqs();
    let (mut engine, handle) = Engine::new(scheduler, loaded.backend, max_streams(limits));
    if let Some(model) = loaded.draft_model {
        engine.draft_with(model);
    }
    let info = WorkerInfo {
        epoch: draw_epoch(),
        model: config.served_model_name.clone(),
        vocab_size: loaded.vocab_size,
        max_model_len,
        block_size: limits.block_size,
        kv_blocks,
        max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        resume_exact: loaded.resume_exact,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: loaded.device.name().to_owned(),
        fingerprint: loaded.fingerprint,
        grammar_fingerprint: loaded.grammars.as_ref().map_or(0, |grammars| grammars.fingerprint()),
        tokenizer_fingerprint: fingerprint_of_tokenizer(&config.model),
        serving_since_ms: config.serving_since_ms.unwrap_or_else(now_ms),
        pooled: loaded.pooling.as_ref().map(PoolingSpec::described),
    };
    tracing::info!(
        model = info.model,
        version = %info.model_version(),
        backend = info.backend,
        max_model_len,
        kv_blocks,
        window_blocks = window.map(|window| window.blocks),
        state_slots,
        block_size = info.block_size,
        max_num_seqs,
        max_num_batched_tokens = info.max_num_batched_tokens,
        "ready"
    );
    let facts = ModelFacts { name: info.model.as_str().into(), info, eos_token_ids: loaded.eos_token_ids };
    let LoadedBackend { grammars, adapters, .. } = loaded;
    Ok((Ready { engine: handle, facts, grammars, adapters, metrics: None }, engine))
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX)
}

/// Fingerprint of the model's tokenizer.json, or of the files that it has instead; 0 if there are none. A
/// GGUF file has none: its tokenizer need not equal, byte for byte, the file of a router that reads the
/// original model.
fn fingerprint_of_tokenizer(model: &Path) -> u64 {
    let identity = skein_vocab::identity(model).ok().flatten();
    identity.map_or(0, |identity| tokenizer_fingerprint(&identity))
}

fn max_streams(config: &SchedulerConfig) -> u32 {
    config.max_num_queued_reqs + config.max_num_seqs
}

/// Runs `work` on a named thread of its own, where it may block. The receiver fails if it panicked.
pub(super) fn on_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, WorkerError> {
    let (sender, receiver) = oneshot::channel();
    let run = move || drop(sender.send(work()));
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|source| WorkerError::Thread { thread: name, source })?;
    Ok(receiver)
}
