//! The models of a server, each loaded when it is asked for.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use serde_json::Value;
use skein_node::clock::{self, Timestamp};
use skein_text::model_text::ModelText;
use tokio::sync::{Notify, oneshot, watch};

use super::loader::{Entry, FAILED_FOR, LoadedModel, Loader, Routes};
use super::residency::{Action, Entered, KeepAlive, Residency, Stage};
use crate::app::App;
use crate::config::RouterConfig;
use crate::drain::Drain;
use crate::metrics::models::{LoadOutcome, ModelsMetrics};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// How long a client should wait before it asks again for a model that was not loaded in time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most names in a refusal.
const MOST_NAMES: usize = 20;

/// Bounds on models in memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimits {
    /// Most memory that they take together by their plans, in bytes.
    pub budget: u64,
    /// How long a request waits for one.
    pub load_timeout: Duration,
}

/// The models of a server. Cheap to clone.
#[derive(Clone)]
pub struct Repository(Arc<Shared>);

struct Shared {
    entries: Vec<Entry>,
    by_name: HashMap<Arc<str>, usize>,
    config: Arc<RouterConfig>,
    loader: Arc<dyn Loader>,
    load_timeout: Duration,
    drain: Drain,
    metrics: ModelsMetrics,
    state: Mutex<State>,
    /// When this process started, seconds since 1970.
    created: u64,
    /// What `/api/show` says of models that are not in memory.
    shown: Mutex<HashMap<usize, Value>>,
    /// Wakes the keeper.
    work: Notify,
    /// Counts changes of where models are.
    moved: watch::Sender<u64>,
}

struct State {
    residency: Residency,
    slots: Vec<Slot>,
}

/// What there is of a model besides its place.
#[derive(Default)]
struct Slot {
    loaded: Option<Arc<InMemory>>,
    end: Option<LoadedEnd>,
    waiting: Vec<oneshot::Sender<Result<Lease, Refusal>>>,
    failed: Option<Failed>,
    /// How often its workers were ended.
    ends: u64,
}

type LoadedEnd = BoxFuture<'static, ()>;

/// Why a model was not loaded, and when.
#[derive(Clone)]
struct Failed {
    reason: String,
    at: Timestamp,
}

/// A model in memory.
pub struct InMemory {
    /// Serves its requests.
    pub app: App,
    /// The same over HTTP.
    pub routes: Arc<dyn Routes>,
}

/// Keeps a model in memory while a request uses it.
pub struct Lease {
    shared: Arc<Shared>,
    model: usize,
    loaded: Arc<InMemory>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Lease {
    /// The model.
    pub fn model(&self) -> &InMemory {
        &self.loaded
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.model
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.residency.leave(self.model, clock::now());
        if state.residency.requests(self.model).0 == 0 {
            self.shared.work.notify_one();
        }
    }
}

/// A model as clients see it.
#[derive(Clone)]
pub struct ModelStatus {
    /// Its number.
    pub model: usize,
    /// Where it is.
    pub stage: Stage,
    /// Requests that use it and that wait for it.
    pub requests: usize,
    /// How long it will stay in memory without requests; `None` = until its memory is needed, or always.
    pub expires_in: Option<Duration>,
    /// Why it was not loaded when it was last asked for.
    pub failed: Option<String>,
    /// The model, if it is in memory.
    pub app: Option<App>,
}

impl Repository {
    /// Models that `loader` loads, within `limits`. Must be called within a runtime, which runs the loads.
    ///
    /// # Errors
    /// If two models have the same name.
    pub fn start(
        entries: Vec<Entry>,
        limits: MemoryLimits,
        loader: Arc<dyn Loader>,
        config: RouterConfig,
    ) -> Result<Self, String> {
        let MemoryLimits { budget, load_timeout } = limits;
        let mut by_name = HashMap::new();
        for (model, entry) in entries.iter().enumerate() {
            for name in &entry.names {
                if by_name.insert(name.clone(), model).is_some() {
                    return Err(format!("two models are called `{name}`: give one of them another name"));
                }
            }
        }
        let residency = Residency::new(budget, entries.iter().map(|entry| (entry.bytes, entry.keep_alive)));
        let slots = entries.iter().map(|_| Slot::default()).collect();
        let metrics = ModelsMetrics::new(entries.iter().map(Entry::name), budget, config.responses.clone());
        let shared = Shared {
            entries,
            by_name,
            config: Arc::new(config),
            loader,
            load_timeout,
            drain: Drain::default(),
            metrics,
            state: Mutex::new(State { residency, slots }),
            created: clock::unix_time().as_secs(),
            shown: Mutex::default(),
            work: Notify::new(),
            moved: watch::Sender::new(0),
        };
        let repository = Self(Arc::new(shared));
        tokio::spawn(repository.clone().keep());
        Ok(repository)
    }

