//! Measurements of each request, and their totals. Pure: times are durations since the start.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// One request as its client saw it. Times count from the start of the run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// Planned send time. In an open loop the client may send later; a user would have waited for that delay
    /// as well.
    pub intended: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// When its first token arrived.
    pub first_token: Option<Duration>,
    /// Times between chunks with tokens.
    pub gaps: Vec<Duration>,
    /// When its last token arrived.
    pub end: Duration,
    /// Prompt tokens, by the server's count if it reports one.
    pub prompt_tokens: u64,
    /// Prompt tokens that the server found in a cache.
    pub cached_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Error type in one word, for counting; `None` = success.
    pub error: Option<String>,
    /// The server's error message, if it sent one.
    pub refusal: Option<String>,
}

impl Record {
    /// The kind of failure with the server's message.
    pub fn failure(&self) -> Option<String> {
        let kind = self.error.as_ref()?;
        Some(match &self.refusal {
            Some(refusal) => format!("{kind}: {refusal}"),
            None => kind.clone(),
        })
    }

    fn ttft(&self) -> Option<Duration> {
        self.first_token.map(|first| first.saturating_sub(self.sent))
    }

    fn ttft_from_intended(&self) -> Option<Duration> {
        self.first_token.map(|first| first.saturating_sub(self.intended))
    }

    fn end_to_end(&self) -> Duration {
        self.end.saturating_sub(self.sent)
    }

    /// `(end-to-end - TTFT) / (output_tokens - 1)`; none for a single token.
    fn tpot(&self) -> Option<Duration> {
        let rest = u32::try_from(self.output_tokens.checked_sub(1)?).ok().filter(|rest| *rest > 0)?;
        Some(self.end_to_end().saturating_sub(self.ttft()?) / rest)
    }
}

/// Latency targets, all of which a good request must meet; `None` = no target.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Targets {
    /// Time to first token.
    pub ttft: Option<Duration>,
    /// Time per output token.
    pub tpot: Option<Duration>,
    /// Duration of the whole request.
    pub e2el: Option<Duration>,
}

impl Targets {
    /// Reads `ttft:200`, `tpot:50`, `e2el:3000` (milliseconds).
    ///
    /// # Errors
    /// Names the target that does not parse.
    pub fn parse(targets: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for target in targets {
            let complaint =
                || format!("goodput target `{target}` is not like ttft:200, tpot:50 or e2el:3000 (ms)");
            let (name, millis) = target.split_once(':').ok_or_else(complaint)?;
            let millis: f64 = millis.parse().map_err(|_| complaint())?;
            let limit = Duration::try_from_secs_f64(millis / 1000.0).map_err(|_| complaint())?;
            match name {
                "ttft" => parsed.ttft = Some(limit),
                "tpot" => parsed.tpot = Some(limit),
                "e2el" | "e2e" => parsed.e2el = Some(limit),
                _ => return Err(complaint()),
            }
        }
        Ok(parsed)
    }

    /// Whether any target is set.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    fn met_by(&self, record: &Record) -> bool {
        let within = |limit: Option<Duration>, seen: Option<Duration>| match (limit, seen) {
            (Some(limit), Some(seen)) => seen <= limit,
            _ => true,
        };
        within(self.ttft, record.ttft_from_intended())
            && within(self.tpot, record.tpot())
            && within(self.e2el, Some(record.end.saturating_sub(record.intended)))
    }
}

/// Summary of durations, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Number of durations.
    pub count: usize,
    /// Arithmetic mean of the durations.
    pub mean: f64,
    /// Standard deviation of the durations.
    pub std: f64,
    /// Percentile 50, the median.
    pub p50: f64,
    /// Percentile 90 of the durations.
    pub p90: f64,
    /// Percentile 99 of the durations.
    pub p99: f64,
    /// The longest duration.
    pub max: f64,
}

