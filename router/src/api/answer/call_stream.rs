//! Merges the streams of one call: a completions call may hold many prompts, each with `n` samples.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::version::Version;
use skein_text::formats::Plan;
use smallvec::SmallVec;

use crate::app::{App, Started};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Journey, TokenRequest};
use crate::text::text_stream::{TextDelta, TextStream, Usage};

/// How long the HTTP status waits for the first output. A refusal within that time is sent as a status, not
/// as a chunk. Bounded, because a resumed stream is silent until it passes what its client already has.
pub const FIRST_OUTPUT_WAIT: Duration = Duration::from_secs(2);

type Item = Option<Result<TextDelta, Refusal>>;

/// CallStream streams of one call, one per prompt. Dropping it cancels all of them.
pub struct CallStream {
    prompts: Vec<Prompted>,
    /// The streams of a call with several.
    running: Option<FuturesUnordered<BoxFuture<'static, (usize, TextStream, Item)>>>,
    /// The only stream: polling it needs no boxes.
    alone: Option<TextStream>,
    /// Deltas that arrived while the status waited.
    early: VecDeque<(usize, TextDelta)>,
}

/// One prompt of a call.
pub struct Prompted {
    /// The validated request.
    pub request: TokenRequest,
    /// Plan for splitting its text; `None` = all text is content.
    pub split: Option<Arc<Plan>>,
    /// Token counts up to the latest delta.
    pub usage: Usage,
    /// The same, of each sample's output.
    pub usage_of_samples: SmallVec<[Usage; 1]>,
    /// Moves between workers up to the latest delta.
    pub journey: Journey,
    /// Worker of the latest delta, once the request has moved.
    pub moved_to: Option<Arc<str>>,
    /// Log-probabilities of the prompt's tokens; complete once the first delta has arrived.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

impl CallStream {
    /// Starts `drafts`. If one is refused, the others are cancelled, and none counts towards the
    /// limits of the key.
    pub async fn start(app: &App, tenant: &Tenant, drafts: Vec<Draft>) -> Result<Self, Refusal> {
        let prompts = Vec::with_capacity(drafts.len());
        let mut merged = Self { prompts, running: None, alone: None, early: VecDeque::new() };
        tenant.key().map_or(Ok(()), |key| key.check_prompts(drafts.len()))?;
        let mut streams: SmallVec<[TextStream; 1]> = SmallVec::with_capacity(drafts.len());
        let mut starting =
            drafts.into_iter().map(|draft| app.start(Draft { tenant: tenant.clone(), ..draft }));
        // Not a `for`, which would keep room for each start twice.
        while let Some(started) = OptionFuture::from(starting.next()).await {
            let Started { request, stream, split } =
                started.inspect_err(|_| streams.iter_mut().for_each(TextStream::refuse))?;
            let (usage, journey) = (stream.usage(), stream.journey());
            let moved_to = if journey.moves > 0 { stream.worker() } else { None };
            let usage_of_samples = (0..request.n).map(|sample| stream.usage_of_sample(sample)).collect();
            let prompt_logprobs = Vec::new();
            merged.prompts.push(Prompted {
                request,
                split,
                usage,
                usage_of_samples,
                journey,
                moved_to,
                prompt_logprobs,
            });
            streams.push(stream);
        }
        if streams.len() == 1 {
            merged.alone = streams.pop();
        } else {
            let streams = streams.into_iter().enumerate();
            merged.running = Some(streams.map(|(at, stream)| advance(at, stream)).collect());
        }
        Ok(merged)
    }

    /// Waits up to [`FIRST_OUTPUT_WAIT`] for the first output, which `next` then returns.
    ///
    /// # Errors
    /// If the call fails within that time.
    pub async fn wait_for_first(&mut self) -> Result<(), Refusal> {
        self.wait_for(|_, _| Ok(true)).await
    }

    /// The same, for a client that has a part of the answer: waits for the first delta that `is_new` to it.
    ///
    /// # Errors
    /// If the call or `is_new` fails within that time.
    pub async fn wait_for(
        &mut self,
        mut is_new: impl FnMut(usize, &TextDelta) -> Result<bool, Refusal>,
    ) -> Result<(), Refusal> {
        let first = async {
            while let Some(item) = self.receive().await {
                let (at, delta) = item?;
                let is_new = is_new(at, &delta)?;
                self.early.push_back((at, delta));
                if is_new {
                    break;
                }
            }
            Ok(())
        };
        tokio::time::timeout(FIRST_OUTPUT_WAIT, first).await.unwrap_or(Ok(()))
    }

