//! A generator that observes its requests: when tokens arrive, and how each request ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use skein_choice::receipt::Receipts;
use skein_node::clock::{self, Timestamp};
use skein_node::trace::{self, Observation};
use skein_proto::finish::FinishReason;
use smallvec::SmallVec;

use super::recent::Ended;
use super::span::{AnswerSpan, Counts};
use super::{DEVICE, Metrics, Outcome, SOURCES, TenantMetrics};
use crate::generator::{Generator, TokenSource};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Journey, TokenDelta, TokenRequest};
use crate::request_lines::REQUEST_LINES;
use crate::tenants::Charge;
use crate::tenants::usage_log::Usage;

/// What the log shows for a client that left before the end, as nginx does.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Observes every request of `inner`.
pub struct Metered {
    inner: Arc<dyn Generator>,
    metrics: Arc<Metrics>,
}

impl Metered {
    /// Reports the requests of `inner` to `metrics`.
    pub fn new(inner: Arc<dyn Generator>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }
}

impl Generator for Metered {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        let trace = request.trace.clone();
        let charge = match Charge::begin(&request, clock::now()) {
            Ok(charge) => charge,
            Err(refusal) => {
                self.metrics.refused(&refusal);
                self.metrics
                    .tenants()
                    .zip(request.tenant.key())
                    .inspect(|(tenants, key)| tenants.limited(key));
                refusal.trace(&trace);
                return Box::pin(std::future::ready(Err(refusal)));
            }
        };
        let mut answer = Answer::new(&request, self.metrics.clone(), charge);
        let submitted = trace::within(trace.clone(), self.inner.submit(request));
        Box::pin(async move {
            match submitted.await {
                Ok(source) => {
                    answer.accepted();
                    Ok(Box::new(Observed { source, answer, trace }) as Box<dyn TokenSource>)
                }
                Err(refusal) => {
                    answer.metrics.refused(&refusal);
                    refusal.trace(&trace);
                    Err(refusal)
                }
            }
        })
    }

    fn leave(&self) {
        self.inner.leave();
    }
}

/// A stream with its observations.
struct Observed {
    source: Box<dyn TokenSource>,
    answer: Answer,
    /// Entered at each poll.
    trace: trace::Request,
}

impl Stream for Observed {
    type Item = Result<TokenDelta, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { source, answer, trace } = &mut *self;
        let _entered = trace::enter(trace);
        let item = ready!(Pin::new(&mut *source).poll_next(context));
        if !matches!(item, Some(Ok(_))) {
            answer.worker = source.worker();
            answer.moves = source.journey().moves;
        }
        match &item {
            Some(Ok(delta)) => answer.delta(delta, clock::now()),
            Some(Err(refusal)) => answer.failed(refusal),
            None => answer.end(Outcome::Completed),
        }
        Poll::Ready(item)
    }
}

impl TokenSource for Observed {
    fn abort_sample(&mut self, sample_index: u32) {
        // This router saw a stop string.
        self.answer.finish(sample_index, "stop");
        self.source.abort_sample(sample_index);
    }

    fn refuse(&mut self) {
        self.answer.is_refused = true;
        self.source.refuse();
    }

    fn worker(&self) -> Option<Arc<str>> {
        self.source.worker()
    }

    fn journey(&self) -> Journey {
        self.source.journey()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let Self { source, answer, trace } = self;
        let Journey { moves, .. } = source.journey();
        let _entered = trace::enter(trace);
        answer.metrics.moves.inc_by(moves.into());
        answer.metrics.moved.inc_by((moves > 0).into());
        answer.worker = source.worker();
        answer.moves = moves;
        answer.dropped();
    }
}

/// Observations of one request.
struct Answer {
    metrics: Arc<Metrics>,
    /// Its share of the limits of its key.
    charge: Charge,
    model: Arc<str>,
    id: Arc<str>,
    /// What the log says of it.
    status: u16,
    worker: Option<Arc<str>>,
    moves: u32,
    cached_tokens: u32,
    arrived: Timestamp,
    prompt_tokens: u64,
    max_tokens: u32,
    resumes: bool,
    has_begun: bool,
    has_ended: bool,
    /// Whether its call is refused.
    is_refused: bool,
    /// Whether no worker had room for it: it costs as little as if the queue here had been full.
    has_no_room: bool,
    samples: SmallVec<[Sample; 1]>,
    span: AnswerSpan,
    /// Code of the error that ended it.
    error: Option<&'static str>,
    tenant: Tenant,
    receipts: Option<Receipts>,
    placed: Option<Timestamp>,
}

#[derive(Clone, Default)]
struct Sample {
    tokens: u64,
    first: Option<Timestamp>,
    latest: Option<Timestamp>,
    finished: bool,
}

