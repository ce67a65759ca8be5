//! What both APIs share: one model's text processing, one generator, limits, and the path that starts a
//! request.

use std::ops::Deref;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{Either, ready};
use skein_choice::limits::ModelLimits;
use skein_choice::receipt::Receipts;
use skein_node::clock;
use skein_node::trace::{self, Part};
use skein_proto::sampling::SamplingParams;
use skein_text::formats::Plan;
use skein_text::model_text::ModelText;

use crate::api::http::receipts;
use crate::batch::jobs::Store;
use crate::config::RouterConfig;
use crate::drain::{Drain, Lease};
use crate::generator::{Adapters, FleetView, Generator};
use crate::links::picks::{Endpoints, Picked};
use crate::metrics::{Metered, Metrics};
use crate::pause::Pauses;
use crate::pooled::refused;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{AdapterRef, Draft, Prompt, TokenRequest};
use crate::swap::ModelSwaps;
use crate::tenants::Charge;
use crate::text::text_stream::{TextOptions, TextStream};
use crate::text::work::{INLINE_BYTES, INLINE_KEPT_BYTES, TextWork};
use crate::validate::{Offer, check_model, validate};

/// State of the APIs. Every layer and handler of a request clones it, so it is one pointer.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// What an [`App`] consists of.
#[derive(Clone)]
pub struct Parts {
    /// Tokenizer, chat template and defaults of the model.
    pub text: Arc<ModelText>,
    /// Generates tokens: the cluster, or a script in tests.
    pub generator: Arc<dyn Generator>,
    /// The workers behind it.
    pub fleet: Arc<dyn FleetView>,
    /// Their adapters.
    pub adapters: Arc<dyn Adapters>,
    /// Counts and times requests.
    pub metrics: Arc<Metrics>,
    /// The effective settings.
    pub config: Arc<RouterConfig>,
    /// Tracks running requests and refuses new ones during shutdown.
    pub drain: Drain,
    /// When this process started, seconds since 1970; `created` of the model.
    pub created: u64,
    /// Files and batches of clients; `None` if this router stores none.
    pub batches: Option<Arc<Store>>,
    /// Replaces the model; `None` if this process did not start its workers.
    pub swaps: Option<Arc<dyn ModelSwaps>>,
    /// Has generation stand still; `None` if clients may not replace the model.
    pub pauses: Option<Pauses>,
    /// Runs tokenisation, within limits for all requests together.
    text_work: TextWork,
}

/// A request that was started.
pub struct Started {
    /// The validated request, in tokens.
    pub request: TokenRequest,
    /// Text of the request's samples.
    pub stream: TextStream,
    /// Plan for splitting the text; `None` = all of it is content.
    pub split: Option<Arc<Plan>>,
}

impl App {
    /// An app that accepts requests at once.
    pub fn new<C>(text: Arc<ModelText>, cluster: Arc<C>, config: RouterConfig) -> Self
    where
        C: Generator + FleetView + Adapters,
    {
        let metrics = Arc::new(Metrics::of_router(&text.name(), &config));
        let most_waiting = config.admission.max_num_queued_reqs;
        let drain = Drain::default();
        let pauses = config.runtime_swaps.then(|| Pauses::new(cluster.clone(), drain.clone(), most_waiting));
        let generator: Arc<dyn Generator> = match &pauses {
            None => cluster.clone(),
            Some(pauses) => Arc::new(pauses.clone()),
        };
        Self(Arc::new(Parts {
            text,
            generator: Arc::new(Metered::new(generator, metrics.clone())),
            fleet: cluster.clone(),
            adapters: cluster,
            metrics,
            config: Arc::new(config),
            drain,
            created: clock::unix_time().as_secs(),
            batches: None,
            swaps: None,
            pauses,
            text_work: TextWork::default(),
        }))
    }

    /// Stores files and batches of clients in `store`.
    pub fn store_batches(&mut self, store: Arc<Store>) {
        Arc::make_mut(&mut self.0).batches = Some(store);
    }

