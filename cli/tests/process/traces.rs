//! Traces and metrics by OTLP, as a collector receives them. A broken collector does not affect requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use skein_node::clock;
use skein_tests::nodes::{Extras, Front, Worker};
use skein_tests::otlp::{Mood, Receiver, Span};
use skein_tests::pki::{Dates, Pki};
use skein_tests::process::{Cluster, free_port};
use skein_tls::{ClientCertificates, IdentityFiles, ServerFiles, ServerTls};

use crate::{SKEIN, block_on};

/// Long, for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Spans of a service whose names begin with this word, in order of their start.
fn named<'a>(spans: &'a [Span], service: &str, name: &str) -> Vec<&'a Span> {
    let first = |span: &Span| span.span.name.split(' ').next() == Some(name);
    let mut found: Vec<_> = spans.iter().filter(|span| span.service == service && first(span)).collect();
    found.sort_by_key(|span| span.span.start_time_unix_nano);
    found
}

fn only<'a>(spans: &'a [Span], service: &str, name: &str) -> &'a Span {
    let found = named(spans, service, name);
    assert_eq!(found.len(), 1, "{service} {name}");
    found[0]
}

/// Asserts that `child` is part of `parent`, or the server's side of it. A server's span may end later.
fn assert_below(parent: &Span, child: &Span) {
    let names = (&parent.span.name, &child.span.name);
    assert_eq!(hex(&child.span.parent_span_id), hex(&parent.span.span_id), "{names:?}");
    assert!(parent.has_begun_before(child), "{names:?}");
    assert!(parent.service != child.service || parent.ends_after(child), "{names:?}");
}

/// Index of a worker that runs a request.
async fn busy(workers: &[Worker]) -> usize {
    let client = reqwest::Client::new();
    let start = clock::now();
    while clock::now().since(start) < WITHIN {
        for (number, worker) in workers.iter().enumerate() {
            let Ok(answer) = client.get(format!("http://{}/metrics", worker.address)).send().await else {
                continue;
            };
            let text = answer.text().await.unwrap_or_default();
            let running = text.lines().find(|line| line.starts_with("vllm:num_requests_running{"));
            if running.is_some_and(|line| !line.ends_with(" 0")) {
                return number;
            }
        }
    }
    panic!("no worker runs anything");
}

