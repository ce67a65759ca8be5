//! A scrape over HTTP/1.1 on the gRPC port.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

async fn scrape(served: &Served) -> String {
    let mut stream = TcpStream::connect(served.address).await.expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    answer
}

/// The value of a series, named with the labels that are its own.
fn value(text: &str, name: &str, labels: &str) -> f64 {
    let line = text.lines().find(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.split(',').all(|label| line.contains(label))
    });
    line.unwrap_or_else(|| panic!("{name} {labels}: {text}"))
        .rsplit_once(' ')
        .expect("a value")
        .1
        .parse()
        .expect("a number")
}

#[tokio::test]
async fn a_scrape_tells_the_phases_of_requests() {
    let mut served = serve_fake(FakeOptions::default()).await;
    for id in ["first", "again"] {
        let mut stream = served.client.generate(request(id, 5)).await.expect("taken").into_inner();
        while next(&mut stream).await.expect("no fault").is_some() {}
    }
    // The load is published after the last token.
    let mut text = scrape(&served).await;
    while value(&text, "vllm:num_requests_running", "") > 0.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        text = scrape(&served).await;
    }
    for (name, labels, expected) in [
        ("vllm:request_success_total", "finished_reason=\"length\"", 2.0),
        ("vllm:prompt_tokens_total", "model_name=\"fake\",engine=\"0\"", 80.0),
        ("vllm:generation_tokens_total", "", 10.0),
        ("vllm:prefix_cache_queries_total", "", 80.0),
        ("vllm:prefix_cache_hits_total", "", 32.0), // two blocks of 16 of the second request's 40
        ("vllm:time_to_first_token_seconds_count", "", 2.0),
        ("vllm:inter_token_latency_seconds_count", "", 8.0),
        ("vllm:request_queue_time_seconds_count", "", 2.0),
        ("vllm:request_prefill_time_seconds_count", "", 2.0),
        ("vllm:request_decode_time_seconds_count", "", 2.0),
        ("vllm:request_generation_tokens_sum", "", 10.0),
        ("vllm:cache_config_info", "block_size=\"16\",num_gpu_blocks=\"64\"", 1.0),
        ("vllm:num_preemptions_total", "", 0.0),
        ("vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", 0.0),
        ("vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", 48.0),
        ("vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", 32.0),
        ("vllm:prompt_tokens_cached_by_source_total", "source=\"device\"", 32.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", "", 48.0),
        ("vllm:request_num_preemptions_count", "", 2.0),
        ("skein_worker_request_outcomes_total", "outcome=\"completed\"", 2.0),
    ] {
        assert_eq!(value(&text, name, labels), expected, "{name} {labels}: {text}");
    }
    let sum = |name: &str| value(&text, &format!("{name}_sum"), "");
    let phases = sum("vllm:request_queue_time_seconds") + sum("vllm:request_inference_time_seconds");
    assert!((phases - sum("vllm:e2e_request_latency_seconds")).abs() < 1e-6, "phases add up: {text}");
    assert_eq!(value(&text, "vllm:iteration_tokens_total_sum", ""), 40.0 + 8.0 + 2.0 * 4.0, "{text}");
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_request_without_readers_counts_as_aborted() {
    let mut served = serve_fake(slow()).await;
    let stream = served.client.generate(request("left", 400)).await.expect("taken").into_inner();
    drop(stream);
    let cancelled = async {
        while value(&scrape(&served).await, "skein_worker_request_outcomes_total", "outcome=\"cancelled\"")
            < 1.0
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, cancelled).await.expect("it is cancelled in time");
    let text = scrape(&served).await;
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"abort\""), 1.0);
    served.stop().await.expect("a clean end");
}
