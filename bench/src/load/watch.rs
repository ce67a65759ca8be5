//! Records the server's own metrics once a second during a run.

use std::time::Duration;

use skein_node::clock::{self, Timestamp};

use super::client::Server;

/// Interval between two readings.
const INTERVAL: Duration = Duration::from_secs(1);

/// Metrics at one time, summed over all label values; `None` = the server lacks the metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Time since the start of the run, in seconds.
    pub at: f64,
    /// Number of running requests.
    pub running: Option<f64>,
    /// Number of waiting requests.
    pub waiting: Option<f64>,
    /// Fraction of the KV cache in use, 0 to 1; mean over workers.
    pub kv_cache_usage: Option<f64>,
}

/// Reads the metrics until the future is dropped, skipping failed readings.
pub async fn watch(server: &Server, start: Timestamp, readings: &mut Vec<Reading>) {
    loop {
        if let Some(text) = server.metrics().await {
            readings.push(reading(&text, clock::now().since(start)));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn reading(text: &str, at: Duration) -> Reading {
    let sum = |names: &[&str]| values(text, names).reduce(|sum, value| sum + value);
    let usage: Vec<f64> = values(text, &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]).collect();
    let mean = usage.iter().sum::<f64>() / usage.len().max(1) as f64;
    Reading {
        at: at.as_secs_f64(),
        running: sum(&["vllm:num_requests_running"]),
        waiting: sum(&["vllm:num_requests_waiting"]),
        kv_cache_usage: (!usage.is_empty()).then_some(mean),
    }
}

/// Values of the samples named in `names`, with any labels (Prometheus text format).
fn values<'a>(text: &'a str, names: &'a [&'a str]) -> impl Iterator<Item = f64> + 'a {
    text.lines().filter_map(|line| {
        let name = line.split(['{', ' ']).next()?;
        let value = line.rsplit_once(['}', ' ']).map(|(_, value)| value.trim())?;
        names.contains(&name).then(|| value.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_their_labels() {
        let text = "# HELP vllm:num_requests_running x\n\
                    vllm:num_requests_running{worker=\"a b\"} 3\n\
                    vllm:num_requests_running{worker=\"c\"} 4\n\
                    vllm:kv_cache_usage_perc{worker=\"a b\"} 0.5\n\
                    vllm:kv_cache_usage_perc{worker=\"c\"} 0.25\n\
                    vllm:num_requests_running_total 9\n";
        let seen = reading(text, Duration::from_millis(1500));
        assert_eq!(seen, Reading { at: 1.5, running: Some(7.0), waiting: None, kv_cache_usage: Some(0.375) });
    }
}
