//! Turns the engine's reports into times. It keeps one entry for each running or waiting request.

use std::collections::HashMap;
use std::sync::Arc;

use skein_node::clock::Timestamp;
use skein_node::metrics::IntCounter;
use skein_node::trace;
use skein_proto::finish::FinishReason;
use skein_proto::load::Load;

use super::phases::{Phases, Times};
use super::{CAPACITY, DEVICE, Metrics, OUTCOMES, POSITIONS, SLOT_USES, SOURCES};
use crate::kv_cache::StateCounts;
use crate::scheduler::{NewRequest, Note, RequestEvent, RequestKey};
use crate::streams::Counts;

/// The engine's end of the metrics.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    requests: HashMap<RequestKey, Request>,
}

/// Times of one request.
#[derive(Debug)]
struct Request {
    arrived: Timestamp,
    prompt_tokens: u32,
    started: Option<Timestamp>,
    first_token: Option<Timestamp>,
    samples: Vec<Sample>,
    span: Phases,
}

#[derive(Debug)]
struct Sample {
    index: u32,
    tokens: u32,
    latest: Option<Timestamp>,
}

impl Observer {
    /// Reports to `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, requests: HashMap::new() }
    }

    /// The scheduler took `request`.
    pub fn submitted(&mut self, request: &NewRequest, trace: trace::Request, now: Timestamp) {
        let sample = |index| Sample { index, tokens: 0, latest: None };
        let entry = Request {
            arrived: now,
            prompt_tokens: request.prompt.len() as u32,
            started: None,
            first_token: None,
            samples: request.samples.iter().map(|new| sample(new.index)).collect(),
            span: Phases::new(trace),
        };
        self.requests.insert(request.key, entry);
    }

    /// The scheduler refused the request that was [`submitted`](Self::submitted).
    pub fn refused(&mut self, key: RequestKey) {
        self.requests.remove(&key);
    }

    /// A step of `rows` tokens, planned at `planned`, gave its result.
    pub fn step(&mut self, rows: u32, planned: Timestamp, now: Timestamp) {
        self.metrics.steps.inc();
        self.metrics.iteration_tokens.observe(rows.into());
        self.metrics.step_time.observe(seconds(planned, now));
    }

    /// Work that no event tells.
    pub fn notes(&mut self, notes: &[Note]) {
        for note in notes {
            let (Note::Prefilled { request, .. }
            | Note::Preempted { request }
            | Note::Drafted { request, .. }) = note;
            if let Note::Drafted { drafted, accepted, .. } = note {
                self.drafted(*drafted, *accepted);
            }
            if let Some(request) = self.requests.get_mut(request) {
                request.span.note(*note);
            }
        }
    }

    fn drafted(&self, drafted: u32, accepted: u32) {
        let metrics = &self.metrics;
        metrics.drafts.inc();
        metrics.draft_tokens.inc_by(drafted.into());
        metrics.accepted_tokens.inc_by(accepted.into());
        for position in POSITIONS.iter().take(accepted as usize) {
            metrics.accepted_by_position.with_label_values(&[position]).inc();
        }
    }

    /// What happened in a step that was planned at `planned`.
    pub fn events(&mut self, events: &[RequestEvent], planned: Timestamp, now: Timestamp) {
        for event in events {
            let key = event.request();
            let Some(request) = self.requests.get_mut(&key) else { continue };
            match event {
                RequestEvent::Started { cached_tokens, .. } => {
                    request.start(planned, *cached_tokens, &self.metrics);
                }
                RequestEvent::PromptScored { .. }
                | RequestEvent::StopScored { .. }
                | RequestEvent::Pooled { .. } => {}
                RequestEvent::Token { sample, .. } => request.token(*sample, now, &self.metrics),
                RequestEvent::Finished { sample, reason, .. } => {
                    request.finish(*sample, reason_label(*reason), &self.metrics);
                    if request.samples.is_empty() {
                        request.end(now, &self.metrics);
                        if let Some(request) = self.requests.remove(&key) {
                            request.into_span("completed", now);
                        }
                    }
                }
            }
        }
    }

    /// The request was cancelled or handed back.
    pub fn gone(&mut self, key: RequestKey, now: Timestamp) {
        if let Some(request) = self.requests.remove(&key) {
            self.metrics.success.with_label_values(&["abort"]).inc_by(request.samples.len() as u64);
            request.into_span("ended_early", now);
        }
    }

    /// The state after a turn of the engine.
    pub fn state(&self, load: Load, states: Option<StateCounts>, counts: Counts, preemptions: u64) {
        let metrics = &self.metrics;
        metrics.running.set(load.running.into());
        metrics.waiting.set(load.waiting.into());
        metrics.waiting_by_reason.with_label_values(&[CAPACITY]).set(load.waiting.into());
        metrics.free_blocks.set(load.free_blocks.into());
        let blocks = metrics.kv_blocks.get() as f64;
        metrics.kv_usage.set(if blocks > 0.0 { 1.0 - f64::from(load.free_blocks) / blocks } else { 0.0 });
        if let Some(StateCounts { free, cached, held }) = states {
            for (name, slots) in SLOT_USES.iter().zip([free, cached, held]) {
                metrics.state_slots.with_label_values(&[name]).set(slots.into());
            }
        }
        raise(&metrics.preemptions, preemptions);
        metrics.streams.set(counts.running.try_into().unwrap_or(i64::MAX));
        let ended = [counts.completed, counts.errored, counts.cancelled, counts.handed_back];
        for (outcome, count) in OUTCOMES.iter().zip(ended) {
            raise(&metrics.outcomes.with_label_values(&[outcome]), count);
        }
    }
}

