//! What both APIs serve: one model's text, one generator, limits, and the way in that they share.

use std::sync::Arc;

use skein_node::clock;
use tokio::sync::Semaphore;

use crate::config::RouterConfig;
use crate::drain::Drain;
use crate::generator::Generator;
use crate::refusal::Refusal;
use crate::request::{Draft, ModelLimits, Prompt, TokenRequest};
use crate::text::model_text::ModelText;
use crate::text::text_stream::{TextOptions, TextStream};
use crate::validate::validate;

/// A prompt of up to this many bytes is tokenised where the request runs: about a millisecond.
const INLINE_PROMPT_BYTES: usize = 4096;

/// Everything an edge needs; cheap to clone.
#[derive(Clone)]
pub struct App {
    /// Tokenizer, chat template, defaults.
    pub text: Arc<ModelText>,
    /// What generates tokens.
    pub generator: Arc<dyn Generator>,
    /// Effective settings.
    pub config: Arc<RouterConfig>,
    /// Whether requests are taken.
    pub drain: Drain,
    /// Seconds since 1970 at start: when the model began to be served.
    pub created: u64,
    /// Long prompts tokenised at once: more would only share the processors.
    tokenizing: Arc<Semaphore>,
}

/// A request that was taken.
pub struct Started {
    /// Checked, in tokens.
    pub request: TokenRequest,
    /// Its answer.
    pub stream: TextStream,
}

impl App {
    /// An app that takes requests at once.
    pub fn new(text: Arc<ModelText>, generator: Arc<dyn Generator>, config: RouterConfig) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            text,
            generator,
            config: Arc::new(config),
            drain: Drain::default(),
            created: clock::unix_time().as_secs(),
            tokenizing: Arc::new(Semaphore::new(processors)),
        }
    }

    /// Checks `draft`, turns it into tokens and starts it.
    pub async fn start(&self, draft: Draft) -> Result<Started, Refusal> {
        let lease = self.drain.enter()?;
        let limits = self.generator.model_limits()?;
        let (request, options) = self.checked(draft, limits).await?;
        let source = self.generator.submit(request.clone()).await?;
        let stream = TextStream::new(source, &request, &options, &self.text, lease);
        Ok(Started { request, stream })
    }

    /// Whether a request would be taken now.
    pub fn ready(&self) -> Result<(), Refusal> {
        if self.drain.is_draining() {
            return Err(Refusal::Draining);
        }
        self.generator.ready()
    }

    async fn checked(
        &self,
        draft: Draft,
        limits: ModelLimits,
    ) -> Result<(TokenRequest, TextOptions), Refusal> {
        let size = prompt_bytes(&draft.prompt);
        let app = self.clone();
        let check = move || validate(draft, &app.text, &limits, &app.config.limits, clock::now());
        self.text_work(size, check).await
    }

    /// Runs work over `bytes` of text, off the async threads if it may take long.
    pub async fn text_work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= INLINE_PROMPT_BYTES {
            return work();
        }
        let _permit = self.tokenizing.acquire().await.map_err(|_| Refusal::Internal)?;
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|failed| {
            tracing::error!(%failed, "text work did not end");
            Err(Refusal::Internal)
        })
    }
}

/// About how much text there is to render and tokenise.
pub fn prompt_bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(_) => 0,
        Prompt::Chat { messages, .. } => messages.iter().map(json_bytes).sum(),
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
