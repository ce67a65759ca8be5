//! Shared by the tests of the APIs: a small tokenizer and a generator that follows a script.

// Also compiled for `tests/fuzz`, where clippy does not know it as a test.
#![allow(clippy::unwrap_used)]
#![cfg_attr(not(test), allow(dead_code))]

#[cfg(test)]
pub(crate) mod server;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use serde_json::{Value, json};
use skein_choice::fleet::capacity::Capacity;
use skein_choice::fleet::{KnownAdapters, WorkerStatus};
use skein_choice::limits::ModelLimits;
use skein_proto::TokenId;
use skein_proto::adapter::{AdapterId, AdapterRecord};
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::pooling::PooledModel;
use skein_proto::totals::Total;
use skein_proto::version::Version;
use skein_text::model_text::{Facts, ModelText};

use crate::admission::{Rejections, Running};
use crate::generator::{Adapters, FleetView, Generator, TokenSource};
use crate::links::moves::LatestMoves;
use crate::links::picks::{Endpoints, Picked};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// Token of byte 0: byte `b` is token `b + BYTES`.
pub const BYTES: TokenId = 4;
/// Longest sequence of the scripted model, tokens.
pub const MAX_MODEL_LEN: u32 = 256;

/// Byte-level, without merges: `<|bos|>` 0, `<|end|>` 1, `<|user|>` 2, `<|assistant|>` 3, then the 256 bytes.
pub fn tokenizer_json() -> Value {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut vocab = serde_json::Map::new();
    let special = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>"];
    for (id, token) in special.iter().enumerate() {
        vocab.insert((*token).to_owned(), json!(id));
    }
    for byte in 0..256_u32 {
        let code = if printable(byte) { byte } else { next };
        next += u32::from(!printable(byte));
        vocab.insert(char::from_u32(code).unwrap().to_string(), json!(byte + BYTES));
    }
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}})
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// The byte tokenizer with a chat template, served as `test`.
pub fn model_text() -> ModelText {
    model_text_with(&Value::Null, Some(TEMPLATE))
}

/// The byte tokenizer with these defaults and this template.
pub fn model_text_with(generation: &Value, template: Option<&str>) -> ModelText {
    let config = json!({"bos_token": "<|bos|>", "eos_token": "<|end|>"});
    let tokenizer = tokenizer_json().to_string();
    let template = template.map(str::to_owned);
    let names = vec![Arc::from("test")];
    let text = ModelText::from_parts(names, tokenizer.as_bytes(), &config, template, generation).unwrap();
    let (family, dtype) = ("llama".to_owned(), "bf16".to_owned());
    ModelText { facts: Facts { family, parameters: 7_340_000, dtype, bytes: 14_600_000 }, ..text }
}

/// The tokens of `text`, one a byte.
pub fn tokens(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId::from(byte) + BYTES).collect()
}

/// A delta of sample `index` with `text`.
pub fn delta(index: u32, text: &str) -> TokenDelta {
    TokenDelta { sample_index: index, tokens: tokens(text), ..TokenDelta::default() }
}

/// The last delta of sample `index`.
pub fn finish(index: u32, finish: FinishReason) -> TokenDelta {
    TokenDelta { sample_index: index, finish: Some(finish), ..TokenDelta::default() }
}