#[test]
fn one_request_that_moves_twice_is_one_trace_with_its_parents_and_links() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let with = |flags: &[&str]| {
            let prefix = ["env".to_owned(), format!("OTEL_EXPORTER_OTLP_ENDPOINT={}", receiver.grpc)];
            Extras { prefix: prefix.to_vec(), ..Extras::flags(flags) }
        };
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(Worker::start(SKEIN, &with(&["--drain-grace=1ms"])).await);
        }
        let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
        let mut router = Front::router(SKEIN, &addresses, &with(&[])).await;
        let mut gateway = Front::gateway(SKEIN, &[router.address], &with(&["--trace-ratio=0"])).await;

        let body = json!({"model": "skein-7m", "prompt": "a secret prompt", "max_tokens": 900, "n": 8,
                          "seed": 5, "temperature": 1, "ignore_eos": true, "stream": true});
        let sent = reqwest::Client::new()
            .post(format!("{}/v1/completions", gateway.url))
            .header("traceparent", format!("00-{TRACE_ID}-{CLIENT_SPAN}-01"))
            .header("tracestate", "vendor=1")
            .json(&body);
        let answer = sent.send().await.expect("the gateway answers");
        assert_eq!(answer.status(), 200);
        let traceparent = answer.headers()["traceparent"].to_str().expect("ASCII").to_owned();
        assert!(answer.headers().contains_key("x-request-id"));
        let reading = tokio::spawn(answer.text());
        for signal in ["KILL", "TERM"] {
            let number = busy(&workers).await;
            let mut gone = workers.swap_remove(number);
            gone.process.signal(signal);
            gone.process.wait_end(WITHIN).await;
        }
        let text = reading.await.expect("the reader ends").expect("the stream ends");
        assert!(text.contains("data: [DONE]"), "{text}");

        let whole = |spans: &[Span]| {
            let worker_requests = named(spans, "skein-worker", "generate").len();
            let router_requests = spans.iter().filter(|span| span.service == "skein-router").count();
            worker_requests == 2
                && router_requests >= 8
                && !named(spans, "skein-gateway", "text_completion").is_empty()
        };
        let spans = receiver.wait_spans(WITHIN, whole).await;
        assert!(spans.iter().all(|span| hex(&span.span.trace_id) == TRACE_ID), "one trace");
        let ids: BTreeSet<_> = spans.iter().map(|span| hex(&span.span.span_id)).collect();
        assert_eq!(ids.len(), spans.len(), "each span comes once");
        assert!(spans.iter().all(|span| span.span.trace_state == "vendor=1"));

        let at_gateway = only(&spans, "skein-gateway", "text_completion");
        let id = at_gateway.attribute("gen_ai.response.id").expect("the answer has an id");
        assert!(id.starts_with("cmpl-") && text.contains(&id), "{id}: {text}");
        assert_eq!(hex(&at_gateway.span.parent_span_id), CLIENT_SPAN);
        assert_eq!(traceparent, format!("00-{TRACE_ID}-{}-01", hex(&at_gateway.span.span_id)));
        for name in ["tokenize", "admit", "route", "generate", "detokenize"] {
            assert_below(at_gateway, only(&spans, "skein-gateway", name));
        }
        let at_router = only(&spans, "skein-router", "generate_content");
        assert_below(only(&spans, "skein-gateway", "generate"), at_router);
        assert_eq!(at_router.attribute("skein.moves").as_deref(), Some("2"));
        assert_eq!(at_router.attribute("gen_ai.usage.output_tokens").as_deref(), Some("7200"));

        let calls = named(&spans, "skein-router", "generate");
        assert_eq!(calls.len(), 3, "one call for each worker");
        calls.iter().for_each(|call| assert_below(at_router, call));
        let outcomes: Vec<_> = calls.iter().filter_map(|call| call.attribute("skein.outcome")).collect();
        assert_eq!(outcomes, ["fault", "handed_back", "completed"]);
        let links: Vec<Vec<String>> = calls
            .iter()
            .map(|call| call.span.links.iter().map(|link| hex(&link.span_id)).collect())
            .collect();
        let chain = |at: usize| vec![hex(&calls[at].span.span_id)];
        assert_eq!(links, [vec![], chain(0), chain(1)], "each goes on from the one before");
        let routes = named(&spans, "skein-router", "route");
        let candidates: Vec<_> =
            routes.iter().filter_map(|route| route.attribute("skein.route.candidates")).collect();
        assert_eq!(candidates.first().map(String::as_str), Some("3"));
        assert_eq!(routes.len(), 3);

        // The killed worker lost its spans.
        for (call, at_worker) in calls[1..].iter().zip(named(&spans, "skein-worker", "generate")) {
            assert_below(call, at_worker);
            let own = |name| {
                let parts = named(&spans, "skein-worker", name).into_iter();
                parts.filter(|part| part.span.parent_span_id == at_worker.span.span_id).collect::<Vec<_>>()
            };
            for name in ["queue", "prefill", "decode"] {
                let [part] = own(name)[..] else { panic!("one {name} at each worker") };
                assert_below(at_worker, part);
            }
            let chunks = own("prefill")[0].attribute("skein.prefill.chunks");
            assert!(chunks.is_some_and(|chunks| chunks.parse::<u32>().is_ok_and(|chunks| chunks >= 1)));
        }
        let everything = format!("{spans:?}");
        assert!(!everything.contains("secret prompt"), "prompts are in no span");
        for (front, span) in [(&gateway, at_gateway), (&router, at_router)] {
            let log = front.process.log();
            let line = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let line =
                line.into_iter().find(|line| line["message"] == "request").expect("the request's line");
            assert_eq!(line["trace_id"], TRACE_ID, "{line}");
            assert_eq!(line["span_id"], hex(&span.span.span_id), "{line}");
        }
        router.process.kill();
        gateway.process.kill();
    });
}

