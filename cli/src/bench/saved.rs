//! Compares saved results: those of `bench serve` as a table and as plots, those of `bench batching` as a
//! table.

use std::path::{Path, PathBuf};

use serde_json::Value;
use skein_bench::plot::{self, Chart, Dash, Line, Request, Scale};

use super::shown;
use crate::exit::Failure;

/// Rows of the table: JSON key, and whether a higher value is better.
const COMPARED: [(&str, bool); 11] = [
    ("request_throughput", true),
    ("output_throughput", true),
    ("request_goodput", true),
    ("median_ttft_ms", false),
    ("p99_ttft_ms", false),
    ("median_itl_ms", false),
    ("p99_itl_ms", false),
    ("median_tpot_ms", false),
    ("p99_tpot_ms", false),
    ("median_e2el_ms", false),
    ("p99_e2el_ms", false),
];
/// Percentiles plotted over the rate.
const PERCENTILES: [&str; 3] = ["p50", "p90", "p99"];
/// Most requests in the waterfall of one result.
const MOST_WATERFALLS: usize = 4;

/// The same for each rule of `bench batching`.
const BATCHING_COMPARED: [(&str, &str, bool); 4] = [
    ("request_rate_mean_bound", "req/s mean", true),
    ("request_rate_p99_bound", "req/s p99", true),
    ("all_at_once_requests_per_second", "at once", true),
    ("kv_live", "KV live", true),
];

/// Reads a JSON file written by `command`, which must contain `key`.
fn read_json(path: &Path, key: &str, command: &str) -> Result<Value, Failure> {
    let wrong = |reason: String| Failure::other(format!("{}: {reason}", shown(path)));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let result: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if result[key].is_null() { Err(wrong(format!("no result of `{command}`"))) } else { Ok(result) }
}

/// Name of a file in tables and legends.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| shown(path), |name| name.to_string_lossy().into_owned())
}

/// One saved result.
#[derive(Debug, Clone)]
pub struct Saved {
    name: String,
    result: Value,
}

impl Saved {
    /// Wraps a result that has just been measured.
    pub fn new(name: String, result: Value) -> Self {
        Self { name, result }
    }

    /// Reads a file that `--save-result` wrote.
    ///
    /// # Errors
    /// If the file cannot be read or is not such a result.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let result = read_json(path, "request_throughput", "skein bench serve --save-result")?;
        Ok(Self::new(stem(path), result))
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.result[key].as_f64()
    }

    /// Name in the legend, without the rate.
    fn label(&self) -> String {
        self.result["label"].as_str().or(self.result["model_id"].as_str()).unwrap_or(&self.name).to_owned()
    }

    /// Requests sent per second; the throughput if all were sent at once.
    fn rate(&self) -> f64 {
        self.number("request_rate").or_else(|| self.number("request_throughput")).unwrap_or(0.0)
    }

    fn column(&self, key: &str) -> Option<Vec<f64>> {
        self.result[key].as_array().map(|values| values.iter().filter_map(Value::as_f64).collect())
    }

    /// The individual requests, if the result was saved with `--save-detailed`.
    fn requests(&self) -> Option<Vec<Request>> {
        let (sent, ttfts) = (self.column("start_times")?, self.column("ttfts")?);
        let (gaps, errors) = (self.result["itls"].as_array()?, self.result["errors"].as_array()?);
        let one = |index: usize| {
            let (sent, ttft) = (*sent.get(index)?, *ttfts.get(index)?);
            let decoding: f64 = gaps.get(index)?.as_array()?.iter().filter_map(Value::as_f64).sum();
            let failed = errors.get(index)?.as_str().is_some_and(|error| !error.is_empty());
            let first_token = (ttft > 0.0).then_some(sent + ttft);
            Some(Request { sent, first_token, end: sent + ttft + decoding, failed })
        };
        (0..sent.len()).map(one).collect()
    }
}

/// Reads all `paths`.
///
/// # Errors
/// The first file that is not a saved result.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Saved>, Failure> {
    paths.iter().map(|path| Saved::read(path)).collect()
}