/// One item of a scripted stream.
#[derive(Debug, Clone)]
pub enum Say {
    /// Sends this delta.
    Delta(TokenDelta),
    /// Ends the stream with this refusal.
    Fail(Refusal),
    /// Moves the stream to the worker of this name.
    Move(&'static str),
    /// Stays silent forever.
    Hang,
}

/// The vector of a request.
pub type VectorOf = fn(&TokenRequest) -> Vec<f32>;

/// Answers every request from the same script and records the requests.
#[derive(Default)]
pub struct Script {
    /// The items of each stream.
    pub say: Vec<Say>,
    /// If set, what every sample of a request says, instead of `say`.
    pub every_sample: Option<String>,
    /// If set, `submit` fails with this.
    pub refuse: Option<Refusal>,
    /// If set, `model_limits` and `ready` fail with this.
    pub not_ready: Option<Refusal>,
    /// Requests received so far.
    pub requests: Mutex<Vec<TokenRequest>>,
    /// Number of open streams.
    pub open: Arc<AtomicUsize>,
    /// Samples aborted so far.
    pub aborted: Arc<Mutex<Vec<u32>>>,
    /// The journey that each stream reports.
    pub journey: Journey,
    /// If set, the model pools: what its vectors are, and the one of each request.
    pub pooled: Option<(PooledModel, VectorOf)>,
}

impl Script {
    /// Streams that send these deltas; log-probabilities and positions are filled in as requested.
    pub fn of(deltas: impl IntoIterator<Item = TokenDelta>) -> Self {
        Self { say: deltas.into_iter().map(Say::Delta).collect(), ..Self::default() }
    }
}

impl Generator for Script {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        let answer = match &self.refuse {
            Some(refusal) => Err(refusal.clone()),
            None => {
                self.open.fetch_add(1, Ordering::SeqCst);
                let mut say: VecDeque<Say> = match (&self.every_sample, &self.pooled) {
                    (_, Some((_, vector))) if self.say.is_empty() => pooled(vector(&request)),
                    (Some(text), _) => every_sample(text, request.n),
                    (None, _) => self.say.clone().into(),
                };
                complete(&mut say, &request);
                let (open, aborted) = (self.open.clone(), self.aborted.clone());
                let stream = Scripted { say, open, aborted, journey: self.journey, worker: None };
                Ok(Box::new(stream) as Box<dyn TokenSource>)
            }
        };
        self.requests.lock().unwrap().push(request);
        async move { answer }.boxed()
    }

    fn leave(&self) {}
}

impl FleetView for Script {
    fn pick(&self, request: &TokenRequest, from: &Endpoints) -> Result<Picked, Refusal> {
        self.requests.lock().unwrap().push(request.clone());
        let none = || Refusal::NoReadyWorker {
            reason: "none has joined".to_owned(),
            retry_after: Duration::from_secs(1),
        };
        match (&self.refuse, from.of("10.0.0.7:9000")) {
            (Some(refusal), _) => Err(refusal.clone()),
            (None, endpoint) => Ok(Picked::without_place("10.0.0.7:9000", endpoint.ok_or_else(none)?)),
        }
    }

    fn model_limits(&self) -> Result<ModelLimits, Refusal> {
        match &self.not_ready {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(ModelLimits {
                max_model_len: MAX_MODEL_LEN,
                vocab_size: 256 + BYTES,
                max_num_seqs: 128,
                pools: self.pooled.is_some(),
            }),
        }
    }

    fn pooled(&self) -> Result<Option<Arc<PooledModel>>, Refusal> {
        let pooled = self.pooled.as_ref().map(|(model, _)| Arc::new(model.clone()));
        self.not_ready.clone().map_or(Ok(pooled), Err)
    }

    fn capacity(&self) -> Result<Capacity, Refusal> {
        Ok(Capacity {
            limits: self.model_limits()?,
            pooled: self.pooled()?.map(|model| (*model).clone()),
            grammar_fingerprint: 0,
            resume_exact: true,
            block_size: 16,
            kv_blocks: 100,
            max_num_seqs: 8,
            max_num_batched_tokens: 512,
            free_blocks: 90,
            queued_uncached_tokens: 5,
            sequences: u32::try_from(self.open.load(Ordering::SeqCst)).unwrap(),
            prefill_tokens_per_second: 10.0,
            decode_tokens_per_second: 1.0,
        })
    }

    fn ready(&self) -> Result<(), Refusal> {
        self.not_ready.clone().map_or(Ok(()), Err)
    }

    fn version(&self) -> Version {
        Version::UNKNOWN
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        Vec::new()
    }

    fn totals(&self) -> Vec<Total> {
        Vec::new()
    }

    fn running(&self) -> Running {
        Running::default()
    }

    fn rejections(&self) -> Rejections {
        Rejections { by_requests: 3, by_tokens: 4 }
    }

    fn moves(&self) -> LatestMoves {
        LatestMoves::default()
    }

    fn drain<'a>(&'a self, worker: &'a str, _: bool) -> BoxFuture<'a, Result<(), Refusal>> {
        if worker == "only" {
            let refusal = Refusal::Conflict("no other worker is ready to take its requests.".to_owned());
            return async { Err(refusal) }.boxed();
        }
        async move { Err(Refusal::NotFound(format!("There is no worker `{worker}`."))) }.boxed()
    }
}

