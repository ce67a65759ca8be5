//! Converts a request's token stream to text, with a detokenizer and a stop-string matcher per sample. Used
//! by every API.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use skein_node::clock::{self, Timestamp};
use skein_node::trace::{self, Part};
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_text::detokenizer::Detokenizer;
use skein_text::formats::Plan;
use skein_text::model_text::ModelText;
use skein_text::stop::StopMatcher;

use super::control_marks::ControlMarks;
use super::reasoning_count::ReasoningCount;
use crate::drain::Lease;
use crate::generator::TokenSource;
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// Validated text options of a request. The worker does not see them.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Whether to keep the stop string in the text.
    pub include_stop_str_in_output: bool,
    /// Whether to leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// How to split the text into reasoning, content and calls; `None` = all of it is content.
    pub split: Option<Split>,
}

/// How to split the text of an answer.
#[derive(Debug, Clone)]
pub struct Split {
    /// What the splitters look for.
    pub plan: Arc<Plan>,
    /// Control tokens among the markers, which must stay in the text.
    pub kept: Arc<[TokenId]>,
}

/// The text deltas of all samples of one request. Dropping it cancels the request.
pub struct TextStream {
    source: Box<dyn TokenSource>,
    samples: Vec<Sample>,
    sampling: Arc<SamplingParams>,
    prompt_tokens: u32,
    cached_tokens: u32,
    prompt_logprobs: Vec<TokenLogprobs>,
    lease: Lease,
    failed: bool,
    detokenizing: Detokenizing,
}

/// New text of one sample, in whole scalars, and the new tokens. Text that was held back arrives later than
/// its token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextDelta {
    /// Which of the request's samples, from 0.
    pub sample_index: u32,
    /// Absolute position of `tokens[0]`, counting prompt tokens.
    pub from_position: u32,
    /// The new text.
    pub text: String,
    /// Where in `text` the control tokens begin that mark parts of the answer, ascending.
    pub control_at: Vec<usize>,
    /// The new tokens, without a stop token.
    pub tokens: Vec<TokenId>,
    /// One for each of `tokens` if requested, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<TextFinish>,
    /// Those of the stop token that ended the sample, if requested.
    pub stop_logprobs: Option<Box<TokenLogprobs>>,
}

impl TextDelta {
    /// The same, in which the stop token that ended the sample is the last of its tokens, as vLLM counts it.
    #[must_use]
    pub fn with_stop_token(mut self) -> Self {
        if let Some(TextFinish::Stop(StopCause::Token(token) | StopCause::End(Some(token)))) = self.finish {
            self.tokens.push(token);
            self.logprobs.extend(self.stop_logprobs.take().map(|logprobs| *logprobs));
        }
        self
    }

    /// Only the end of the sample, with the stop token that ended it.
    pub fn only_stop_token(&self) -> Self {
        let (finish, stop_logprobs) = (self.finish.clone(), self.stop_logprobs.clone());
        Self { finish, stop_logprobs, ..Self::default() }.with_stop_token()
    }
}

/// Why a sample ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextFinish {
    /// A stop string, stop token or end-of-sequence token.
    Stop(StopCause),
    /// `max_tokens` or the end of the context was reached.
    Length,
    /// The operator ended it.
    Abort,
}

/// What stopped a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// This stop string.
    Text(String),
    /// One of the request's `stop_token_ids`.
    Token(TokenId),
    /// The model's end-of-sequence token; `None` if the worker did not name it.
    End(Option<TokenId>),
}

impl TextFinish {
    /// The value of `finish_reason`; `abort` is vLLM's.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Stop(_) => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Token counts so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, counted once for all samples.
    pub prompt_tokens: u32,
    /// Output tokens of all samples.
    pub completion_tokens: u32,
    /// Prompt tokens found in a prefix cache.
    pub cached_tokens: u32,
    /// Output tokens that are reasoning; `None` if the answer's format has none.
    pub reasoning_tokens: Option<u32>,
}

struct Sample {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    marks: ControlMarks,
    /// Whether the text includes what stopped it.
    include_stop: bool,
    output_tokens: u32,
    reasoning: Option<ReasoningCount>,
    ended: bool,
}