impl Request {
    fn into_span(self, outcome: &'static str, now: Timestamp) {
        let Self { arrived, started, first_token, prompt_tokens, span, .. } = self;
        span.end(&Times { arrived, started, first_token, ended: now }, prompt_tokens, outcome);
    }

    fn start(&mut self, planned: Timestamp, cached_tokens: u32, metrics: &Metrics) {
        self.span.cached_tokens = cached_tokens;
        self.started = Some(planned);
        metrics.queue_time.observe(seconds(self.arrived, planned));
        metrics.prompt_tokens.inc_by(self.prompt_tokens.into());
        metrics.request_prompt_tokens.observe(self.prompt_tokens.into());
        metrics.prefix_queries.inc_by(self.prompt_tokens.into());
        metrics.prefix_hits.inc_by(cached_tokens.into());
        metrics.cached_tokens.inc_by(cached_tokens.into());
        let computed = self.prompt_tokens.saturating_sub(cached_tokens);
        for (source, tokens) in SOURCES.iter().zip([computed, cached_tokens]) {
            metrics.prompt_by_source.with_label_values(&[source]).inc_by(tokens.into());
        }
        metrics.cached_by_source.with_label_values(&[DEVICE]).inc_by(cached_tokens.into());
    }

    fn token(&mut self, index: u32, now: Timestamp, metrics: &Metrics) {
        metrics.generation_tokens.inc();
        self.span.token(self.arrived, now);
        if self.first_token.is_none() {
            self.first_token = Some(now);
            metrics.time_to_first_token.observe(seconds(self.arrived, now));
            metrics.prefill_time.observe(seconds(self.started.unwrap_or(self.arrived), now));
        }
        if let Some(sample) = self.samples.iter_mut().find(|sample| sample.index == index) {
            sample.tokens += 1;
            if let Some(latest) = sample.latest.replace(now) {
                metrics.inter_token_latency.observe(seconds(latest, now));
            }
        }
    }

    fn finish(&mut self, index: u32, reason: &str, metrics: &Metrics) {
        if let Some(at) = self.samples.iter().position(|sample| sample.index == index) {
            let sample = self.samples.swap_remove(at);
            metrics.success.with_label_values(&[reason]).inc();
            metrics.request_generation_tokens.observe(sample.tokens.into());
        }
    }

    /// All samples have ended.
    fn end(&self, now: Timestamp, metrics: &Metrics) {
        metrics.e2e_latency.observe(seconds(self.arrived, now));
        metrics.request_preemptions.observe(self.span.preemptions.into());
        let computed = self.prompt_tokens.saturating_sub(self.span.cached_tokens);
        metrics.request_computed_tokens.observe(computed.into());
        if let Some(started) = self.started {
            metrics.inference_time.observe(seconds(started, now));
        }
        if let Some(first) = self.first_token {
            metrics.decode_time.observe(seconds(first, now));
        }
    }
}

fn reason_label(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

/// Raises a counter to a total that is counted elsewhere.
fn raise(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.since(from).as_secs_f64()
}