/// A script has no adapters and loads none.
impl Adapters for Script {
    fn known(&self) -> Arc<KnownAdapters> {
        Arc::default()
    }

    fn load<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>> {
        async { Err(Refusal::Internal) }.boxed()
    }

    fn unload<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        async { Err(Refusal::Internal) }.boxed()
    }

    fn records(&self) -> Vec<AdapterRecord> {
        Vec::new()
    }

    fn check<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>> {
        async { Err(Refusal::Internal) }.boxed()
    }

    fn change(&self, _: AdapterRecord, _: bool) -> BoxFuture<'_, Result<bool, Refusal>> {
        async { Err(Refusal::Internal) }.boxed()
    }
}

/// Deltas in which each of `n` samples says `text` and stops.
fn every_sample(text: &str, n: u32) -> VecDeque<Say> {
    let one = |index| [delta(index, text), finish(index, FinishReason::Stop(Some(1)))].map(Say::Delta);
    (0..n).flat_map(one).collect()
}

/// The one delta of a request for a vector.
fn pooled(vector: Vec<f32>) -> VecDeque<Say> {
    [Say::Delta(TokenDelta { pooled: vector, ..finish(0, FinishReason::Stop(None)) })].into()
}

/// Fills in positions, cached tokens and log-probabilities, as a worker would.
fn complete(say: &mut VecDeque<Say>, request: &TokenRequest) {
    let sampling = &request.sampling;
    if let Some(top) = sampling.prompt_logprobs {
        let prompt_logprobs = request.prompt[1..].iter().map(|token| logprobs(*token, top)).collect();
        say.push_front(Say::Delta(TokenDelta { prompt_logprobs, ..TokenDelta::default() }));
    }
    let mut positions = vec![u32::try_from(request.prompt.len()).unwrap(); request.n as usize];
    for sample in request.resume.iter().flat_map(|resume| &resume.samples) {
        positions[sample.index as usize] += u32::try_from(sample.delivered.len()).unwrap();
    }
    let mut first = true;
    for said in say {
        if let Say::Delta(delta) = said {
            if std::mem::take(&mut first) {
                delta.cached_tokens = Some(1);
            }
            if let Some(position) = positions.get_mut(delta.sample_index as usize) {
                delta.from_position = *position;
                *position += u32::try_from(delta.tokens.len()).unwrap();
            }
            if let Some(top) = sampling.logprobs {
                delta.logprobs = delta.tokens.iter().map(|token| logprobs(*token, top)).collect();
            }
        }
    }
}

fn logprobs(token: TokenId, top: u32) -> TokenLogprobs {
    let best = (0..top).map(|at| ((token + at) % (256 + BYTES), -0.5 - at as f32)).collect();
    TokenLogprobs { token, logprob: -0.5, rank: 1, top: best }
}

struct Scripted {
    say: VecDeque<Say>,
    open: Arc<AtomicUsize>,
    aborted: Arc<Mutex<Vec<u32>>>,
    journey: Journey,
    worker: Option<&'static str>,
}

impl Stream for Scripted {
    type Item = Result<TokenDelta, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while let Some(&Say::Move(worker)) = self.say.front() {
            (self.worker, self.journey.moves) = (Some(worker), self.journey.moves + 1);
            self.say.pop_front();
        }
        match self.say.pop_front() {
            Some(Say::Delta(delta)) => Poll::Ready(Some(Ok(delta))),
            Some(Say::Fail(refusal)) => Poll::Ready(Some(Err(refusal))),
            Some(Say::Hang | Say::Move(_)) => {
                self.say.push_front(Say::Hang);
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}

impl TokenSource for Scripted {
    fn abort_sample(&mut self, sample_index: u32) {
        self.aborted.lock().unwrap().push(sample_index);
    }

    fn journey(&self) -> Journey {
        self.journey
    }

    fn worker(&self) -> Option<Arc<str>> {
        self.worker.map(Arc::from)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Settings of a router without keys.
pub fn config() -> crate::config::RouterConfig {
    let shutdown_timeout = std::time::Duration::from_secs(5);
    crate::config::RouterConfig { shutdown_timeout, ..crate::config::RouterConfig::new("", ["test"]) }
}

/// An app that answers from `script`.
pub fn app(script: Script) -> crate::app::App {
    crate::app::App::new(Arc::new(model_text()), Arc::new(script), config())
}
