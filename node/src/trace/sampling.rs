//! Sampling decision at the start of a request.

use opentelemetry::trace::TraceId;

use super::options::Sampling;

impl Sampling {
    /// Whether a request is sampled. `parent` is the caller's decision, if any.
    pub(super) fn samples(&self, trace: TraceId, parent: Option<bool>) -> bool {
        parent.filter(|_| self.follows_parent).unwrap_or_else(|| self.is_in_ratio(trace))
    }

    /// OpenTelemetry's `TraceIdRatioBased`, so that any process with the same ratio samples the same traces.
    fn is_in_ratio(&self, trace: TraceId) -> bool {
        const ALL: f64 = (1_u64 << 63) as f64;
        let [.., a, b, c, d, e, f, g, h] = trace.to_bytes();
        let drawn = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        self.ratio >= 1.0 || drawn < (self.ratio.max(0.0) * ALL) as u64
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanKind;
    use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

    use super::*;

    fn trace(n: u128) -> TraceId {
        TraceId::from_bytes(n.wrapping_mul(0x9123_4567_89ab_cdef_8f1e_2d3c_4b5a_6979).to_be_bytes())
    }

    /// Percentage of 1000 traces that are sampled. `parent` is the caller's decision.
    fn sampled(sampling: Sampling, parent: Option<bool>) -> u32 {
        (1..=1000).map(|n| u32::from(sampling.samples(trace(n), parent))).sum::<u32>() / 10
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

    #[test]
    fn the_same_traces_are_sampled_as_by_opentelemetry() {
        for ratio in [0.0, 0.001, 0.05, 0.5, 0.99, 1.0] {
            let theirs = Sampler::TraceIdRatioBased(ratio);
            let ours = Sampling { follows_parent: true, ratio };
            for n in 1..=1000 {
                let id = trace(n);
                let decided = theirs.should_sample(None, id, "request", &SpanKind::Server, &[], &[]).decision;
                assert_eq!(
                    ours.samples(id, None),
                    decided == SamplingDecision::RecordAndSample,
                    "{ratio} {id}"
                );
            }
        }
    }
}
