//! Decides at a request's start whether it is sampled, and at its end whether it is exported.

use std::time::Duration;

use opentelemetry::trace::{Link, SpanKind, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, SamplingResult, ShouldSample, Span, SpanData, SpanProcessor,
};

use super::options::Sampling;
use super::{KEPT, export};

/// Records every request: it may yet fail. Those not sampled are told so to whom they call.
#[derive(Debug, Clone)]
pub(super) struct RecordAll(Sampler);

impl RecordAll {
    pub fn new(sampling: Sampling) -> Self {
        let root = match sampling.ratio {
            ratio if ratio >= 1.0 => Sampler::AlwaysOn,
            ratio if ratio <= 0.0 => Sampler::AlwaysOff,
            ratio => Sampler::TraceIdRatioBased(ratio),
        };
        Self(if sampling.follows_parent { Sampler::ParentBased(Box::new(root)) } else { root })
    }
}

impl ShouldSample for RecordAll {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.0.should_sample(parent, trace_id, name, kind, attributes, links);
        if result.decision == SamplingDecision::Drop {
            result.decision = SamplingDecision::RecordOnly;
        }
        result
    }
}

/// Queues the server spans that are sampled or kept.
#[derive(Debug)]
pub(super) struct Requests;

impl SpanProcessor for Requests {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        let sampled = span.span_context.is_sampled();
        if !sampled && !span.attributes.iter().any(|attribute| attribute.key.as_str() == KEPT) {
            return;
        }
        if !sampled {
            let own = &span.span_context;
            span.span_context = opentelemetry::trace::SpanContext::new(
                own.trace_id(),
                own.span_id(),
                own.trace_flags().with_sampled(true),
                false,
                own.trace_state().clone(),
            );
        }
        export::push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};

    use super::*;

    /// Share of 1000 traces that are sampled, per cent. `parent` is whether their parent is.
    fn sampled(sampling: Sampling, parent: Option<bool>) -> u32 {
        let sampler = RecordAll::new(sampling);
        let trace = |n: u128| {
            TraceId::from_bytes(n.wrapping_mul(0x9123_4567_89ab_cdef_8f1e_2d3c_4b5a_6979).to_be_bytes())
        };
        let decide = |n: u128| {
            let context = parent.map(|sampled| {
                let flags = TraceFlags::default().with_sampled(sampled);
                let span = SpanId::from_bytes([1; 8]);
                Context::new().with_remote_span_context(SpanContext::new(
                    trace(n),
                    span,
                    flags,
                    true,
                    TraceState::default(),
                ))
            });
            let result =
                sampler.should_sample(context.as_ref(), trace(n), "request", &SpanKind::Server, &[], &[]);
            assert_ne!(result.decision, SamplingDecision::Drop, "it may yet fail");
            u32::from(result.decision == SamplingDecision::RecordAndSample)
        };
        (1..=1000).map(decide).sum::<u32>() / 10
    }

    #[test]
    fn a_parent_decides_and_the_ratio_decides_without_one() {
        let by_parent = |ratio| Sampling { follows_parent: true, ratio };
        assert_eq!(sampled(by_parent(0.0), None), 0);
        assert_eq!(sampled(by_parent(1.0), None), 100);
        assert!((2..=8).contains(&sampled(by_parent(0.05), None)));
        assert_eq!(sampled(by_parent(0.0), Some(true)), 100);
        assert_eq!(sampled(by_parent(1.0), Some(false)), 0);
        let alone = |ratio| Sampling { follows_parent: false, ratio };
        assert_eq!(sampled(alone(1.0), Some(false)), 100);
        assert_eq!(sampled(alone(0.0), Some(true)), 0);
    }
}
