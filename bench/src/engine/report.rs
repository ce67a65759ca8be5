//! Totals of engine runs, compared with the device's limits.

use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_model::cost::{Product, StepCost};

use super::ceiling::Ceiling;
use super::shares::{Least, Shares};
use crate::load::metrics::{Record, Summary, percentile};

/// A batch that ran alone, from its first prompt token to its last output token.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    /// Number of sequences.
    pub batch: usize,
    /// From the first submission to the last token.
    pub latency: Duration,
    /// From the first submission to the last first token: the prefill of the whole batch.
    pub prefill: Duration,
    /// Duration of a step while all sequences decoded; `None` if there was no such step. Prompts may take
    /// several steps, so sequences that start first also end first.
    pub decode_step: Option<Duration>,
    /// Output tokens per sequence.
    pub output_len: u32,
    /// Prompt tokens per sequence.
    pub input_len: u32,
}

impl Iteration {
    /// Computes it from the records of a batch.
    ///
    /// # Errors
    /// Names the first request that failed.
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
            decode_step: step_of_all(records),
            output_len,
            input_len,
        })
    }

    fn decode_tokens_per_second(&self) -> f64 {
        self.decode_step.map_or(0.0, |step| self.batch as f64 / step.as_secs_f64())
    }

    fn prefill_tokens_per_second(&self) -> f64 {
        self.batch as f64 * f64::from(self.input_len) / self.prefill.as_secs_f64()
    }
}

/// Duration of a step between the last first token and the first end: that period divided by the tokens that
/// the last sequence to start received in it.
fn step_of_all(records: &[Record]) -> Option<Duration> {
    let last = records.iter().max_by_key(|record| record.first_token)?;
    let (begin, first_end) = (last.first_token?, records.iter().map(|record| record.end).min()?);
    let (mut now, mut chunks) = (begin, 0u32);
    for gap in &last.gaps {
        if now + *gap > first_end {
            break;
        }
        (now, chunks) = (now + *gap, chunks + 1);
    }
    // A chunk is one token unless the reader was late.
    let tokens =
        f64::from(chunks) * last.output_tokens.saturating_sub(1) as f64 / last.gaps.len().max(1) as f64;
    (chunks > 0).then(|| (now - begin).div_f64(tokens.max(1.0)))
}

/// Summary of iterations of one size.
#[derive(Debug, Clone)]
pub struct LatencyReport {
    /// Duration of whole iterations.
    pub latency: Summary,
    /// Median output tokens per second during decode, all sequences together.
    pub decode_tokens_per_second: f64,
    /// Median prompt tokens per second during prefill.
    pub prefill_tokens_per_second: f64,
    /// Median duration of a decode step.
    pub decode_step: Duration,
    /// Bytes that a decode step must read: weights, and keys and values at the mean context.
    pub bytes_per_step: u64,
    /// Fractions of the device's limits used by a decode step.
    pub decode: Shares,
    /// Fractions of the device's limits used by prefill.
    pub prefill: Shares,
}

impl LatencyReport {
    /// Summarises `measured`: one or more iterations of one size, each with the limits measured at that time.
    pub fn of(measured: &[(Iteration, Ceiling)], cost: StepCost) -> Self {
        let median_of = |value: &dyn Fn(&(Iteration, Ceiling)) -> f64| {
            let mut values: Vec<f64> = measured.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            percentile(&values, 50.0)
        };
        let median = |value: &dyn Fn(&Iteration) -> f64| median_of(&|(iteration, _)| value(iteration));
        let shares = |shares: &dyn Fn(&Iteration, &Ceiling) -> Shares| Shares {
            reading: median_of(&|(iteration, ceiling)| shares(iteration, ceiling).reading),
            multiplying: median_of(&|(iteration, ceiling)| shares(iteration, ceiling).multiplying),
        };
        let median_time =
            |time: fn(&Iteration) -> Duration| Duration::from_secs_f64(median(&|it| time(it).as_secs_f64()));
        let decode_step = median_time(|it| it.decode_step.unwrap_or_default());
        let (batch, input_len, output_len) =
            measured.first().map_or((0, 0, 0), |(it, _)| (it.batch as u64, it.input_len, it.output_len));
        let context = f64::from(input_len) + f64::from(output_len) / 2.0;
        let kv_bytes = (batch * cost.kv_bytes_per_token) as f64 * context;
        Self {
            latency: Summary::of(measured.iter().map(|(iteration, _)| iteration.latency)),
            decode_tokens_per_second: median(&Iteration::decode_tokens_per_second),
            prefill_tokens_per_second: median(&Iteration::prefill_tokens_per_second),
            decode_step,
            bytes_per_step: cost.weight_bytes + kv_bytes as u64,
            decode: shares(&|it, ceiling| {
                Least::of_decode(batch, context, cost, ceiling).shares(it.decode_step.unwrap_or_default())
            }),
            prefill: shares(&|it, ceiling| {
                Least::of_prefill(batch, input_len, cost, ceiling).shares(it.prefill)
            }),
        }
    }