    /// Lets clients replace the model.
    pub fn swap_models(&mut self, swaps: Arc<dyn ModelSwaps>) {
        Arc::make_mut(&mut self.0).swaps = Some(swaps);
    }

    /// Validates `draft`, tokenises it and starts it. Not an async function, which would keep room for the
    /// draft while the request waits for a worker.
    pub fn start(&self, draft: Draft) -> impl Future<Output = Result<Started, Refusal>> + Send + '_ {
        let id = draft.request_id.clone().unwrap_or_default();
        self.prepared(draft).then(async move |prepared| {
            let (lease, request, options) = prepared.inspect_err(|refusal| {
                self.metrics.refused(refusal);
                refusal.trace(&trace::current());
                refusal.log(&id);
            })?;
            // The generator counts its own refusals.
            let submitted = self.generator.submit(request.clone()).await;
            let source = submitted.inspect_err(|refusal| refusal.log(&request.id))?;
            let stream = TextStream::new(source, &request, &options, &self.text, lease);
            let split = options.split.map(|split| split.plan);
            Ok(Started { request, stream, split })
        })
    }

    /// Validates `draft`, tokenises it and picks an endpoint for it, without starting it.
    pub async fn pick(&self, draft: Draft, from: &Endpoints) -> Result<Picked, Refusal> {
        let (_lease, request, _) = self.prepared(draft).await?;
        let mut charge = Charge::begin(&request, clock::now())?;
        let picked = self.fleet.pick(&request, from)?;
        // The answer does not pass here, so the estimate stands.
        let tokens = charge.tokens();
        charge.settle(tokens, clock::now());
        Ok(picked)
    }

    /// Picks an endpoint for a request of unknown content.
    pub fn pick_by_load(&self, tenant: Tenant, from: &Endpoints) -> Result<Picked, Refusal> {
        let _lease = self.drain.enter()?;
        let sampling = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
        let unknown = TokenRequest::new("", self.text.name(), [0], sampling);
        let mut charge = Charge::estimated(tenant.key(), 0, clock::now())?;
        let picked = self.fleet.pick(&TokenRequest { tenant, ..unknown }, from)?;
        charge.settle(0, clock::now());
        Ok(picked)
    }

    /// Validates `draft` and tokenises it, without starting it.
    pub async fn check(&self, draft: Draft) -> Result<(), Refusal> {
        self.prepared(draft).await.map(drop)
    }

    fn prepared(
        &self,
        draft: Draft,
    ) -> impl Future<Output = Result<(Lease, TokenRequest, TextOptions), Refusal>> + Send + '_ {
        let (arrived, trace) = (clock::now(), trace::current());
        let bytes = prompt_bytes(&draft.prompt);
        let lease = self.drain.enter();
        let limits = lease.and_then(|lease| Ok((lease, self.generation_limits()?)));
        let from = clock::now();
        let (lease, limits) = match limits {
            Ok(limits) => limits,
            Err(refusal) => return Either::Left(ready(Err(refusal))),
        };
        Either::Right(self.checked(draft, limits).map(move |checked| {
            trace.add(|| {
                let part =
                    Part::new("tokenize", from, clock::now()).count("skein.prompt_bytes", bytes as u64);
                match &checked {
                    Ok((request, _)) => part.count("skein.prompt_tokens", request.prompt.len() as u64),
                    Err(_) => part,
                }
            });
            let (request, options) = checked?;
            let arrived = Some(arrived);
            Ok((lease, TokenRequest { arrived, trace, receipts: self.receipts(), ..request }, options))
        }))
    }

    /// Limits of a model that generates.
    fn generation_limits(&self) -> Result<ModelLimits, Refusal> {
        let limits = self.fleet.model_limits()?;
        match limits.pools.then(|| self.fleet.pooled()).transpose()?.flatten() {
            None => Ok(limits),
            Some(pooled) => Err(refused::pools(&self.text.name(), &pooled)),
        }
    }

    /// Where the choices of a worker are recorded: if the client asks, or someone looks at the cluster.
    pub(crate) fn receipts(&self) -> Option<Receipts> {
        receipts::current().or_else(|| self.metrics.recent.is_watched().then(Receipts::default))
    }

    /// The adapter that `model` names; `None` if it is the model alone, as without a name.
    ///
    /// # Errors
    /// If no model or adapter has this name, or the tenant's key may not use it.
    pub fn check_model(&self, model: Option<&str>, tenant: &Tenant) -> Result<Option<AdapterRef>, Refusal> {
        check_model(model, &self.text, &self.adapters.known(), tenant)
    }

    /// Names that requests of `tenant` may use: those of the model, and of its adapters (`true`).
    pub fn names(&self, tenant: &Tenant) -> Vec<(Arc<str>, bool)> {
        let known = self.adapters.known();
        let model = self.text.served_names.iter().map(|name| (name.clone(), false));
        let all = model.chain(known.by_name.keys().map(|name| (name.clone(), true)));
        all.filter(|(name, _)| tenant.may_use(name)).collect()
    }

    /// Name that answers show for a request that names `model`.
    pub fn shown_model(&self, model: Option<&str>) -> Arc<str> {
        let adapter = self.check_model(model, &Tenant::default()).ok().flatten();
        adapter.map_or_else(|| self.text.name(), |adapter| adapter.name)
    }

    /// Fails if a request would be refused now.
    pub fn ready(&self) -> Result<(), Refusal> {
        if self.drain.is_draining() {
            return Err(Refusal::Draining);
        }
        self.fleet.ready()
    }

    fn checked(
        &self,
        draft: Draft,
        limits: ModelLimits,
    ) -> impl Future<Output = Result<(TokenRequest, TextOptions), Refusal>> + Send + use<> {
        let compiles = draft.constraint.is_some() || draft.tools.is_on();
        let size = self.new_work_bytes(&draft) + if compiles { CONSTRAINT_BYTES } else { 0 };
        let app = self.clone();
        let adapters = self.adapters.known();
        let check = move || {
            validate(
                draft,
                &app.text,
                Offer { model: &limits, adapters: &adapters },
                &app.config.limits,
                clock::now(),
            )
        };
        self.text_work.run(size, check)
    }

    /// Cost of a draft's prompt, as bytes of text to tokenise. A text whose ids are kept but for a little is
    /// short.
    fn new_work_bytes(&self, draft: &Draft) -> usize {
        match &draft.prompt {
            Prompt::Text(prompt) if (INLINE_BYTES..INLINE_KEPT_BYTES).contains(&prompt.len()) => {
                let cache_salt = draft.tenant.cache_salt(&draft.cache_salt);
                let is_known = self.text.tokenizer.is_known_but(INLINE_BYTES, prompt, &cache_salt);
                if is_known { INLINE_BYTES } else { prompt.len() }
            }
            prompt => work_bytes(prompt),
        }
    }

    /// Runs text work; see [`TextWork::run`].
    ///
    /// # Errors
    /// As [`TextWork::run`].
    pub async fn text_work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.text_work.run(bytes, work).await
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Cost of compiling a constraint, as bytes of text to tokenise; a lower bound.
const CONSTRAINT_BYTES: usize = 16 * 1024;

/// Cost of rendering a chat template in another process, as bytes of text to tokenise; a lower bound.
const TEMPLATE_BYTES: usize = 8 * 1024;

/// Cost of `prompt`, as bytes of text to tokenise.
pub fn work_bytes(prompt: &Prompt) -> usize {
    let template = if matches!(prompt, Prompt::Chat { .. }) { TEMPLATE_BYTES } else { 0 };
    template + prompt_bytes(prompt)
}

/// Approximate bytes of text to render and tokenise.
fn prompt_bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(_) => 0,
        Prompt::Chat { messages, template_kwargs, .. } => {
            messages.iter().chain(template_kwargs.values()).map(json_bytes).sum()
        }
    }
}

fn json_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(json_bytes).sum(),
        serde_json::Value::Object(map) => map.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
        _ => 8,
    }
}
