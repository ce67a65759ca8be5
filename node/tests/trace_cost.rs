//! Cost of traces for a request that is not exported: one allocation, and none if traces are disabled. A
//! separate binary, because it counts allocations of all threads, and traces start only once per process.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;
use skein_node::trace::{self, Attribute, Endpoint, Options, Part, Protocol, Remote, Request, Sampling};
use skein_sys::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// The telemetry thread may also allocate, so the smallest of several counts is used.
const TRIES: usize = 20;

/// Everything that a router records for a successful request.
fn a_request(model: &Arc<str>) {
    let request = Request::begin(Remote::read(|_| None));
    let mut handle = request.clone();
    let _entered = trace::enter(&mut handle);
    request.name("chat", model.clone());
    request.set("url.path", "/v1/chat/completions");
    request.set_all(|| {
        let [a, b, c, d, e, f] = ["a", "b", "c", "d", "e", "f"].map(|key| (key, Attribute::from(0.5)));
        [a, b, c, d, e, f, ("g", model.clone().into()), ("h", model.clone().into()), ("i", "stop".into())]
    });
    request.sum([("in", 7), ("out", 8), ("cached", 0), ("moves", 0)]);
    for name in ["tokenize", "admit", "route", "generate"] {
        let from = clock::now();
        let call = request.attempt();
        assert!(call.is_none_or(|call| call.headers().state.is_empty()));
        request.add(|| {
            let part = Part::new(name, from, clock::now()).count("n", 1_u64).seconds("t", Duration::ZERO);
            part.with("worker", model.clone()).with("outcome", "completed")
        });
    }
    assert_eq!(request.traceparent().is_some(), request.is_on());
    assert!(!request.is_sampled());
}

fn allocations(model: &Arc<str>) -> u64 {
    let count = |_| {
        let before = ALLOCATOR.count();
        a_request(model);
        ALLOCATOR.count() - before
    };
    (0..TRIES).map(count).min().expect("there are tries")
}

#[test]
fn a_request_that_is_not_sampled_allocates_once() {
    let model: Arc<str> = "a model".into();
    assert_eq!(allocations(&model), 0, "traces are off");
    let endpoint =
        Endpoint { url: "http://127.0.0.1:9".into(), tls: Default::default(), protocol: Protocol::Grpc };
    let started = trace::start(&Options {
        traces: Some(endpoint),
        metrics: None,
        sampling: Sampling { follows_parent: true, ratio: 0.0 },
        slow_after: Duration::from_secs(10),
        service: "test".into(),
        instance: String::new(),
    });
    started.expect("nothing has to listen");
    assert_eq!(allocations(&model), 1, "traces are on");
}