/// Table of both results, with the ratio of the second to the first.
pub fn comparison(before: &Saved, after: &Saved) -> String {
    let both = |(key, more_is_better): (&str, bool)| {
        Some((key.to_owned(), before.number(key)?, after.number(key)?, more_is_better))
    };
    side_by_side([&before.name, &after.name], COMPARED.into_iter().filter_map(both))
}

/// Table that compares two results of `bench batching`, by rule.
///
/// # Errors
/// If a file cannot be read or is not such a result.
pub fn batching_comparison(paths: &[PathBuf]) -> Result<String, Failure> {
    let read = |path: &PathBuf| read_json(path, "results", "skein bench batching --json");
    let [before, after] = paths else { return Err(Failure::other("two files can be compared")) };
    let names = [stem(before), stem(after)];
    let (before, after) = (read(before)?, read(after)?);
    let mut rows = Vec::new();
    for first in before["results"].as_array().into_iter().flatten() {
        let others = after["results"].as_array();
        let Some(second) = others.into_iter().flatten().find(|row| row["rule"] == first["rule"]) else {
            continue;
        };
        for (key, what, more_is_better) in BATCHING_COMPARED {
            let rule = first["rule"].as_str().unwrap_or_default();
            if let (Some(first), Some(second)) = (first[key].as_f64(), second[key].as_f64()) {
                rows.push((format!("{rule} {what}"), first, second, more_is_better));
            }
        }
    }
    Ok(side_by_side([&names[0], &names[1]], rows.into_iter()))
}

/// A table of `(what, first, second, whether more is better)`.
fn side_by_side(names: [&str; 2], rows: impl Iterator<Item = (String, f64, f64, bool)>) -> String {
    let mut out = format!("{:<26}{:>14}{:>14}{:>9}\n", "", short(names[0]), short(names[1]), "ratio");
    for (what, first, second, more_is_better) in rows {
        let ratio = if first == 0.0 { f64::NAN } else { second / first };
        let better = if more_is_better { ratio > 1.02 } else { ratio < 0.98 };
        let worse = if more_is_better { ratio < 0.98 } else { ratio > 1.02 };
        let remark = if better {
            "  better"
        } else if worse {
            "  worse"
        } else {
            ""
        };
        out += &format!("{what:<26}{first:>14.3}{second:>14.3}{ratio:>9.3}{remark}\n");
    }
    out
}

/// Shortens a name to its last thirteen characters.
fn short(name: &str) -> String {
    let skipped = name.chars().count().saturating_sub(13);
    name.chars().skip(skipped).collect()
}

/// One SVG document for all results: latencies and throughput over the rate and, for results with details,
/// the server's state and a waterfall of the requests.
pub fn plots(results: &[Saved]) -> String {
    let mut plots = vec![
        over_rate("Time to first token", "ms", results, &percentile_keys("ttft_ms")),
        over_rate("Time between tokens", "ms", results, &percentile_keys("itl_ms")),
        over_rate("Whole request", "ms", results, &percentile_keys("e2el_ms")),
        over_rate("Throughput", "output tokens per second", results, &[("", "output_throughput".into())]),
    ];
    plots.extend(results.iter().filter_map(server_over_time));
    let detailed = results.iter().filter_map(|saved| Some((saved, saved.requests()?)));
    plots.extend(
        detailed
            .take(MOST_WATERFALLS)
            .map(|(saved, requests)| plot::waterfall(&format!("Requests of {}", saved.name), &requests)),
    );
    plot::document(&plots)
}

