//! What runs on an engine add up to, beside what the device could do at most.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_worker::model::cost::StepCost;

use crate::load::metrics::{Record, Summary, percentile};

/// What the device can do at most, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Bytes a second of plain reading.
    pub read_bytes_per_second: f64,
    /// Floating-point operations a second of plain multiplication; `None` where there is nothing to measure it with.
    pub flops_per_second: Option<f64>,
}

/// One batch that ran alone from its first prompt token to its last output token.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    /// Sequences in it.
    pub batch: usize,
    /// First submission to last token.
    pub latency: Duration,
    /// First submission to the last of the first tokens: prefill of the whole batch.
    pub prefill: Duration,
    /// Output tokens of one sequence.
    pub output_len: u32,
    /// Prompt tokens of one sequence.
    pub input_len: u32,
}

impl Iteration {
    /// From a batch's records; an error names the first request that failed.
    ///
    /// # Errors
    /// A request that did not end whole.
    pub fn of(records: &[Record], input_len: u32, output_len: u32) -> Result<Self, String> {
        if let Some(failure) = records.iter().find_map(Record::failure) {
            return Err(failure);
        }
        let start = records.iter().map(|record| record.sent).min().unwrap_or_default();
        let latest = |time: fn(&Record) -> Duration| records.iter().map(time).max().unwrap_or_default();
        Ok(Self {
            batch: records.len(),
            latency: latest(|record| record.end).saturating_sub(start),
            prefill: latest(|record| record.first_token.unwrap_or_default()).saturating_sub(start),
            output_len,
            input_len,
        })
    }

    /// Time of one decode step: what follows the last first token, by the steps it took.
    pub fn decode_step(&self) -> Option<Duration> {
        let steps = self.output_len.checked_sub(1).filter(|steps| *steps > 0)?;
        Some(self.latency.saturating_sub(self.prefill) / steps)
    }

    fn decode_tokens_per_second(&self) -> f64 {
        self.decode_step().map_or(0.0, |step| self.batch as f64 / step.as_secs_f64())
    }

    fn prefill_tokens_per_second(&self) -> f64 {
        self.batch as f64 * f64::from(self.input_len) / self.prefill.as_secs_f64()
    }
}

/// Iterations of one shape, summed up.
#[derive(Debug, Clone)]
pub struct LatencyReport {
    /// Whole iterations.
    pub latency: Summary,
    /// Median output tokens a second while decoding, all sequences together.
    pub decode_tokens_per_second: f64,
    /// Median prompt tokens a second while prefilling.
    pub prefill_tokens_per_second: f64,
    /// Median time of a decode step.
    pub decode_step: Duration,
    /// Bytes that a decode step must read: weights, and keys and values at the mean context.
    pub bytes_per_step: u64,
    /// `bytes_per_step` over what plain reading would have moved meanwhile.
    pub bandwidth_share: f64,
    /// Operations of prefill over what plain multiplication would have done meanwhile; 0 when that is not known.
    pub matmul_share: f64,
}

impl LatencyReport {
    /// Sums `iterations` up (at least one, all of one shape).
    pub fn of(iterations: &[Iteration], cost: StepCost, ceiling: Ceiling) -> Self {
        let median = |value: &dyn Fn(&Iteration) -> f64| {
            let mut values: Vec<f64> = iterations.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            percentile(&values, 50.0)
        };
        let step = median(&|iteration| iteration.decode_step().unwrap_or_default().as_secs_f64());
        let prefill_tokens_per_second = median(&Iteration::prefill_tokens_per_second);
        let (batch, context) = iterations.first().map_or((0, 0.0), |iteration| {
            (iteration.batch as u64, f64::from(iteration.input_len) + f64::from(iteration.output_len) / 2.0)
        });
        let kv_bytes = (batch * cost.kv_bytes_per_token) as f64 * context;
        let bytes_per_step = cost.weight_bytes + kv_bytes as u64;
        let share = |rate: f64, most: f64| if most > 0.0 { rate / most } else { 0.0 };
        Self {
            latency: Summary::of(iterations.iter().map(|iteration| iteration.latency)),
            decode_tokens_per_second: median(&Iteration::decode_tokens_per_second),
            prefill_tokens_per_second,
            decode_step: Duration::from_secs_f64(step),
            bytes_per_step,
            bandwidth_share: if step > 0.0 {
                share(bytes_per_step as f64 / step, ceiling.read_bytes_per_second)
            } else {
                0.0
            },
            matmul_share: share(
                2.0 * cost.weights as f64 * prefill_tokens_per_second,
                ceiling.flops_per_second.unwrap_or(0.0),
            ),
        }
    }