impl TextStream {
    /// The text of `source`, the token stream of `request`.
    pub fn new(
        source: Box<dyn TokenSource>,
        request: &TokenRequest,
        options: &TextOptions,
        text: &ModelText,
        lease: Lease,
    ) -> Self {
        let kept = options.split.as_ref().map_or_else(Arc::default, |split| split.kept.clone());
        let sample = || Sample {
            detokenizer: Detokenizer::new(text.tokenizer.bytes().clone(), options.skip_special_tokens)
                .keeping(kept.clone()),
            stop: StopMatcher::new(&options.stop, options.include_stop_str_in_output),
            marks: ControlMarks::default(),
            include_stop: options.include_stop_str_in_output,
            output_tokens: 0,
            reasoning: options.split.as_ref().and_then(|split| ReasoningCount::of(&split.plan)),
            ended: false,
        };
        Self {
            source,
            samples: (0..request.n).map(|_| sample()).collect(),
            sampling: request.sampling.clone(),
            prompt_tokens: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
            cached_tokens: 0,
            prompt_logprobs: Vec::new(),
            lease,
            failed: false,
            detokenizing: Detokenizing::new(&request.trace),
        }
    }

    /// The next delta, possibly without text; `None` after the last sample's finish or after an error.
    pub async fn next(&mut self) -> Option<Result<TextDelta, Refusal>> {
        while !self.failed && !self.is_done() {
            let item = self.next_item().await;
            // A source that ends before its samples have finished is a bug.
            let taken = item.unwrap_or(Err(Refusal::Internal)).and_then(|delta| self.take(delta));
            match taken {
                Ok(None) => {}
                Ok(Some(delta)) => return Some(Ok(delta)),
                Err(refusal) => {
                    self.failed = true;
                    return Some(Err(refusal));
                }
            }
        }
        None
    }

    /// Next item of the source, or the end of this router's lease.
    async fn next_item(&mut self) -> Option<Result<TokenDelta, Refusal>> {
        if self.lease.is_over() {
            return Some(Err(Refusal::Draining));
        }
        // Fast path: an item that is already here needs no waiter for the end.
        if let Poll::Ready(item) = futures::poll!(self.source.next()) {
            return item;
        }
        tokio::select! {
            biased;
            () = self.lease.ended() => Some(Err(Refusal::Draining)),
            item = self.source.next() => item,
        }
    }

    /// Whether every sample has ended.
    pub fn is_done(&self) -> bool {
        self.samples.iter().all(|sample| sample.ended)
    }

    /// Token counts so far; complete once the stream has ended.
    pub fn usage(&self) -> Usage {
        self.usage_of(&self.samples)
    }

    /// The same, of one sample's output.
    pub fn usage_of_sample(&self, sample_index: u32) -> Usage {
        let at = sample_index as usize;
        self.usage_of(self.samples.get(at..=at).unwrap_or_default())
    }

    fn usage_of(&self, samples: &[Sample]) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: samples.iter().map(|sample| sample.output_tokens).sum(),
            cached_tokens: self.cached_tokens,
            reasoning_tokens: samples.iter().map(|sample| Some(sample.reasoning.as_ref()?.tokens())).sum(),
        }
    }

    /// See [`TokenSource::refuse`].
    pub fn refuse(&mut self) {
        self.source.refuse();
    }

    /// Name of the worker that generates now or generated last.
    pub fn worker(&self) -> Option<Arc<str>> {
        self.source.worker()
    }

    /// The request's moves so far; complete once the stream has ended.
    pub fn journey(&self) -> Journey {
        self.source.journey()
    }

    /// Log-probabilities of prompt positions from 1 on, if requested; complete once the first delta has
    /// arrived.
    pub fn prompt_logprobs(&self) -> &[TokenLogprobs] {
        &self.prompt_logprobs
    }

    fn take(&mut self, mut delta: TokenDelta) -> Result<Option<TextDelta>, Refusal> {
        self.prompt_logprobs.append(&mut delta.prompt_logprobs);
        self.cached_tokens = delta.cached_tokens.unwrap_or(self.cached_tokens);
        let Some(sample) = self.samples.get_mut(delta.sample_index as usize) else {
            tracing::error!(sample_index = delta.sample_index, "a delta for a sample that was not requested");
            return Err(Refusal::Internal);
        };
        if sample.ended || (delta.tokens.is_empty() && delta.finish.is_none()) {
            return Ok(None);
        }
        let sample_index = delta.sample_index;
        let detokenizing = self.detokenizing.begin();
        let out = sample.take(delta, &self.sampling);
        self.detokenizing.done(detokenizing);
        if matches!(out.finish, Some(TextFinish::Stop(StopCause::Text(_)))) {
            self.source.abort_sample(sample_index);
        }
        Ok(Some(out))
    }
}