impl Summary {
    /// Summarises `durations`; all zeros if there are none.
    pub fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let mut millis: Vec<f64> = durations.map(|duration| duration.as_secs_f64() * 1000.0).collect();
        millis.sort_unstable_by(f64::total_cmp);
        let count = millis.len();
        if count == 0 {
            return Self::default();
        }
        let mean = millis.iter().sum::<f64>() / count as f64;
        let variance = millis.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
        let at = |percent| percentile(&millis, percent);
        Self {
            count,
            mean,
            std: variance.sqrt(),
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            max: millis[count - 1],
        }
    }

    fn write(&self, name: &str, into: &mut Map<String, Value>) {
        for (statistic, value) in [
            ("mean", self.mean),
            ("median", self.p50),
            ("std", self.std),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("max", self.max),
        ] {
            into.insert(format!("{statistic}_{name}_ms"), json!(value));
        }
    }
}

/// Percentile of sorted values, interpolated linearly as in numpy.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = percent / 100.0 * last as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (rank - low as f64)
}

/// The totals of a run.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // the names of the JSON keys, which are vLLM's
pub struct Report {
    pub duration_s: f64,
    pub completed: usize,
    pub failed: usize,
    pub errors: BTreeMap<String, usize>,
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    pub cached_tokens: u64,
    pub request_throughput: f64,
    pub request_goodput: Option<f64>,
    pub output_throughput: f64,
    pub total_token_throughput: f64,
    pub ttft: Summary,
    pub ttft_from_intended: Summary,
    pub send_delay: Summary,
    pub tpot: Summary,
    pub itl: Summary,
    pub e2el: Summary,
}

impl Report {
    /// Totals of `records`. Latencies are those of completed requests; the run lasts until the last end,
    /// including the drain.
    pub fn of(records: &[Record], targets: &Targets) -> Self {
        let whole: Vec<&Record> = records.iter().filter(|record| record.error.is_none()).collect();
        let duration_s = records.iter().map(|record| record.end).max().unwrap_or_default().as_secs_f64();
        let rate = |amount: f64| if duration_s > 0.0 { amount / duration_s } else { 0.0 };
        let total = |count: fn(&Record) -> u64| whole.iter().map(|record| count(record)).sum::<u64>();
        let (input, output) = (total(|record| record.prompt_tokens), total(|record| record.output_tokens));
        let mut errors = BTreeMap::new();
        for kind in records.iter().filter_map(|record| record.error.clone()) {
            *errors.entry(kind).or_default() += 1;
        }
        let good = whole.iter().filter(|record| targets.met_by(record)).count();
        Self {
            duration_s,
            completed: whole.len(),
            failed: records.len() - whole.len(),
            errors,
            total_input_tokens: input,
            total_output_tokens: output,
            cached_tokens: total(|record| record.cached_tokens),
            request_throughput: rate(whole.len() as f64),
            request_goodput: targets.any().then(|| rate(good as f64)),
            output_throughput: rate(output as f64),
            total_token_throughput: rate((input + output) as f64),
            ttft: Summary::of(whole.iter().filter_map(|record| record.ttft())),
            ttft_from_intended: Summary::of(whole.iter().filter_map(|record| record.ttft_from_intended())),
            send_delay: Summary::of(whole.iter().map(|record| record.sent.saturating_sub(record.intended))),
            tpot: Summary::of(whole.iter().filter_map(|record| record.tpot())),
            itl: Summary::of(whole.iter().flat_map(|record| record.gaps.iter().copied())),
            e2el: Summary::of(whole.iter().map(|record| record.end_to_end())),
        }
    }

    /// Fraction of prompt tokens found in a cache, 0 to 1.
    pub fn cached_token_share(&self) -> f64 {
        if self.total_input_tokens == 0 {
            0.0
        } else {
            self.cached_tokens as f64 / self.total_input_tokens as f64
        }
    }