    /// The models, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.0.entries
    }

    /// When this process started, seconds since 1970.
    pub fn created(&self) -> u64 {
        self.0.created
    }

    /// What `describe` makes of the text of a model; it is read once.
    ///
    /// # Errors
    /// If the tokenizer or template cannot be read.
    pub async fn described(
        &self,
        model: usize,
        describe: impl FnOnce(&ModelText, &Entry) -> Value,
    ) -> Result<Value, Refusal> {
        let kept = || self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get(&model) {
            return Ok(known.clone());
        }
        let text = self.0.loader.text(model).await.map_err(|reason| Refusal::NoReadyWorker {
            reason: format!("`{}` cannot be read: {reason}", self.name(model)),
            retry_after: FAILED_FOR,
        })?;
        let made = describe(&text, &self.0.entries[model]);
        kept().insert(model, made.clone());
        Ok(made)
    }

    /// Settings of the server.
    pub fn config(&self) -> &RouterConfig {
        &self.0.config
    }

    /// Whether requests are still accepted.
    pub fn drain(&self) -> &Drain {
        &self.0.drain
    }

    /// Counts of the models.
    pub fn metrics(&self) -> &ModelsMetrics {
        &self.0.metrics
    }

    /// Number of the model that `name` means to a tenant. A name may also be that of an adapter of a model
    /// in memory.
    ///
    /// # Errors
    /// [`Refusal::ModelNotFound`], also for a model that the tenant may not use.
    pub fn find(&self, name: &str, tenant: &Tenant) -> Result<usize, Refusal> {
        let found = self.0.by_name.get(name).copied().or_else(|| self.find_adapter(name));
        let not_found =
            || Refusal::ModelNotFound { asked: shortened(name), served: self.shown_names(tenant).into() };
        found.filter(|_| tenant.may_use(name)).ok_or_else(not_found)
    }

    /// The names that a tenant may use, for a message.
    fn shown_names(&self, tenant: &Tenant) -> String {
        let names = self.names(tenant);
        let shown = names.iter().take(MOST_NAMES).map(|name| format!("`{name}`"));
        let more = names.len().saturating_sub(MOST_NAMES);
        let all: Vec<String> = shown.chain((more > 0).then(|| format!("{more} more"))).collect();
        if all.is_empty() { "no model for this key".to_owned() } else { all.join(", ") }
    }

    fn find_adapter(&self, name: &str) -> Option<usize> {
        let state = self.0.state();
        let has = |slot: &Slot| {
            slot.loaded.as_ref().is_some_and(|loaded| loaded.app.adapters.known().by_name.contains_key(name))
        };
        state.slots.iter().position(has)
    }

    /// The names that a tenant may use.
    pub fn names(&self, tenant: &Tenant) -> Vec<Arc<str>> {
        let all = self.0.entries.iter().flat_map(|entry| &entry.names);
        all.filter(|name| tenant.may_use(name)).cloned().collect()
    }

    /// The model of this number, once it is in memory; it stays there while the lease lives.
    ///
    /// # Errors
    /// If it cannot be loaded, not within `wait`, or too many requests wait already.
    pub async fn lease(&self, model: usize, wait: Duration) -> Result<Lease, Refusal> {
        let (mut waiting, received) = match self.enter(model)? {
            Ok(lease) => return Ok(lease),
            Err(waiting) => waiting,
        };
        self.0.work.notify_one();
        let received = tokio::select! {
            received = received => received,
            () = tokio::time::sleep(wait) => return Err(self.late(model, wait)),
            () = self.0.drain.began() => return Err(Refusal::Draining),
        };
        waiting.is_over = true;
        // The sender is dropped only at the end of this process.
        received.map_err(|_| Refusal::Draining)?
    }

