//! Figures of single requests.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::metrics::Record;
use super::watch::Reading;

/// Figures of every request in seconds and the server's readings, under vLLM's key names.
pub fn detail(records: &[Record], readings: &[Reading]) -> Map<String, Value> {
    let seconds = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f64());
    let mut map = Map::new();
    let mut column = |name: &str, value: &dyn Fn(&Record) -> Value| {
        map.insert(name.to_owned(), records.iter().map(value).collect());
    };
    column("input_lens", &|record| json!(record.prompt_tokens));
    column("output_lens", &|record| json!(record.output_tokens));
    column("start_times", &|record| json!(record.sent.as_secs_f64()));
    column("intended_times", &|record| json!(record.intended.as_secs_f64()));
    column("ttfts", &|record| {
        json!(seconds(record.first_token.map(|first| first.saturating_sub(record.sent))))
    });
    column("itls", &|record| record.gaps.iter().map(|gap| json!(gap.as_secs_f64())).collect());
    column("errors", &|record| json!(record.error.clone().unwrap_or_default()));
    let mut column = |name: &str, value: &dyn Fn(&Reading) -> Value| {
        map.insert(name.to_owned(), readings.iter().map(value).collect());
    };
    column("server_times", &|reading| json!(reading.at));
    column("server_running", &|reading| json!(reading.running));
    column("server_waiting", &|reading| json!(reading.waiting));
    column("server_kv_cache_usage", &|reading| json!(reading.kv_cache_usage));
    map
}