fn percentile_keys(figure: &str) -> [(&'static str, String); 3] {
    PERCENTILES.map(|percentile| (percentile, format!("{percentile}_{figure}")))
}

fn over_rate(title: &str, y: &str, results: &[Saved], keys: &[(&str, String)]) -> String {
    let mut labels: Vec<String> = Vec::new();
    for label in results.iter().map(Saved::label) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    let mut lines = Vec::new();
    for (colour, label) in labels.iter().enumerate() {
        for (index, (statistic, key)) in keys.iter().enumerate() {
            let of_label = results.iter().filter(|saved| saved.label() == *label);
            let mut points: Vec<(f64, f64)> =
                of_label.filter_map(|saved| Some((saved.rate(), saved.number(key)?))).collect();
            points.sort_by(|left, right| left.0.total_cmp(&right.0));
            let name =
                if labels.len() == 1 { (*statistic).to_owned() } else { format!("{label} {statistic}") };
            // A single figure and the last percentile are solid.
            let dash = if keys.len() == 1 { Dash::Solid } else { Dash::of(index) };
            lines.push(Line { name, points, colour, dash });
        }
    }
    let about = Chart { title, x: "requests per second", y, x_scale: Scale::Linear, y_scale: Scale::Linear };
    plot::chart(&about, &lines)
}

/// The server's requests and KV use over time, from its metrics. Series without a common unit are in percent
/// of their maximum.
fn server_over_time(saved: &Saved) -> Option<String> {
    let times = saved.column("server_times")?;
    let line = |(colour, (name, key, unit)): (usize, (&str, &str, f64))| {
        let values = saved.result[key].as_array()?;
        let points =
            times.iter().zip(values).filter_map(|(time, value)| Some((*time, value.as_f64()? * unit)));
        let points: Vec<(f64, f64)> = points.collect();
        (!points.is_empty()).then(|| Line { name: name.to_owned(), points, colour, dash: Dash::Solid })
    };
    let known = [
        ("running", "server_running", 1.0),
        ("waiting", "server_waiting", 1.0),
        ("KV use, %", "server_kv_cache_usage", 100.0),
    ];
    let lines: Vec<Line> = known.into_iter().enumerate().filter_map(line).collect();
    let about = Chart {
        title: &format!("Server during {}", saved.name),
        x: "seconds",
        y: "requests, or percent",
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
    };
    (!lines.is_empty()).then(|| plot::chart(&about, &lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn saved(name: &str, rate: f64, ttft: f64) -> Saved {
        let result = json!({
            "model_id": "m", "request_rate": rate, "request_throughput": rate, "output_throughput": 10.0 * rate,
            "median_ttft_ms": ttft, "p50_ttft_ms": ttft, "p90_ttft_ms": 2.0 * ttft, "p99_ttft_ms": 3.0 * ttft,
            "start_times": [0.0, 1.0], "ttfts": [0.5, 0.0], "itls": [[0.1, 0.1], []], "errors": ["", "timeout"],
            "server_times": [0.0, 1.0], "server_running": [1.0, 2.0], "server_kv_cache_usage": [0.1, null],
        });
        Saved::new(name.into(), result)
    }

    #[test]
    fn a_comparison_says_what_became_better_and_worse() {
        let table = comparison(&saved("before", 4.0, 100.0), &saved("after", 5.0, 150.0));
        assert!(table.contains("request_throughput") && table.contains("1.250  better"), "{table}");
        assert!(table.contains("1.500  worse"), "{table}");
    }

    #[test]
    fn batching_rules_are_compared_one_by_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, rate: f64| {
            let path = directory.path().join(name);
            let result = json!({"rule": "skein", "request_rate_mean_bound": rate, "kv_live": 0.98});
            std::fs::write(&path, json!({"results": [result]}).to_string()).expect("it can be written");
            path
        };
        let (before, after) = (file("before.json", 4.0), file("after.json", 3.0));
        let table = batching_comparison(&[before.clone(), after]).expect("both are results");
        assert!(table.contains("skein req/s mean") && table.contains("0.750  worse"), "{table}");
        assert!(table.contains("skein KV live") && !table.contains("p99"), "{table}");
        let other = directory.path().join("other.json");
        std::fs::write(&other, "{}").expect("it can be written");
        let refused = batching_comparison(&[before, other]).expect_err("the second is no result");
        assert!(refused.to_string().contains("bench batching --json"), "{refused}");
    }

    #[test]
    fn plots_show_rates_the_server_and_the_requests() {
        let document = plots(&[saved("a", 2.0, 50.0), saved("b", 4.0, 80.0)]);
        for expected in ["Time to first token", "Server during a", "until first token", "requests per second"]
        {
            assert!(document.contains(expected), "{expected}");
        }
        let requests = saved("a", 1.0, 1.0).requests().expect("details");
        assert_eq!(requests[0].end, 0.7);
        assert!(requests[1].failed && requests[1].first_token.is_none());
    }
}