/// Sends `count` requests, `at_once` at a time; all must succeed. Returns the longest duration.
async fn load(url: &str, count: usize, at_once: usize) -> Duration {
    let client = reqwest::Client::new();
    let body = json!({"prompt": [1, 2, 3, 4], "max_tokens": 2, "temperature": 0, "ignore_eos": true});
    let one = |_| {
        let sent = client.post(format!("{url}/v1/completions")).json(&body).send();
        async move {
            let start = clock::now();
            let answer = sent.await.expect("the server answers");
            assert_eq!(answer.status(), 200);
            answer.bytes().await.expect("the answer is whole");
            clock::now().since(start)
        }
    };
    let times = futures::stream::iter(0..count).map(one).buffer_unordered(at_once);
    times.fold(Duration::ZERO, async |longest, time| longest.max(time)).await
}

#[test]
fn no_span_of_a_thousand_requests_is_lost() {
    const REQUESTS: usize = 1000;
    /// Number of spans of a request, of the router and of the worker.
    const SPANS: usize = 6 + 4;
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let endpoint = format!("--otlp-endpoint={}", receiver.http);
        let flags =
            ["--workers=1", "--device=fake", "--otlp-protocol=http/protobuf", "--trace-ratio=1", &endpoint];
        let cluster = Cluster::serve(SKEIN, &flags).await;
        load(&cluster.url, REQUESTS, 16).await;
        let spans = receiver.wait_spans(WITHIN, |spans| spans.len() >= REQUESTS * SPANS).await;
        let mut traces = BTreeMap::<_, Vec<&str>>::new();
        for span in &spans {
            traces.entry(span.span.trace_id.clone()).or_default().push(&span.span.name);
        }
        assert_eq!(traces.len(), REQUESTS);
        for names in traces.values() {
            assert_eq!(names.len(), SPANS, "{names:?}");
        }
        assert_eq!(dropped(&cluster.url).await, 0);
    });
}

/// The router's counter of lost spans.
async fn dropped(url: &str) -> u64 {
    let text = reqwest::get(format!("{url}/metrics")).await.expect("a scrape").text().await.expect("text");
    let lines = text.lines().filter(|line| line.starts_with("skein_trace_spans_dropped_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn requests_do_not_notice_a_collector_that_is_gone_slow_or_refuses() {
    block_on(async {
        let slow = Receiver::start(Mood::Slow).await;
        let refusing = Receiver::start(Mood::Refusing).await;
        let gone = format!("http://127.0.0.1:{}", free_port());
        let cases = [
            (gone.clone(), "grpc"),
            (gone, "http/protobuf"),
            (slow.grpc.clone(), "grpc"),
            (slow.http.clone(), "http/protobuf"),
            (refusing.grpc.clone(), "grpc"),
            (refusing.http.clone(), "http/protobuf"),
        ];
        for (url, protocol) in cases {
            let endpoint = format!("--otlp-endpoint={url}");
            let protocol = format!("--otlp-protocol={protocol}");
            let flags = ["--workers=1", "--device=fake", "--trace-ratio=1", &endpoint, &protocol];
            let cluster = Cluster::serve(SKEIN, &flags).await;
            let longest = load(&cluster.url, 100, 4).await;
            assert!(longest < Duration::from_secs(20), "{url}: {longest:?}");
            let start = clock::now();
            while dropped(&cluster.url).await < 600 {
                assert!(clock::now().since(start) < WITHIN, "{url}: spans are dropped by count");
                load(&cluster.url, 1, 1).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let log = cluster.log();
            let router = |line: &&str| line.contains("did not accept spans") && !line.contains("[worker");
            assert_eq!(log.lines().filter(router).count(), 1, "one line, not one for each failure:\n{log}");
        }
    });
}

#[test]
fn errors_are_kept_and_the_rest_is_not_when_nothing_is_sampled() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let endpoint = format!("--otlp-traces-endpoint={}", receiver.grpc);
        let flags = ["--trace-ratio=0", &endpoint];
        let slow = [&flags[..], &["--device=fake", "--fake-step-time=5ms"]].concat();
        let worker = Worker::start(SKEIN, &Extras::flags(&slow)).await;
        let router = Front::router(SKEIN, &[worker.address], &Extras::flags(&flags)).await;
        load(&router.url, 20, 4).await;
        let late = json!({"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": true});
        let sent = reqwest::Client::new().post(format!("{}/v1/completions", router.url));
        let sent = sent.header("traceparent", format!("00-{TRACE_ID}-{CLIENT_SPAN}-00"));
        let answer = sent.header("x-request-timeout-ms", "1").json(&late).send().await.expect("an answer");
        assert_eq!(answer.status(), 504);
        let spans = receiver.wait_spans(WITHIN, |spans| !spans.is_empty()).await;
        assert!(spans.iter().all(|span| hex(&span.span.trace_id) == TRACE_ID), "only the error: {spans:?}");
        let root = spans.iter().find(|span| span.attribute("skein.kept").is_some()).expect("the server span");
        assert_eq!(root.attribute("skein.kept").as_deref(), Some("error"));
        assert_eq!(hex(&root.span.parent_span_id), CLIENT_SPAN);
        assert!(root.attribute("error.type").is_some());
    });
}