    /// JSON form: vLLM's keys (`avg_latency` and `percentiles` of whole batches, in seconds), then ours.
    /// Shares are fractions of the limits measured in the same run, see [`super::shares`]: `bandwidth_share`,
    /// `decode_multiply_share` and `decode_roofline_share` (the larger of the two) of a decode step,
    /// `matmul_share` of prefill.
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
            ("bandwidth_share", json!(self.decode.reading)),
            ("decode_multiply_share", json!(self.decode.multiplying)),
            ("decode_roofline_share", json!(self.decode.roofline())),
            ("matmul_share", json!(self.prefill.multiplying)),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Measured limits as JSON: `read_bytes_per_second`, `product` (the kind of multiplication that the weights'
/// format permits), its `flops_per_second`, and `multiply_per_second` of each kind that the device supports.
pub fn ceiling_json(ceiling: &Ceiling, product: Product) -> Map<String, Value> {
    let pairs = [
        ("read_bytes_per_second", json!(ceiling.read_bytes_per_second)),
        ("product", json!(product.name())),
        ("flops_per_second", json!(ceiling.flops(product))),
        ("multiply_per_second", json!({"f32": ceiling.f32, "bf16": ceiling.bf16, "int8": ceiling.int8})),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Measured limits as one line.
pub fn ceiling_line(ceiling: &Ceiling, product: Product) -> String {
    let read = ceiling.read_bytes_per_second / 1e9;
    let multiplied = match ceiling.flops(product) {
        Some(flops) => format!("multiplying {} {:.3} Top/s", product.name(), flops / 1e12),
        None => "multiplying not known".to_owned(),
    };
    format!("measured in this run: reading {read:.1} GB/s, {multiplied}")
}

/// Title and head of the table of batch sizes; a [`latency_row`] for each follows.
pub fn latency_head(title: &str, input_len: u32, output_len: u32, ceiling_line: &str) -> String {
    format!(
        "{title}, {input_len} tokens in, {output_len} out\n{ceiling_line}\n\n\
         {:>6}{:>12}{:>12}{:>14}{:>12}{:>13}{:>15}{:>12}\n",
        "batch",
        "batch p50 s",
        "step ms",
        "decode tok/s",
        "of reading",
        "of roofline",
        "prefill tok/s",
        "of multiply",
    )
}

/// Report of one batch size.
pub fn latency_row(batch: usize, report: &LatencyReport) -> String {
    format!(
        "{batch:>6}{:>12.3}{:>12.3}{:>14.1}{:>11.1}%{:>12.1}%{:>15.1}{:>11.1}%\n",
        report.latency.p50 / 1e3,
        report.decode_step.as_secs_f64() * 1e3,
        report.decode_tokens_per_second,
        report.decode.reading * 100.0,
        report.decode.roofline() * 100.0,
        report.prefill_tokens_per_second,
        report.prefill.multiplying * 100.0,
    )
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
            gaps: vec![ms(10); 9],
            end: ms(first + 90),
            prompt_tokens: 50,
            output_tokens: 10,
            ..Record::default()
        };
        let iteration = Iteration::of(&[record(60), record(110)], 50, 10).expect("both ended whole");
        assert_eq!((iteration.latency, iteration.prefill), (ms(190), ms(100)));
        // The sequence that started first also ends first; both ran in four steps.
        assert_eq!(iteration.decode_step, Some(ms(10)));
        let slow_alone = Record { gaps: [[ms(20); 4].as_slice(), &[ms(5); 5]].concat(), ..record(60) };
        let both = Iteration::of(&[slow_alone, Record { end: ms(140), ..record(20) }], 50, 10);
        assert_eq!(both.expect("both ended whole").decode_step, Some(ms(20)));
        let cost = StepCost {
            weight_bytes: 1000,
            weights: 500,
            head_weights: 20,
            kv_bytes_per_token: 2,
            product: Product::Bf16,
        };
        let ceiling =
            Ceiling { read_bytes_per_second: 244_000.0, f32: Some(1e6), bf16: Some(1e7), int8: None };
        let report = LatencyReport::of(&[(iteration, ceiling)], cost);
        assert!((report.decode_tokens_per_second - 200.0).abs() < 1e-6);
        assert_eq!(report.bytes_per_step, 1000 + 2 * 2 * 55);
        assert!((report.decode.reading - 0.5).abs() < 1e-9, "{:?}", report.decode);
        assert!((report.decode.multiplying - 0.02).abs() < 1e-9, "{:?}", report.decode);
        // 100 tokens meet 480 weights, two of them the head's 20, in 100 ms.
        assert!((report.prefill.multiplying - 0.09608).abs() < 1e-9, "{:?}", report.prefill);

        let failed = Record { error: Some("stopped".into()), ..record(60) };
        assert_eq!(Iteration::of(&[failed], 50, 10), Err("stopped".into()));
        let line = ceiling_line(&ceiling, cost.product);
        assert_eq!(line, "measured in this run: reading 0.0 GB/s, multiplying bf16 0.000 Top/s");
        let table = latency_head("m", 50, 10, &line) + &latency_row(2, &report);
        assert!(
            table.contains("     2       0.190      10.000         200.0       50.0%        50.0%"),
            "{table}"
        );
        let json = ceiling_json(&ceiling, cost.product);
        assert_eq!((&json["product"], &json["flops_per_second"]), (&json!("bf16"), &json!(1e7)));
        assert_eq!(json["multiply_per_second"], json!({"f32": 1e6, "bf16": 1e7, "int8": null}));
    }

    #[test]
    fn one_output_token_has_no_decode_step() {
        let iteration = Iteration {
            batch: 1,
            latency: Duration::from_secs(1),
            prefill: Duration::from_secs(1),
            decode_step: None,
            output_len: 1,
            input_len: 8,
        };
        assert_eq!(step_of_all(&[Record { first_token: Some(Duration::ZERO), ..Record::default() }]), None);
        let cost = StepCost { weight_bytes: 1, weights: 1, kv_bytes_per_token: 1, ..StepCost::default() };
        let ceiling = Ceiling { read_bytes_per_second: 1.0, f32: None, bf16: None, int8: None };
        assert_eq!(LatencyReport::of(&[(iteration, ceiling)], cost).decode, Shares::default());
    }
}
