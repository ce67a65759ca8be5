//! Frames of an exchange between a router and a worker, at either end.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, future, stream};
use prost::Message;
use skein_exchange::client::exchange as open;
use skein_exchange::limits::CREDIT;
use skein_exchange::server::serve;
use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::{router_frame, worker_frame};
use skein_worker::service::WorkerService;
use tonic::Request;

use crate::input::{join, parts};
use crate::target::Target;
use crate::wire::generate_request;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "exchange_answers",
            about: "a worker's frames, as its router gives them to calls",
            run: answers,
            seeds: answers_seeds,
            replays: 1000,
        },
        Target {
            name: "exchange_calls",
            about: "a router's frames, as its worker takes them",
            run: calls,
            seeds: calls_seeds,
            replays: 1000,
        },
    ]
}

/// Each part is a message. At the end of the exchange every call has ended.
fn answers(data: &[u8]) {
    let (exchange, _frames, answers) = open(CREDIT);
    let calls = [0; 3].map(|_| exchange.generate(Request::new(generate_request())));
    let messages: Vec<_> =
        parts(data).into_iter().filter_map(|part| wire::WorkerFrames::decode(part).ok()).map(Ok).collect();
    answers.read(stream::iter(messages)).now_or_never().expect("nothing to wait for");
    for call in calls {
        if let Ok(deltas) = call.now_or_never().expect("the exchange has ended") {
            deltas.count().now_or_never().expect("the exchange has ended");
        }
    }
}

fn answers_seeds() -> Vec<Vec<u8>> {
    let frame = |call, content| wire::WorkerFrame { call, content: Some(content) };
    let accepted = worker_frame::Content::Accepted(wire::Accepted {});
    let delta = wire::GenerateDelta { token_ids: vec![5], ..wire::GenerateDelta::default() };
    let end = wire::End { code: 8, message: "full".to_owned(), metadata: Vec::new() };
    let first = vec![
        frame(1, accepted.clone()),
        frame(1, worker_frame::Content::Delta(delta)),
        frame(2, accepted),
        frame(3, worker_frame::Content::End(end)),
    ];
    let last = vec![frame(1, worker_frame::Content::End(wire::End::default()))];
    vec![join(&[first, last].map(|frames| wire::WorkerFrames { frames }.encode_to_vec()))]
}

/// Each part is a message, to a worker that has not loaded its model.
fn calls(data: &[u8]) {
    let messages: Vec<_> =
        parts(data).into_iter().filter_map(|part| wire::RouterFrames::decode(part).ok()).map(Ok).collect();
    let served = serve(Arc::new(WorkerService::default()), stream::iter(messages), future::pending());
    Box::pin(served).count().now_or_never().expect("every call is refused at once");
}

fn calls_seeds() -> Vec<Vec<u8>> {
    let first = wire::RouterFrame {
        call: 1,
        content: Some(router_frame::Content::Generate(generate_request())),
        prompt: vec![5, 0, 0, 0, 6, 0, 0, 0].into(),
        metadata: vec![wire::Header { name: "traceparent".to_owned(), value: "00-1".to_owned() }],
        credit: 8192,
    };
    let attach = router_frame::Content::Attach(wire::AttachRequest::default());
    let leave = router_frame::Content::Leave(wire::Leave {});
    let others = vec![
        wire::RouterFrame { call: 2, content: Some(attach), ..wire::RouterFrame::default() },
        wire::RouterFrame { call: 1, credit: 4096, ..wire::RouterFrame::default() },
        wire::RouterFrame { call: 2, content: Some(leave), ..wire::RouterFrame::default() },
    ];
    vec![join(&[vec![first], others].map(|frames| wire::RouterFrames { frames }.encode_to_vec()))]
}