    /// A lease of a model in memory, or a place among those that wait for it.
    fn enter(&self, model: usize) -> Result<Result<Lease, WaitsForLease>, Refusal> {
        let now = clock::now();
        if self.0.drain.is_draining() {
            return Err(Refusal::Draining);
        }
        let mut state = self.0.state();
        if let Some(failed) = &state.slots[model].failed
            && now.since(failed.at) < FAILED_FOR
        {
            return Err(self.not_loaded(model, failed, now));
        }
        if !state.residency.fits_beside_kept(model) {
            return Err(self.no_room(model));
        }
        let waiting: usize = state.slots.iter().map(|slot| slot.waiting.len()).sum();
        if waiting >= self.0.config.admission.max_num_queued_reqs as usize {
            let reason = format!("{waiting} requests wait for models to be loaded");
            return Err(Refusal::Overloaded { reason, retry_after: RETRY_AFTER });
        }
        // Each request begins with the server's setting; one of Ollama's API may change it after its answer.
        state.residency.set_keep_alive(model, self.0.entries[model].keep_alive);
        let lease = match (state.residency.enter(model, now), &state.slots[model].loaded) {
            (Entered::Now, Some(loaded)) => {
                return Ok(Ok(Lease { shared: self.0.clone(), model, loaded: loaded.clone() }));
            }
            _ => {
                let (sender, receiver) = oneshot::channel();
                state.slots[model].waiting.push(sender);
                receiver
            }
        };
        let waiting = Waiting { shared: self.0.clone(), model, is_over: false };
        Ok(Err((waiting, lease)))
    }

    /// The model that a request of `tenant` names, once it is in memory. It waits at most `timeout`, or as
    /// long as a load may take.
    ///
    /// # Errors
    /// Without a name, for a key that is over its limits, and those of [`find`](Self::find) and
    /// [`lease`](Self::lease).
    pub async fn named(
        &self,
        model: Option<&str>,
        tenant: &Tenant,
        timeout: Option<Duration>,
    ) -> Result<Lease, Refusal> {
        let Some(name) = model.filter(|name| !name.is_empty()) else {
            let message = format!("model is required: this server has {}.", self.shown_names(tenant));
            return Err(Refusal::Invalid { param: Some("model"), message });
        };
        let model = self.find(name, tenant)?;
        // A model in memory says it itself; one that is not is not loaded to say it.
        if let Some(key) = tenant.key().filter(|_| !self.is_in_memory(model)) {
            key.check(clock::now())?;
        }
        self.lease(model, timeout.unwrap_or(self.0.load_timeout).min(self.0.load_timeout)).await
    }