/// Measures the text work of a sampled request.
struct Detokenizing {
    trace: trace::Request,
    first: Option<Timestamp>,
    busy: Duration,
}

impl Detokenizing {
    fn new(trace: &trace::Request) -> Self {
        let trace = if trace.is_sampled() { trace.clone() } else { trace::Request::default() };
        Self { trace, first: None, busy: Duration::ZERO }
    }

    fn begin(&self) -> Option<Timestamp> {
        self.trace.is_on().then(clock::now)
    }

    fn done(&mut self, begun: Option<Timestamp>) {
        if let Some(begun) = begun {
            self.first.get_or_insert(begun);
            self.busy += clock::now().since(begun);
        }
    }
}

impl Drop for Detokenizing {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            let busy = self.busy;
            self.trace.add(|| Part::new("detokenize", first, clock::now()).seconds("skein.busy_time", busy));
        }
    }
}

impl Sample {
    fn take(&mut self, delta: TokenDelta, sampling: &SamplingParams) -> TextDelta {
        let TokenDelta {
            sample_index, from_position, mut tokens, mut logprobs, finish, stop_logprobs, ..
        } = delta;
        let mut out = TextDelta { sample_index, from_position, ..TextDelta::default() };
        let (mut shown, mut piece) = (0, String::new());
        for token in tokens.iter().copied() {
            self.output_tokens += 1;
            shown += 1;
            if self.stop.is_empty() && self.reasoning.is_none() {
                // Nothing looks at the token's own text.
                let from = out.text.len();
                let begin = self.detokenizer.push(token, &mut out.text);
                self.marks.add(begin.map(|begin| begin - from), out.text.len() - from);
                continue;
            }
            piece.clear();
            let begin = self.push(token, &mut piece);
            if let Some(reasoning) = &mut self.reasoning {
                reasoning.push(&piece, begin.as_slice());
            }
            if let Some(stop) =
                self.stop.push(&piece, self.output_tokens > sampling.min_tokens, &mut out.text)
            {
                out.finish = Some(TextFinish::Stop(StopCause::Text(stop)));
                self.end();
                break;
            }
        }
        tokens.truncate(shown);
        logprobs.truncate(shown);
        (out.tokens, out.logprobs) = (tokens, logprobs);
        if let Some(finish) = finish.filter(|_| !self.ended) {
            self.end();
            out.finish = Some(self.flush(finish, sampling, &mut out.text));
            out.stop_logprobs = stop_logprobs;
        }
        out.control_at = self.marks.released(out.text.len());
        out
    }

