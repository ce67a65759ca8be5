//! The spans of a request's phases in the engine: queue, prefill, decode.

use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_node::trace::{self, Kept, Part};

use crate::scheduler::Note;

/// What a request's spans will say.
#[derive(Debug)]
pub(super) struct Phases {
    trace: trace::Request,
    pub cached_tokens: u32,
    chunks: u32,
    prefilled_tokens: u32,
    pub preemptions: u32,
    drafted: u32,
    accepted: u32,
    output_tokens: u32,
    latest: Option<Timestamp>,
    longest_wait: Duration,
}

/// The moments between the phases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub arrived: Timestamp,
    pub started: Option<Timestamp>,
    pub first_token: Option<Timestamp>,
    pub ended: Timestamp,
}

impl Phases {
    pub fn new(trace: trace::Request) -> Self {
        Self {
            trace,
            cached_tokens: 0,
            chunks: 0,
            prefilled_tokens: 0,
            preemptions: 0,
            drafted: 0,
            accepted: 0,
            output_tokens: 0,
            latest: None,
            longest_wait: Duration::ZERO,
        }
    }

    pub fn note(&mut self, note: Note) {
        match note {
            Note::Prefilled { rows, .. } => {
                self.chunks += 1;
                self.prefilled_tokens += rows;
            }
            Note::Preempted { .. } => self.preemptions += 1,
            Note::Drafted { drafted, accepted, .. } => {
                self.drafted += drafted;
                self.accepted += accepted;
            }
        }
    }

    pub fn token(&mut self, arrived: Timestamp, now: Timestamp) {
        if !self.trace.is_on() {
            return;
        }
        self.output_tokens += 1;
        let since = self.latest.replace(now).unwrap_or(arrived);
        self.longest_wait = self.longest_wait.max(now.since(since));
    }

    /// Adds the spans of a request that has ended.
    pub fn end(self, times: &Times, prompt_tokens: u32, outcome: &'static str) {
        let trace = &self.trace;
        if !trace.is_on() {
            return;
        }
        if self.longest_wait >= trace::slow_after() {
            trace.keep(Kept::Slow);
        }
        trace.set("gen_ai.operation.name", "generate_content");
        trace.set("gen_ai.provider.name", "skein");
        trace.set("gen_ai.usage.input_tokens", i64::from(prompt_tokens));
        trace.set("gen_ai.usage.output_tokens", i64::from(self.output_tokens));
        trace.set("gen_ai.usage.cache_read.input_tokens", i64::from(self.cached_tokens));
        trace.set("skein.outcome", outcome);
        trace.set("skein.longest_wait", self.longest_wait.as_secs_f64());
        let Times { arrived, started, first_token, ended } = *times;
        trace.add(|| Part::new("queue", arrived, started.unwrap_or(ended)));
        let Some(started) = started else { return };
        trace.add(|| {
            Part::new("prefill", started, first_token.unwrap_or(ended))
                .count("skein.prefill.chunks", self.chunks)
                .count("skein.prefill.tokens", self.prefilled_tokens)
                .count("skein.cached_tokens", self.cached_tokens)
        });
        let Some(first_token) = first_token else { return };
        trace.add(|| {
            Part::new("decode", first_token, ended)
                .count("skein.tokens", self.output_tokens)
                .count("skein.preemptions", self.preemptions)
                .count("skein.draft_tokens", self.drafted)
                .count("skein.accepted_tokens", self.accepted)
        });
    }
}
