//! What a request's server span says of its answer, in the words of OpenTelemetry's GenAI conventions.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_node::trace::{self, Attribute, Kept};
use skein_proto::sampling::SamplingParams;
use smallvec::SmallVec;

use crate::request::TokenRequest;

/// The answer's part of a server span.
pub(super) struct AnswerSpan {
    pub request: trace::Request,
    pub operation: &'static str,
    model: Arc<str>,
    sampling: Arc<SamplingParams>,
    finish_reasons: SmallVec<[&'static str; 1]>,
    latest: Option<Timestamp>,
    longest_wait: Duration,
}

/// Counts at the end of an answer.
pub(super) struct Counts {
    pub id: Arc<str>,
    pub outcome: &'static str,
    pub moves: u32,
    pub prompt_tokens: u64,
    pub cached_tokens: u32,
    pub output_tokens: u64,
    pub first_token: Option<Duration>,
}

impl AnswerSpan {
    pub fn new(request: &TokenRequest) -> Self {
        Self {
            request: request.trace.clone(),
            operation: request.operation,
            model: request.model.clone(),
            sampling: request.sampling.clone(),
            finish_reasons: SmallVec::new(),
            latest: None,
            longest_wait: Duration::ZERO,
        }
    }

    /// Tokens came at `now`.
    pub fn tokens(&mut self, arrived: Timestamp, now: Timestamp) {
        if !self.request.is_on() {
            return;
        }
        let since = self.latest.replace(now).unwrap_or(arrived);
        self.longest_wait = self.longest_wait.max(now.since(since));
    }

    /// A sample ended.
    pub fn finished(&mut self, reason: &'static str) {
        if self.request.is_on() {
            self.finish_reasons.push(reason);
        }
    }

    /// The answer ended.
    pub fn end(&mut self, counts: Counts) {
        if !self.request.is_on() {
            return;
        }
        if self.longest_wait >= trace::slow_after() {
            self.request.keep(Kept::Slow);
        }
        self.request.name(self.operation, self.model.clone());
        let finish_reasons = std::mem::take(&mut self.finish_reasons);
        self.request.set_all(|| {
            [
                ("gen_ai.operation.name", self.operation.into()),
                ("gen_ai.provider.name", "skein".into()),
                ("gen_ai.request.model", self.model.clone().into()),
                ("gen_ai.response.model", self.model.clone().into()),
                ("gen_ai.request.max_tokens", i64::from(self.sampling.max_tokens).into()),
                ("gen_ai.request.temperature", as_written(self.sampling.temperature).into()),
                ("gen_ai.request.top_p", as_written(self.sampling.top_p).into()),
                ("gen_ai.response.finish_reasons", Attribute::Words(finish_reasons)),
                ("skein.outcome", counts.outcome.into()),
                ("skein.longest_wait", self.longest_wait.as_secs_f64().into()),
            ]
        });
        // The API's own id, if it has one.
        self.request.set_default("gen_ai.response.id", counts.id);
        if let Some(after) = counts.first_token {
            // The conventions' name, and vLLM's.
            self.request.set("gen_ai.response.time_to_first_chunk", after.as_secs_f64());
            self.request.set("gen_ai.latency.time_to_first_token", after.as_secs_f64());
        }
        self.request.sum([
            ("gen_ai.usage.input_tokens", counts.prompt_tokens),
            ("gen_ai.usage.output_tokens", counts.output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", counts.cached_tokens.into()),
            ("skein.moves", counts.moves.into()),
        ]);
    }
}

/// The number that a client wrote: 0.7 and not 0.699999988079071, which is the same in 32 bits.
fn as_written(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exported_as_clients_write_them() {
        for value in [0.7, 0.8, 1.0, 0.0, 1e-5, 2.0] {
            assert_eq!(as_written(value as f32), value);
        }
    }
}