#[test]
fn gen_ai_metrics_arrive_with_the_conventions_names_and_buckets() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        for (url, protocol) in [(&receiver.grpc, "grpc"), (&receiver.http, "http/protobuf")] {
            let worker = Worker::start(SKEIN, &Extras::flags(&["--device=fake"])).await;
            let variables = [
                format!("OTEL_EXPORTER_OTLP_ENDPOINT={url}"),
                format!("OTEL_EXPORTER_OTLP_PROTOCOL={protocol}"),
            ];
            let prefix =
                [vec!["env".to_owned(), "OTEL_METRIC_EXPORT_INTERVAL=200".to_owned()], variables.to_vec()];
            let extras = Extras { prefix: prefix.concat(), ..Extras::default() };
            let router = Front::router(SKEIN, &[worker.address], &extras).await;
            load(&router.url, 10, 2).await;
            let known = receiver.points().len();
            let start = clock::now();
            let point = |name: &str| {
                let points = receiver.points();
                points.into_iter().skip(known).rfind(|point| point.name == name && point.point.count == 10)
            };
            for (name, first, bounds) in [
                ("gen_ai.server.request.duration", 0.01, 14),
                ("gen_ai.server.time_to_first_token", 0.001, 16),
                ("gen_ai.server.time_per_output_token", 0.01, 13),
            ] {
                let found = loop {
                    if let Some(found) = point(name) {
                        break found;
                    }
                    assert!(clock::now().since(start) < WITHIN, "{protocol}: no {name} of 10 requests");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
                assert_eq!(found.unit, "s");
                assert_eq!(found.point.explicit_bounds.len(), bounds);
                assert_eq!(found.point.explicit_bounds[0], first);
                let labels: BTreeSet<_> =
                    found.point.attributes.iter().map(|label| label.key.as_str()).collect();
                assert!(labels.contains("gen_ai.request.model") && labels.contains("gen_ai.operation.name"));
            }
        }
    });
}

/// Name of the parent of each span of a service, by the span's name; roots are omitted.
fn parents(spans: &[Span], service: &str) -> BTreeMap<String, String> {
    let own: Vec<_> = spans.iter().filter(|span| span.service == service).collect();
    let parent = |span: &Span| {
        let found = own.iter().find(|other| other.span.span_id == span.span.parent_span_id);
        found.inspect(|parent| {
            assert_eq!(parent.span.trace_id, span.span.trace_id);
            assert!(parent.has_begun_before(span) && parent.ends_after(span), "{}", span.span.name);
        });
        found.map_or(String::new(), |parent| parent.span.name.clone())
    };
    own.iter().map(|span| (span.span.name.clone(), parent(span))).collect()
}

