//! Two small results.

use serde_json::json;

use super::*;

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
fn plots_show_rates_the_server_and_the_requests() {
    let document = plots(&[saved("a", 2.0, 50.0), saved("b", 4.0, 80.0)]);
    for expected in ["Time to first token", "Server during a", "until first token", "requests per second"] {
        assert!(document.contains(expected), "{expected}");
    }
    let requests = saved("a", 1.0, 1.0).requests().expect("details");
    assert_eq!(requests[0].end, 0.7);
    assert!(requests[1].failed && requests[1].first_token.is_none());
}