    /// Loads a model unless it is in memory.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub async fn load(&self, model: usize) -> Result<(), Refusal> {
        self.lease(model, self.0.load_timeout).await.map(drop)
    }

    /// Has a model leave memory; answers once its requests and then its workers have ended.
    ///
    /// # Errors
    /// If they have not within the longest time of a request; the model leaves all the same.
    pub async fn unload(&self, model: usize) -> Result<(), Refusal> {
        let mut moved = self.0.moved.subscribe();
        let before = self.0.state().slots[model].ends;
        let gone = async { while !self.is_gone(model, before) && moved.changed().await.is_ok() {} };
        tokio::time::timeout(self.0.config.limits.request_timeout, gone).await.map_err(|_| {
            let running = self.0.state().residency.requests(model).0;
            let name = self.name(model);
            Refusal::Conflict(format!(
                "{running} requests still run on `{name}`; it leaves memory once they have ended."
            ))
        })
    }

    /// Whether a model is not in memory, or has left it since its workers had ended `before` times. Has it
    /// leave if it is there.
    fn is_gone(&self, model: usize, before: u64) -> bool {
        let mut state = self.0.state();
        if state.residency.stage(model) == Stage::Unloaded || state.slots[model].ends > before {
            return true;
        }
        state.residency.unload(model);
        self.0.work.notify_one();
        false
    }

    /// Changes how long a model stays in memory without requests, until the next one comes. A pinned model
    /// stays.
    pub fn set_keep_alive(&self, model: usize, keep_alive: KeepAlive) {
        if !self.is_pinned(model) {
            self.0.state().residency.set_keep_alive(model, keep_alive);
            self.0.work.notify_one();
        }
    }

    /// Whether the server always keeps a model in memory.
    pub fn is_pinned(&self, model: usize) -> bool {
        self.0.entries[model].keep_alive == KeepAlive::Always
    }

    /// How long a model stays in memory without requests.
    pub fn keep_alive(&self, model: usize) -> KeepAlive {
        self.0.state().residency.keep_alive(model)
    }

    /// All models, in order.
    pub fn status(&self) -> Vec<ModelStatus> {
        let (state, now) = (self.0.state(), clock::now());
        let of = |(model, slot): (usize, &Slot)| {
            let (users, waiting) = state.residency.requests(model);
            ModelStatus {
                model,
                stage: state.residency.stage(model),
                requests: users + waiting,
                expires_in: state.residency.expires(model).map(|at| at.since(now)),
                failed: slot.failed.as_ref().map(|failed| failed.reason.clone()),
                app: slot.loaded.as_ref().map(|loaded| loaded.app.clone()),
            }
        };
        state.slots.iter().enumerate().map(of).collect()
    }

    /// What `of` lists of each model, given its app if it is in memory.
    pub fn listed<T>(&self, of: impl Fn(Option<&App>, &Entry, &ModelStatus) -> Vec<T>) -> Vec<T> {
        let all = self.status();
        all.iter().flat_map(|status| of(status.app.as_ref(), &self.0.entries[status.model], status)).collect()
    }

    /// The model that `name` means to a tenant, if it is in memory.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn in_memory(&self, name: &str, tenant: &Tenant) -> Result<Option<App>, Refusal> {
        let model = self.find(name, tenant)?;
        Ok(self.0.state().slots[model].loaded.as_ref().map(|loaded| loaded.app.clone()))
    }

    fn is_in_memory(&self, model: usize) -> bool {
        self.0.state().slots[model].loaded.is_some()
    }

    /// Bytes that models in memory take by their plans.
    pub fn taken(&self) -> u64 {
        self.0.state().residency.taken()
    }

    /// The models in memory.
    pub fn apps(&self) -> Vec<App> {
        self.0.state().slots.iter().filter_map(|slot| Some(slot.loaded.as_ref()?.app.clone())).collect()
    }

    /// Fails if a request would be refused now, whatever model it names.
    ///
    /// # Errors
    /// [`Refusal::Draining`].
    pub fn ready(&self) -> Result<(), Refusal> {
        if self.0.drain.is_draining() { Err(Refusal::Draining) } else { Ok(()) }
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        self.apps().iter().map(|app| app.drain.running()).sum()
    }

    /// Refuses new requests and those that wait for a model, and waits at most `timeout` for those that run.
    pub async fn drain_all(&self, timeout: Duration) {
        // Nothing holds it, so this only refuses.
        self.0.drain.drain(Duration::ZERO, || ()).await;
        let apps = self.apps();
        join_all(apps.iter().map(|app| app.drain.drain(timeout, || app.generator.leave()))).await;
    }

    /// Ends the workers of all models.
    pub async fn end_workers(&self) {
        let ends: Vec<LoadedEnd> = {
            let mut state = self.0.state();
            state.slots.iter_mut().filter_map(|slot| slot.end.take()).collect()
        };
        join_all(ends).await;
    }

    fn name(&self, model: usize) -> Arc<str> {
        self.0.entries[model].name()
    }

    fn late(&self, model: usize, wait: Duration) -> Refusal {
        let seconds = wait.as_secs_f64();
        let reason = format!("`{}` was not in memory within {seconds} s", self.name(model));
        Refusal::NoReadyWorker { reason, retry_after: RETRY_AFTER }
    }

    fn no_room(&self, model: usize) -> Refusal {
        let name = self.name(model);
        let reason = format!("`{name}` does not fit beside the models that are always kept in memory");
        Refusal::NoReadyWorker { reason, retry_after: FAILED_FOR }
    }

    fn not_loaded(&self, model: usize, failed: &Failed, now: Timestamp) -> Refusal {
        let reason = format!("`{}` could not be loaded: {}", self.name(model), failed.reason);
        let retry_after = FAILED_FOR.saturating_sub(now.since(failed.at)).max(RETRY_AFTER);
        Refusal::NoReadyWorker { reason, retry_after }
    }

    /// Does what there is to do, whenever something happens.
    async fn keep(self) {
        loop {
            let next = self.step();
            let until = async {
                match next {
                    Some(at) => tokio::time::sleep(at.since(clock::now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.work.notified() => {}
                () = until => {}
                () = self.0.drain.over() => return,
            }
        }
    }

    fn step(&self) -> Option<Timestamp> {
        let now = clock::now();
        let mut state = self.0.state();
        let actions = state.residency.step(now);
        for action in &actions {
            match *action {
                Action::Load(model) => {
                    tracing::info!(model = &*self.name(model), "loading a model");
                    tokio::spawn(self.clone().carry_out_load(model));
                }
                Action::Refuse(model) => {
                    for sender in std::mem::take(&mut state.slots[model].waiting) {
                        // One whose receiver is gone waits no more.
                        let _ = sender.send(Err(self.no_room(model)));
                    }
                }
                Action::End(model) => {
                    let loaded = state.slots[model].loaded.take();
                    let end = state.slots[model].end.take();
                    tracing::info!(model = &*self.name(model), "a model leaves memory");
                    tokio::spawn(self.clone().carry_out_end(model, loaded, end));
                }
            }
        }
        let next = state.residency.next(now);
        self.0.metrics.set_memory(state.residency.taken());
        drop(state);
        if !actions.is_empty() {
            self.0.moved.send_modify(|count| *count += 1);
        }
        next
    }

    async fn carry_out_load(self, model: usize) {
        let began = clock::now();
        // On a task of its own, so that a panic of the loader does not leave the model loading for ever.
        let mut loading = tokio::spawn(self.0.loader.load(model));
        let loaded = match tokio::time::timeout(self.0.load_timeout, &mut loading).await {
            Ok(loaded) => {
                loaded.unwrap_or_else(|_| Err("the load ended by a fault of this server".to_owned()))
            }
            Err(_) => {
                // Its workers end with it.
                loading.abort();
                let seconds = self.0.load_timeout.as_secs_f64();
                Err(format!("it was not in memory within {seconds} s; --model-load-timeout allows more"))
            }
        };
        let loaded = loaded
            .map(|LoadedModel { app, routes, end, lost }| (Arc::new(InMemory { app, routes }), end, lost));
        let now = clock::now();
        let seconds = now.since(began).as_secs_f64();
        let name = self.name(model);
        let mut state = self.0.state();
        let waiting = std::mem::take(&mut state.slots[model].waiting);
        match loaded {
            Ok((loaded, end, lost)) => {
                tracing::info!(model = &*name, seconds, "a model is in memory");
                self.0.metrics.loaded(model, LoadOutcome::Loaded, now.since(began));
                tokio::spawn(self.clone().leave_if_lost(model, Arc::downgrade(&loaded), lost));
                state.residency.loaded(model, now);
                let slot = &mut state.slots[model];
                (slot.loaded, slot.end, slot.failed) = (Some(loaded.clone()), Some(end), None);
                drop(state);
                for sender in waiting {
                    let lease = Lease { shared: self.0.clone(), model, loaded: loaded.clone() };
                    // One whose receiver is gone comes back and is dropped.
                    let _ = sender.send(Ok(lease));
                }
            }
            Err(reason) => {
                tracing::warn!(model = &*name, reason, "a model could not be loaded");
                self.0.metrics.loaded(model, LoadOutcome::Failed, now.since(began));
                let failed = Failed { reason, at: now };
                state.residency.failed(model);
                state.slots[model].failed = Some(failed.clone());
                drop(state);
                for sender in waiting {
                    let _ = sender.send(Err(self.not_loaded(model, &failed, now)));
                }
            }
        }
        self.changed();
    }

    /// Has a model leave memory whose workers cannot be started again, and tells clients the reason.
    async fn leave_if_lost(self, model: usize, of: Weak<InMemory>, lost: BoxFuture<'static, Option<String>>) {
        let Some(reason) = lost.await else { return };
        let mut state = self.0.state();
        let is_same = |loaded: &Arc<InMemory>| Weak::ptr_eq(&Arc::downgrade(loaded), &of);
        if !state.slots[model].loaded.as_ref().is_some_and(is_same) {
            return;
        }
        tracing::warn!(model = &*self.name(model), reason, "a model's workers cannot be started again");
        state.slots[model].failed = Some(Failed { reason, at: clock::now() });
        state.residency.unload(model);
        self.0.work.notify_one();
    }

    async fn carry_out_end(self, model: usize, loaded: Option<Arc<InMemory>>, end: Option<LoadedEnd>) {
        drop(loaded);
        if let Some(end) = end {
            end.await;
        }
        {
            let mut state = self.0.state();
            state.residency.ended(model);
            state.slots[model].ends += 1;
        }
        tracing::info!(model = &*self.name(model), "a model has left memory");
        self.changed();
    }

    fn changed(&self) {
        self.0.moved.send_modify(|count| *count += 1);
        self.0.work.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type WaitsForLease = (Waiting, oneshot::Receiver<Result<Lease, Refusal>>);

/// A request that waits for a model.
struct Waiting {
    shared: Arc<Shared>,
    model: usize,
    is_over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.shared.state();
        let slot = &mut state.slots[self.model];
        let before = slot.waiting.len();
        slot.waiting.retain(|sender| !sender.is_closed());
        for _ in slot.waiting.len()..before {
            state.residency.give_up(self.model);
        }
    }
}

/// A name for a message.
fn shortened(name: &str) -> String {
    name.chars().take(200).collect()
}