#[test]
fn a_process_that_starts_connects_and_ends_has_spans_whatever_the_ratio() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let prefix = ["env".to_owned(), format!("OTEL_EXPORTER_OTLP_ENDPOINT={}", receiver.grpc)];
        let with = |flags: &[&str]| Extras { prefix: prefix.to_vec(), ..Extras::flags(flags) };
        let mut worker = Worker::start(SKEIN, &with(&["--device=cpu", "--log-level=debug"])).await;
        let flags = with(&["--trace-ratio=0", "--log-level=debug"]);
        let mut router = Front::router(SKEIN, &[worker.address], &flags).await;
        load(&router.url, 3, 1).await;
        for process in [&mut router.process, &mut worker.process] {
            process.signal("TERM");
            process.wait_end(WITHIN).await;
        }
        let has = |spans: &[Span], name: &str| spans.iter().filter(|span| span.span.name == name).count();
        let spans = receiver.wait_process_spans(WITHIN, |spans| has(spans, "shutdown") == 2).await;
        let expected = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, parent)| ((*name).to_owned(), (*parent).to_owned())).collect()
        };
        let of_worker = [
            ("start", ""),
            ("load", "start"),
            ("read checkpoint", "load"),
            ("pack weights", "load"),
            ("first step", "load"),
            ("shutdown", ""),
            ("drain", "shutdown"),
        ];
        assert_eq!(parents(&spans, "skein-worker"), expected(&of_worker));
        let of_router = [
            ("start", ""),
            ("load tokenizer", "start"),
            ("wait for worker", "start"),
            ("connect", ""),
            ("shutdown", ""),
            ("drain", "shutdown"),
        ];
        assert_eq!(parents(&spans, "skein-router"), expected(&of_router));
        let named = |name: &str| spans.iter().find(|span| span.span.name == name).expect("checked above");
        let bytes = named("pack weights").attribute("skein.weight_bytes");
        assert!(bytes.is_some_and(|bytes| bytes.parse::<u64>().is_ok_and(|bytes| bytes > 1_000_000)));
        assert_eq!(named("load").attribute("skein.device").as_deref(), Some("cpu"));
        let connect = named("connect");
        assert_eq!(connect.attribute("skein.address"), Some(worker.address.to_string()));
        assert_eq!(connect.attribute("skein.reconnects").as_deref(), Some("false"));
        assert_eq!(receiver.spans().len(), 0, "no request is sampled");
        for log in [router.process.log(), worker.process.log()] {
            let mut lines = log.lines();
            assert!(!lines.any(|line| line.contains("\"spans\"") || line.contains("start:load")), "{log}");
        }
    });
}

#[test]
fn a_start_that_fails_is_a_span_with_its_reason() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = taken.local_addr().expect("a bound listener has an address");
        let endpoint = format!("--otlp-endpoint={}", receiver.http);
        let flags = Extras::flags(&[&endpoint, "--otlp-protocol=http/protobuf"]);
        let mut worker = Worker::spawn(SKEIN, &Extras { listen: Some(address), ..flags });
        worker.process.wait_end(WITHIN).await;
        let is_start = |spans: &[Span]| spans.iter().any(|span| span.span.name == "start");
        let spans = receiver.wait_process_spans(WITHIN, is_start).await;
        let status = only(&spans, "skein-worker", "start").span.status.clone().expect("it failed");
        assert!(status.message.contains(&format!("cannot listen on {address}")), "{}", status.message);
    });
}

