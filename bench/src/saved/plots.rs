//! Results as plots.

use super::file::Saved;
use crate::plot::{self, Chart, Dash, Line, Scale};

/// Percentiles plotted over the rate.
const PERCENTILES: [&str; 3] = ["p50", "p90", "p99"];
/// Most requests in the waterfall of one result.
const MOST_WATERFALLS: usize = 4;

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