    /// As JSON: vLLM's keys, then ours.
    pub fn to_json(&self) -> Map<String, Value> {
        let seconds = |millis: f64| json!(millis / 1000.0);
        let pairs = [
            ("avg_latency", seconds(self.latency.mean)),
            (
                "percentiles",
                json!({"50": self.latency.p50 / 1e3, "90": self.latency.p90 / 1e3, "99": self.latency.p99 / 1e3}),
            ),
            ("decode_tokens_per_second", json!(self.decode_tokens_per_second)),
            ("prefill_tokens_per_second", json!(self.prefill_tokens_per_second)),
            ("decode_step_ms", json!(self.decode_step.as_secs_f64() * 1e3)),
            ("bytes_per_step", json!(self.bytes_per_step)),
            ("bandwidth_share", json!(self.bandwidth_share)),
            ("matmul_share", json!(self.matmul_share)),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Reports of several batch sizes as a table.
pub fn latency_table(
    title: &str,
    input_len: u32,
    output_len: u32,
    ceiling: Ceiling,
    results: &[(usize, LatencyReport)],
) -> String {
    let mut out = format!("{title}, {input_len} tokens in, {output_len} out\n");
    // Writing to a String cannot fail; here and below.
    let _ = writeln!(
        out,
        "measured in this run: reading {:.1} GB/s, multiplying {:.2} TFLOP/s\n\n{:>6}{:>12}{:>12}{:>14}{:>12}{:>14}{:>12}",
        ceiling.read_bytes_per_second / 1e9,
        ceiling.flops_per_second.unwrap_or(0.0) / 1e12,
        "batch",
        "batch p50 s",
        "step ms",
        "decode tok/s",
        "of reading",
        "prefill tok/s",
        "of matmul",
    );
    for (batch, report) in results {
        let _ = writeln!(
            out,
            "{batch:>6}{:>12.3}{:>12.3}{:>14.1}{:>11.1}%{:>14.1}{:>11.1}%",
            report.latency.p50 / 1e3,
            report.decode_step.as_secs_f64() * 1e3,
            report.decode_tokens_per_second,
            report.bandwidth_share * 100.0,
            report.prefill_tokens_per_second,
            report.matmul_share * 100.0,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_is_split_at_the_last_first_token() {
        let ms = Duration::from_millis;
        let record = |first: u64| Record {
            sent: ms(10),
            first_token: Some(ms(first)),
            end: ms(first + 90),
            prompt_tokens: 50,
            output_tokens: 10,
            ..Record::default()
        };
        let iteration = Iteration::of(&[record(60), record(110)], 50, 10).expect("both ended whole");
        assert_eq!((iteration.latency, iteration.prefill), (ms(190), ms(100)));
        assert_eq!(iteration.decode_step(), Some(ms(10)));
        let cost = StepCost { weight_bytes: 1000, weights: 500, kv_bytes_per_token: 2 };
        let ceiling = Ceiling { read_bytes_per_second: 244_000.0, flops_per_second: Some(1e7) };
        let report = LatencyReport::of(&[iteration], cost, ceiling);
        assert!((report.decode_tokens_per_second - 200.0).abs() < 1e-6);
        assert_eq!(report.bytes_per_step, 1000 + 2 * 2 * 55);
        assert!((report.bandwidth_share - 0.5).abs() < 1e-9, "{}", report.bandwidth_share);
        assert!((report.matmul_share - 0.1).abs() < 1e-9, "{}", report.matmul_share);

        let failed = Record { error: Some("stopped".into()), ..record(60) };
        assert_eq!(Iteration::of(&[failed], 50, 10), Err("stopped".into()));
        let table = latency_table("m", 50, 10, ceiling, &[(2, report)]);
        assert!(table.contains("     2       0.190      10.000         200.0       50.0%"), "{table}");
    }

    #[test]
    fn one_output_token_has_no_decode_step() {
        let iteration = Iteration {
            batch: 1,
            latency: Duration::from_secs(1),
            prefill: Duration::from_secs(1),
            output_len: 1,
            input_len: 8,
        };
        assert_eq!(iteration.decode_step(), None);
        let cost = StepCost { weight_bytes: 1, weights: 1, kv_bytes_per_token: 1 };
        let ceiling = Ceiling { read_bytes_per_second: 1.0, flops_per_second: None };
        assert_eq!(LatencyReport::of(&[iteration], cost, ceiling).bandwidth_share, 0.0);
    }
}