    /// As JSON with vLLM's key names.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let plain = [
            ("duration", json!(self.duration_s)),
            ("completed", json!(self.completed)),
            ("failed", json!(self.failed)),
            ("total_input_tokens", json!(self.total_input_tokens)),
            ("total_output_tokens", json!(self.total_output_tokens)),
            ("total_cached_tokens", json!(self.cached_tokens)),
            ("cached_token_share", json!(self.cached_token_share())),
            ("request_throughput", json!(self.request_throughput)),
            ("request_goodput", json!(self.request_goodput)),
            ("output_throughput", json!(self.output_throughput)),
            ("total_token_throughput", json!(self.total_token_throughput)),
            ("errors_by_kind", json!(self.errors)),
        ];
        map.extend(plain.map(|(name, value)| (name.to_owned(), value)));
        self.ttft.write("ttft", &mut map);
        self.ttft_from_intended.write("ttft_from_intended", &mut map);
        self.send_delay.write("send_delay", &mut map);
        self.tpot.write("tpot", &mut map);
        self.itl.write("itl", &mut map);
        self.e2el.write("e2el", &mut map);
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Sent 5 ms late at 105 ms, first token after 50 ms, then `tokens - 1` more, 10 ms apart.
    fn record(tokens: u64) -> Record {
        Record {
            intended: ms(100),
            sent: ms(105),
            first_token: Some(ms(155)),
            gaps: (1..tokens).map(|_| ms(10)).collect(),
            end: ms(155 + 10 * (tokens - 1)),
            prompt_tokens: 32,
            cached_tokens: 16,
            output_tokens: tokens,
            error: None,
            refusal: None,
        }
    }

    #[test]
    fn percentiles_agree_with_a_naive_count() {
        for length in 1..60_u32 {
            let sorted: Vec<f64> = (0..length).map(|index| f64::from(index * index)).collect();
            for percent in 0..=100_u32 {
                let exact = percentile(&sorted, f64::from(percent));
                let at_or_below = sorted.iter().filter(|value| **value <= exact).count();
                let strictly_below = sorted.iter().filter(|value| **value < exact).count();
                let rank = f64::from(percent) / 100.0 * f64::from(length - 1);
                assert!(at_or_below as f64 >= rank.floor() + 1.0, "{length} values, p{percent}: {exact}");
                assert!(strictly_below as f64 <= rank.ceil(), "{length} values, p{percent}: {exact}");
            }
        }
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 50.0), 2.5);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn a_stream_adds_up_and_lateness_of_the_client_is_not_hidden() {
        let report = Report::of(&[record(11)], &Targets::default());
        assert_eq!((report.completed, report.failed), (1, 0));
        assert_eq!(report.ttft.p50, 50.0);
        assert_eq!(report.ttft_from_intended.p50, 55.0);
        assert_eq!(report.tpot.p50, 10.0);
        assert_eq!(report.itl.count, 10);
        assert_eq!(report.e2el.p50, 150.0);
        assert_eq!(report.cached_token_share(), 0.5);
        assert!((report.duration_s - 0.255).abs() < 1e-9);
        assert!((report.output_throughput - 11.0 / 0.255).abs() < 1e-9);
        let json = report.to_json();
        for key in ["median_ttft_ms", "p99_itl_ms", "mean_tpot_ms", "p90_e2el_ms", "request_throughput"] {
            assert!(json[key].is_number(), "{key} is missing");
        }
    }

    #[test]
    fn failures_are_counted_by_kind_and_kept_out_of_latencies() {
        let failed = Record { error: Some("http 429".into()), end: ms(400), ..Record::default() };
        let report = Report::of(&[record(2), failed.clone(), failed], &Targets::default());
        assert_eq!((report.completed, report.failed), (1, 2));
        assert_eq!(report.errors["http 429"], 2);
        assert_eq!(report.e2el.count, 1);
        assert!((report.duration_s - 0.4).abs() < 1e-9);
    }

    #[test]
    fn goodput_counts_requests_that_met_every_target() {
        let check = |targets: &[&str], expected: f64| {
            let targets: Vec<String> = targets.iter().map(|target| (*target).to_owned()).collect();
            let targets = Targets::parse(&targets).expect("the targets parse");
            let report = Report::of(&[record(11), record(2)], &targets);
            let goodput = report.request_goodput.expect("targets are set") * report.duration_s;
            assert!((goodput - expected).abs() < 1e-9, "{targets:?}: {goodput}");
        };
        check(&["ttft:55"], 2.0);
        check(&["ttft:54"], 0.0);
        check(&["ttft:200", "tpot:10"], 2.0);
        check(&["tpot:9"], 0.0);
        check(&["e2el:100"], 1.0);
        assert!(Targets::parse(&["ttft=5".into()]).is_err());
        assert!(Targets::parse(&["speed:5".into()]).is_err());
    }
}