#[test]
fn a_process_without_traces_has_no_spans() {
    block_on(async {
        let receiver = Receiver::start(Mood::Willing).await;
        let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT={}", receiver.grpc);
        let prefix = ["env".to_owned(), endpoint, "OTEL_TRACES_EXPORTER=none".to_owned()];
        let mut worker = Worker::start(SKEIN, &Extras { prefix: prefix.to_vec(), ..Extras::default() }).await;
        worker.process.signal("TERM");
        // A process sends its last spans before it exits.
        worker.process.wait_end(WITHIN).await;
        assert_eq!(receiver.process_spans().len() + receiver.spans().len(), 0);
    });
}

#[test]
fn a_collector_with_tls_gets_spans_and_metrics_only_from_those_whom_it_trusts() {
    block_on(async {
        let pki = Pki::new();
        let (shown, own) =
            (pki.issue("collector", &["localhost"], Dates::Always), pki.issue("us", &["us"], Dates::Always));
        let tls = ServerTls::read(&ServerFiles {
            identity: IdentityFiles { cert: shown.cert, key: shown.key },
            client_ca: Some(pki.ca()),
            client_certificates: ClientCertificates::Required,
        });
        let receiver = Receiver::start_encrypted(Mood::Willing, tls.expect("valid files")).await;
        let ca = format!("--otlp-ca={}", pki.ca().display());
        let (cert, key) =
            (format!("--otlp-cert={}", own.cert.display()), format!("--otlp-key={}", own.key.display()));
        for (url, protocol) in [(&receiver.grpc, "grpc"), (&receiver.http, "http/protobuf")] {
            let (endpoint, protocol) =
                (format!("--otlp-endpoint={url}"), format!("--otlp-protocol={protocol}"));
            let of_all = vec!["--trace-ratio=1", &endpoint, &protocol, &ca];
            let trusted = [&of_all[..], &[&cert, &key]].concat();
            let of_worker = [&trusted[..], &["--device=fake"]].concat();
            let worker = Worker::start(SKEIN, &Extras::flags(&of_worker)).await;
            let prefix = ["env".to_owned(), "OTEL_METRIC_EXPORT_INTERVAL=200".to_owned()].to_vec();
            let extras = Extras { prefix, ..Extras::flags(&trusted) };
            let router = Front::router(SKEIN, &[worker.address], &extras).await;
            // Shows no certificate.
            let stranger = Front::router(SKEIN, &[worker.address], &Extras::flags(&of_all)).await;
            let (spans, points) = (receiver.spans().len(), receiver.points().len());
            load(&stranger.url, 3, 1).await;
            let start = clock::now();
            while dropped(&stranger.url).await == 0 {
                assert!(clock::now().since(start) < WITHIN, "{url}: the collector refuses it");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let log = stranger.process.log();
            assert!(log.contains("the OTLP collector did not accept spans"), "{log}");
            let of_router =
                |spans: &[Span]| spans.iter().filter(|span| span.service == "skein-router").count();
            assert_eq!(of_router(&receiver.spans()[spans..]), 0, "of the stranger, whose worker is trusted");
            load(&router.url, 3, 1).await;
            receiver.wait_spans(WITHIN, |all| of_router(&all[spans..]) >= 3).await;
            while receiver.points().len() == points {
                assert!(clock::now().since(start) < WITHIN, "{url}: metrics arrive");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
}

#[test]
fn files_for_a_collector_that_cannot_be_used_end_the_start() {
    block_on(async {
        let check = async |flags: &[&str], expected: &str| {
            let mut worker = Worker::spawn(SKEIN, &Extras::flags(flags));
            worker.process.wait_end(WITHIN).await;
            assert!(worker.process.log().contains(expected), "{flags:?}: {}", worker.process.log());
        };
        let https = "--otlp-endpoint=https://localhost:4317";
        check(
            &["--otlp-ca=/nowhere.pem", https],
            "TLS to the OTLP collector https://localhost:4317: /nowhere.pem",
        )
        .await;
        check(&["--otlp-key=/nowhere.pem", https], "--otlp-key: needs --otlp-cert").await;
        check(&["--otlp-ca=/nowhere.pem"], "--otlp-ca: applies only to an https:// collector").await;
    });
}