    /// Next delta and the index of its prompt; `None` at the end of the call and after an error.
    pub async fn next(&mut self) -> Option<Result<(usize, TextDelta), Refusal>> {
        match self.early.pop_front() {
            Some(early) => {
                if self.early.is_empty() {
                    self.early = VecDeque::new(); // its room is not needed any more
                }
                Some(Ok(early))
            }
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Option<Result<(usize, TextDelta), Refusal>> {
        if let Some(stream) = &mut self.alone {
            let item = stream.next().await;
            self.prompts[0].update(stream, item.as_ref());
            if matches!(item, Some(Err(_))) {
                self.alone = None;
            }
            return item.map(|item| item.map(|delta| (0, delta)));
        }
        while let Some((at, stream, item)) = self.running.as_mut()?.next().await {
            self.prompts[at].update(&stream, item.as_ref());
            match item {
                None => {}
                Some(Ok(delta)) => {
                    self.running.as_mut()?.push(advance(at, stream));
                    return Some(Ok((at, delta)));
                }
                Some(Err(refusal)) => {
                    self.running = None;
                    return Some(Err(refusal));
                }
            }
        }
        None
    }

    /// Name that answers show: that of the requests' adapter, or `model`.
    pub fn shown_model(&self, model: &Arc<str>) -> Arc<str> {
        self.prompts.first().map_or(model, |prompt| prompt.request.shown_model()).clone()
    }

    /// The prompts, in the order of the drafts.
    pub fn prompts(&self) -> &[Prompted] {
        &self.prompts
    }

    /// Token counts summed over all prompts.
    pub fn usage(&self) -> Usage {
        self.prompts.iter().fold(Usage::default(), |sum, prompt| Usage {
            prompt_tokens: sum.prompt_tokens.saturating_add(prompt.usage.prompt_tokens),
            completion_tokens: sum.completion_tokens.saturating_add(prompt.usage.completion_tokens),
            cached_tokens: sum.cached_tokens.saturating_add(prompt.usage.cached_tokens),
            reasoning_tokens: match (sum.reasoning_tokens, prompt.usage.reasoning_tokens) {
                (None, None) => None,
                (sum, more) => Some(sum.unwrap_or(0).saturating_add(more.unwrap_or(0))),
            },
        })
    }

    /// Token counts of one sample of a prompt.
    pub fn usage_of(&self, prompt: usize, sample: usize) -> Usage {
        let usage = |prompt: &Prompted| prompt.usage_of_samples.get(sample).copied();
        self.prompts.get(prompt).and_then(usage).unwrap_or_default()
    }

    /// Version of the model that a prompt's answer is from; unknown before its first token.
    pub fn version_of(&self, prompt: usize) -> Version {
        self.prompts.get(prompt).map_or(Version::UNKNOWN, |prompt| prompt.journey.version)
    }

    /// Worker that a prompt moved to last.
    pub fn moved_to(&self, prompt: usize) -> Option<&Arc<str>> {
        self.prompts.get(prompt)?.moved_to.as_ref()
    }

    /// Moves summed over all prompts; `resume_exact` holds only if it holds for every prompt.
    pub fn journey(&self) -> Journey {
        self.prompts.iter().fold(Journey::default(), |sum, prompt| Journey {
            moves: sum.moves.saturating_add(prompt.journey.moves),
            resume_exact: sum.resume_exact && prompt.journey.resume_exact,
            version: sum.version.or(prompt.journey.version),
        })
    }
}

impl Prompted {
    /// Takes over the counts of `stream`, whose latest item is `item`.
    fn update(&mut self, stream: &TextStream, item: Option<&Result<TextDelta, Refusal>>) {
        self.usage = stream.usage();
        let moves = std::mem::replace(&mut self.journey, stream.journey()).moves;
        if self.journey.moves > moves {
            self.moved_to = stream.worker();
        }
        if self.prompt_logprobs.is_empty() && matches!(item, Some(Ok(_))) {
            self.prompt_logprobs.extend_from_slice(stream.prompt_logprobs());
        }
        if let Some(Ok(delta)) = item
            && let Some(usage) = self.usage_of_samples.get_mut(delta.sample_index as usize)
        {
            *usage = stream.usage_of_sample(delta.sample_index);
        }
    }
}

fn advance(at: usize, mut stream: TextStream) -> BoxFuture<'static, (usize, TextStream, Item)> {
    async move {
        let item = stream.next().await;
        (at, stream, item)
    }
    .boxed()
}