    fn end(&mut self) {
        self.ended = true;
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish();
        }
    }

    /// Appends to `piece` the text that `token` completes. Returns where in it a control token begins.
    fn push(&mut self, token: TokenId, piece: &mut String) -> Option<usize> {
        let begin = self.detokenizer.push(token, piece);
        self.marks.add(begin, piece.len());
        begin
    }

    /// Appends the remaining text after the worker has ended the sample.
    fn flush(&mut self, finish: FinishReason, sampling: &SamplingParams, text: &mut String) -> TextFinish {
        let mut piece = String::new();
        if let FinishReason::Stop(Some(token)) = finish
            && self.include_stop
        {
            self.push(token, &mut piece);
        }
        self.detokenizer.finish(&mut piece);
        if let Some(stop) = self.stop.push(&piece, self.output_tokens > sampling.min_tokens, text) {
            return TextFinish::Stop(StopCause::Text(stop));
        }
        self.stop.finish(text);
        match finish {
            FinishReason::Stop(Some(token)) if sampling.stop_token_ids.contains(&token) => {
                TextFinish::Stop(StopCause::Token(token))
            }
            FinishReason::Stop(token) => TextFinish::Stop(StopCause::End(token)),
            FinishReason::Length => TextFinish::Length,
            FinishReason::Abort => TextFinish::Abort,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skein_choice::fleet::KnownAdapters;
    use skein_node::clock::Timestamp;
    use skein_proto::sampling::SamplingOptions;
    use skein_text::formats::{Formats, Opening};

    use super::*;
    use crate::config::RequestLimits;
    use crate::drain::Drain;
    use crate::generator::{FleetView, Generator};
    use crate::request::{Draft, Prompt};
    use crate::testing::{Say, Script, delta, finish, model_text, tokens};
    use crate::validate::{Offer, validate};

    async fn start(script: &Script, sampling: SamplingOptions) -> TextStream {
        let draft = Draft { prompt: Prompt::Text("hi".to_owned()), sampling, ..Draft::default() };
        let (text, limits) = (model_text(), script.model_limits().unwrap());
        let (request, options) = validate(
            draft,
            &text,
            Offer { model: &limits, adapters: &KnownAdapters::default() },
            &RequestLimits::default(),
            Timestamp::ZERO,
        )
        .unwrap();
        let source = script.submit(request.clone()).await.unwrap();
        TextStream::new(source, &request, &options, &text, Drain::default().enter().unwrap())
    }

    /// The text and the finish of sample 0, with its tokens split into deltas at `cuts`.
    async fn run(cuts: &[&[TokenId]], sampling: SamplingOptions) -> (String, Option<TextFinish>, u32) {
        let mut deltas: Vec<TokenDelta> =
            cuts.iter().map(|cut| TokenDelta { tokens: cut.to_vec(), ..TokenDelta::default() }).collect();
        deltas.push(finish(0, FinishReason::Length));
        let mut stream = start(&Script::of(deltas), sampling).await;
        let (mut text, mut end) = (String::new(), None);
        while let Some(delta) = stream.next().await {
            let delta = delta.unwrap();
            text.push_str(&delta.text);
            assert!(end.is_none(), "nothing comes after the finish");
            end = delta.finish;
        }
        (text, end, stream.usage().completion_tokens)
    }

    #[tokio::test]
    async fn a_stop_string_ends_its_sample_and_aborts_it() {
        let script = Script::of([
            delta(0, "ab EN"),
            delta(1, "xy"),
            delta(0, "D cd"),
            delta(1, "z"),
            delta(0, "late"),
            finish(1, FinishReason::Stop(Some(1))),
        ]);
        let sampling =
            SamplingOptions { n: Some(2), stop: vec!["END".to_owned()], ..SamplingOptions::default() };
        let mut stream = start(&script, sampling).await;
        let mut texts = [String::new(), String::new()];
        let mut ends = [None, None];
        while let Some(delta) = stream.next().await {
            let delta = delta.unwrap();
            texts[delta.sample_index as usize].push_str(&delta.text);
            ends[delta.sample_index as usize] = delta.finish;
        }
        assert_eq!(texts, ["ab ", "xyz"]);
        assert_eq!(ends[0], Some(TextFinish::Stop(StopCause::Text("END".to_owned()))));
        assert_eq!(ends[1], Some(TextFinish::Stop(StopCause::End(Some(1)))));
        assert_eq!(*script.aborted.lock().unwrap(), [0]);
        assert_eq!(
            stream.usage(),
            Usage { prompt_tokens: 3, completion_tokens: 6 + 3, cached_tokens: 1, reasoning_tokens: None }
        );
    }

    /// As vLLM 0.33 has it: a stop token is text where stop strings are, the end of the sequence is no
    /// reason.
    #[tokio::test]
    async fn a_stop_token_is_shown_where_stop_strings_are() {
        let stop = tokens("!")[0];
        for (last, include, skip, text, cause) in [
            (stop, true, true, "a!", StopCause::Token(stop)),
            (stop, false, true, "a", StopCause::Token(stop)),
            (1, true, true, "a", StopCause::End(Some(1))),
            (1, true, false, "a<|end|>", StopCause::End(Some(1))),
            (1, false, false, "a", StopCause::End(Some(1))),
        ] {
            let sampling = SamplingOptions {
                stop_token_ids: vec![i64::from(stop)],
                include_stop_str_in_output: include,
                skip_special_tokens: Some(skip),
                ..SamplingOptions::default()
            };
            let script = Script::of([delta(0, "a"), finish(0, FinishReason::Stop(Some(last)))]);
            let mut stream = start(&script, sampling).await;
            let (mut all, mut end) = (String::new(), None);
            while let Some(delta) = stream.next().await {
                let delta = delta.unwrap();
                all.push_str(&delta.text);
                end = delta.finish;
            }
            assert_eq!((all.as_str(), end), (text, Some(TextFinish::Stop(cause))));
        }
    }

    #[tokio::test]
    async fn control_tokens_are_told_from_their_spelling() {
        let end = 1;
        let first =
            TokenDelta { tokens: [tokens("a<|end|>|en"), vec![end]].concat(), ..TokenDelta::default() };
        let script = Script::of([first, delta(0, "b"), finish(0, FinishReason::Length)]);
        let (text, limits) = (model_text(), script.model_limits().unwrap());
        let offer = Offer { model: &limits, adapters: &KnownAdapters::default() };
        let draft = Draft { prompt: Prompt::Text("hi".to_owned()), ..Draft::default() };
        let (request, mut options) =
            validate(draft, &text, offer, &RequestLimits::default(), Timestamp::ZERO).unwrap();
        let formats = Formats::default().with(Some("openai"), None).unwrap();
        options.split = Some(Split { plan: Arc::new(plan_of(formats)), kept: Arc::new([end]) });
        // Holds back what may become the stop string.
        options.stop = vec!["|end|>!".to_owned()];
        let source = script.submit(request.clone()).await.unwrap();
        let mut stream =
            TextStream::new(source, &request, &options, &text, Drain::default().enter().unwrap());
        let (mut whole, mut control_at) = (String::new(), Vec::new());
        while let Some(delta) = stream.next().await {
            let delta = delta.unwrap();
            control_at.extend(delta.control_at.iter().map(|at| whole.len() + at));
            whole.push_str(&delta.text);
        }
        assert_eq!((whole.as_str(), control_at), ("a<|end|>|en<|end|>b", vec![11]));
    }

    fn plan_of(formats: Formats) -> Plan {
        let Formats { calls, reasoning, harmony } = formats;
        let (token_markers, functions) = (Arc::new(["<|end|>"]), Arc::new([]));
        Plan { calls, reasoning, opening: Opening::Fresh, harmony, token_markers, held: false, functions }
    }

    #[tokio::test]
    async fn a_source_that_ends_early_is_an_error() {
        let mut stream = start(&Script::of([delta(0, "a")]), SamplingOptions::default()).await;
        assert!(stream.next().await.unwrap().is_ok());
        assert!(matches!(stream.next().await, Some(Err(Refusal::Internal))));
        assert!(stream.next().await.is_none());
        let mut stream = start(&Script::of([delta(7, "a")]), SamplingOptions::default()).await;
        assert!(matches!(stream.next().await, Some(Err(Refusal::Internal))));
    }

    #[tokio::test]
    async fn a_refusal_is_the_last_item() {
        let say = vec![Say::Fail(Refusal::Draining), Say::Delta(delta(0, "a"))];
        let mut stream = start(&Script { say, ..Script::default() }, SamplingOptions::default()).await;
        assert!(matches!(stream.next().await, Some(Err(Refusal::Draining))));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stop_string_counts_only_after_min_tokens() {
        let sampling =
            SamplingOptions { min_tokens: Some(3), stop: vec!["a".to_owned()], ..SamplingOptions::default() };
        let (text, _, count) = run(&[&tokens("aabca")], sampling).await;
        assert_eq!((text.as_str(), count), ("aabc", 5));
    }

    proptest! {
        #[test]
        fn any_split_into_deltas_gives_the_same_text(
            text in "[ab😀é]{0,12}", stop in "[ab😀é]{1,3}", min_tokens in 0_i64..4, cut in 1_usize..6,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let sampling = SamplingOptions { stop: vec![stop], min_tokens: Some(min_tokens), ..SamplingOptions::default() };
            let whole = tokens(&text);
            let cuts: Vec<&[TokenId]> = whole.chunks(cut).collect();
            let one = runtime.block_on(run(&[&whole], sampling.clone()));
            prop_assert_eq!(runtime.block_on(run(&cuts, sampling)), one);
        }
    }
}