impl Sample {
    /// Mean time between its tokens.
    fn per_token(&self) -> Option<Duration> {
        let (first, latest) = (self.first?, self.latest?);
        (self.tokens > 1).then(|| latest.since(first).div_f64((self.tokens - 1) as f64))
    }
}

impl Answer {
    fn new(request: &TokenRequest, metrics: Arc<Metrics>, charge: Charge) -> Self {
        Self {
            metrics,
            charge,
            model: request.shown_model().clone(),
            id: request.id.clone(),
            status: 200,
            worker: None,
            moves: 0,
            cached_tokens: 0,
            arrived: request.arrived.unwrap_or_else(clock::now),
            prompt_tokens: request.prompt.len() as u64,
            max_tokens: request.sampling.max_tokens,
            resumes: request.resume.is_some() || request.is_resumed,
            has_begun: false,
            has_ended: false,
            is_refused: false,
            has_no_room: false,
            samples: SmallVec::from_elem(Sample::default(), request.n as usize),
            span: AnswerSpan::new(request),
            error: None,
            tenant: request.tenant.clone(),
            receipts: request.receipts.clone(),
            placed: None,
        }
    }

    fn accepted(&mut self) {
        self.placed = Some(clock::now());
        self.metrics.requests.inc();
        self.metrics.resumed.inc_by(self.resumes.into());
    }

    fn delta(&mut self, delta: &TokenDelta, now: Timestamp) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.metrics.tokens.prompt_tokens.inc_by(self.prompt_tokens);
            self.metrics.tokens.request_prompt_tokens.observe(self.prompt_tokens as f64);
        }
        if let Some(cached) = delta.cached_tokens {
            self.cached_tokens = cached;
            self.metrics.tokens.prefix_queries.inc_by(self.prompt_tokens);
            self.metrics.tokens.prefix_hits.inc_by(cached.into());
            self.metrics.tokens.cached_tokens.inc_by(cached.into());
            let computed = self.prompt_tokens.saturating_sub(cached.into());
            for (source, tokens) in SOURCES.iter().zip([computed, cached.into()]) {
                self.metrics.tokens.prompt_by_source.with_label_values(&[source]).inc_by(tokens);
            }
            self.metrics.tokens.cached_by_source.with_label_values(&[DEVICE]).inc_by(cached.into());
        }
        self.tokens(delta.sample_index, delta.tokens.len() as u64, now);
        if let Some(finish) = delta.finish {
            let reason = match finish {
                FinishReason::Stop(_) => "stop",
                FinishReason::Length => "length",
                FinishReason::Abort => "abort",
            };
            self.finish(delta.sample_index, reason);
        }
    }

    fn tokens(&mut self, sample_index: u32, count: u64, now: Timestamp) {
        if count == 0 {
            return;
        }
        // The first token of a resumed answer came from another router.
        self.span.tokens(self.arrived, now);
        let is_first = !self.resumes && self.samples.iter().all(|sample| sample.first.is_none());
        let Some(sample) = self.samples.get_mut(sample_index as usize) else { return };
        if is_first {
            self.metrics.latencies.time_to_first_token.observe(now.since(self.arrived).as_secs_f64());
        }
        sample.first.get_or_insert(now);
        if let Some(latest) = sample.latest.replace(now) {
            let gap = now.since(latest).as_secs_f64() / count as f64;
            (0..count).for_each(|_| self.metrics.latencies.inter_token_latency.observe(gap));
        }
        sample.tokens += count;
        self.metrics.tokens.generation_tokens.inc_by(count);
    }

    /// The end of one sample; the first reason counts.
    fn finish(&mut self, sample_index: u32, reason: &'static str) {
        let Some(sample) = self.samples.get_mut(sample_index as usize).filter(|sample| !sample.finished)
        else {
            return;
        };
        sample.finished = true;
        self.span.finished(reason);
        self.metrics.success.with_label_values(&[reason]).inc();
        self.metrics.tokens.request_generation_tokens.observe(sample.tokens as f64);
        self.metrics.params.max_tokens.observe(self.max_tokens.into());
        if let Some(mean) = sample.per_token() {
            self.metrics.latencies.time_per_output_token.observe(mean.as_secs_f64());
        }
    }

    fn failed(&mut self, refusal: &Refusal) {
        self.status = refusal.http().status;
        self.has_no_room = !self.has_begun && refusal.retry_after().is_some();
        self.error = Some(refusal.http().code.unwrap_or("invalid_request"));
        refusal.trace(&self.span.request);
        let is_lost =
            matches!(refusal, Refusal::WorkersLost { .. } | Refusal::VersionGone | Refusal::Internal);
        self.metrics.lost.inc_by(is_lost.into());
        self.finish_all("error");
        self.end(Outcome::Failed);
    }

    fn dropped(&mut self) {
        if !self.has_ended {
            // After a stop string the worker does not report the sample's end.
            let is_whole = self.has_begun && self.samples.iter().all(|sample| sample.finished);
            self.finish_all("abort");
            if !is_whole {
                self.status = CLIENT_CLOSED_REQUEST;
            }
            self.end(if is_whole { Outcome::Completed } else { Outcome::Cancelled });
        }
    }

    /// The request's line in the log: nothing of what its client wrote but its id.
    fn log(&self, outcome: Outcome) {
        let ms = |until: Timestamp| until.since(self.arrived).as_millis() as u64;
        tracing::info!(
            target: REQUEST_LINES,
            request = &*self.id,
            tenant = self.charge.key().map(|key| &*key.tenant),
            key = self.charge.key().map(|key| &*key.id),
            status = self.status,
            outcome = outcome.label(),
            code = self.error,
            prompt_tokens = self.prompt_tokens,
            cached_tokens = self.cached_tokens,
            output_tokens = self.output_tokens(),
            ttft_ms = self.first_token().map(|after| after.as_millis() as u64),
            total_ms = ms(clock::now()),
            worker = self.worker.as_deref(),
            moves = self.moves,
            "request"
        );
    }

    /// Adds it to the latest requests.
    fn remember(&self, outcome: Outcome, now: Timestamp) {
        let total = now.since(self.arrived);
        self.metrics.recent.add(Ended {
            arrived: clock::unix_time().saturating_sub(total),
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            model: self.model.clone(),
            status: self.status,
            outcome: outcome.label(),
            code: self.error,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens(),
            placed: self.placed.map(|placed| placed.since(self.arrived)),
            first_token: self.first_token(),
            total,
            worker: self.worker.clone(),
            moves: self.moves,
            receipts: self.receipts.clone(),
        });
    }

    /// Corrects what the request took from limits, and records what it used.
    fn account(&mut self, outcome: Outcome, now: Timestamp) {
        let key = self.charge.key().cloned();
        let wants = |tenants: &&TenantMetrics| !self.is_refused && tenants.wants(key.as_deref());
        if let Some(tenants) = self.metrics.tenants().filter(wants) {
            // A request whose prompt was not computed yet has used nothing.
            let prompt_tokens = if self.has_begun { self.prompt_tokens } else { 0 };
            tenants.ended(Usage {
                prompt_tokens,
                cached_tokens: self.cached_tokens.into(),
                output_tokens: self.output_tokens(),
                outcome: outcome.label(),
                duration: now.since(self.arrived),
                ..TenantMetrics::usage(self.id.to_string(), key.as_deref(), self.model.clone())
            });
        }
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens.into());
        let prompt = if self.has_begun { computed } else { 0 };
        if self.is_refused || self.has_no_room {
            self.charge.refund();
        } else {
            self.charge.settle(prompt + self.output_tokens(), now);
        }
    }

    fn output_tokens(&self) -> u64 {
        self.samples.iter().map(|sample| sample.tokens).sum()
    }

    /// From its arrival to its first token.
    fn first_token(&self) -> Option<Duration> {
        let first = self.samples.iter().filter_map(|sample| sample.first).min();
        first.map(|first| first.since(self.arrived))
    }

    /// The metrics by OTLP, if they are on.
    fn record_gen_ai(&self, now: Timestamp) {
        let Some(gen_ai) = &self.metrics.gen_ai else { return };
        let longest = self.samples.iter().max_by_key(|sample| sample.tokens);
        gen_ai.record(&Observation {
            operation: self.span.operation,
            duration: now.since(self.arrived),
            first_token: self.first_token().filter(|_| !self.resumes),
            per_token: longest.and_then(Sample::per_token),
            error: self.error,
        });
    }

    fn finish_all(&mut self, reason: &'static str) {
        (0..self.samples.len() as u32).for_each(|index| self.finish(index, reason));
    }

    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.metrics.outcomes.with_label_values(&[outcome.label()]).inc();
            let now = clock::now();
            self.metrics.latencies.e2e_latency.observe(now.since(self.arrived).as_secs_f64());
            self.metrics.params.n.observe(self.samples.len() as f64);
            let most = self.samples.iter().map(|sample| sample.tokens).max().unwrap_or(0);
            self.metrics.tokens.request_most_generation_tokens.observe(most as f64);
            if self.has_begun {
                let computed = self.prompt_tokens.saturating_sub(self.cached_tokens.into());
                self.metrics.tokens.request_computed_tokens.observe(computed as f64);
            }
            self.record_gen_ai(now);
            self.log(outcome);
            self.account(outcome, now);
            self.remember(outcome, now);
            self.span.end(Counts {
                id: std::mem::take(&mut self.id),
                outcome: outcome.label(),
                moves: self.moves,
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached_tokens,
                output_tokens: self.output_tokens(),
                first_token: self.first_token(),
            });
        }
    }
}
