//! Messages between routers, workers and ranks. None of them trusts another.

use std::time::Duration;

use prost::Message;
use skein_choice::fleet::{Event, Fleet, HealthLimits};
use skein_choice::prefix_index::PrefixIndex;
use skein_choice::worker_id::WorkerId;
use skein_node::clock;
use skein_node::discovery::{Change, Member};
use skein_proto::delta::WorkerDelta;
use skein_proto::info::WorkerInfo;
use skein_proto::watch::WatchEvent;
use skein_proto::worker::v1 as wire;

use crate::input::{join, parts};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "generate",
            about: "a router's request, which its worker validates again",
            run: generate,
            seeds: generate_seeds,
            replays: 1000,
        },
        Target {
            name: "watch",
            about: "a worker's information, log and deltas, as its router takes them",
            run: watch,
            seeds: watch_seeds,
            replays: 1000,
        },
        Target {
            name: "hello",
            about: "what an unknown node of a group says first",
            run: hello,
            seeds: hello_seeds,
            replays: 1000,
        },
        Target {
            name: "step",
            about: "the words of a step between ranks",
            run: step,
            seeds: step_seeds,
            replays: 1000,
        },
    ]
}

fn generate(data: &[u8]) {
    if let Ok(request) = wire::GenerateRequest::decode(data) {
        skein_worker::fuzzing::generate(request);
    }
    if let Ok(request) = wire::AttachRequest::decode(data) {
        skein_worker::fuzzing::attach(request);
    }
}

/// A request that is valid at a worker of 64 tokens.
pub fn generate_request() -> wire::GenerateRequest {
    wire::GenerateRequest {
        request_id: "r".to_owned(),
        prompt_token_ids: vec![5, 6, 7],
        sampling: Some(wire::SamplingParams {
            max_tokens: 8,
            top_p: 1.0,
            temperature: 0.5,
            ..wire::SamplingParams::default()
        }),
        samples: vec![wire::Sample { index: 0, delivered_token_ids: vec![9] }],
        stream_key: vec![7; 16],
        timeout_ms: 1000,
        ..wire::GenerateRequest::default()
    }
}

fn generate_seeds() -> Vec<Vec<u8>> {
    let attach = wire::AttachRequest {
        request_id: "r".to_owned(),
        stream_key: vec![7; 16],
        samples: vec![wire::SamplePosition { index: 0, from_position: 3 }],
        ..wire::AttachRequest::default()
    };
    vec![generate_request().encode_to_vec(), attach.encode_to_vec()]
}

/// The first part is the worker's information, the others are events of its log or deltas of a stream.
fn watch(data: &[u8]) {
    let parts = parts(data);
    let (now, index) = (clock::now(), PrefixIndex::new(1 << 20));
    let mut fleet = Fleet::new(
        "model",
        1,
        HealthLimits { worker_timeout: Duration::from_secs(15), wedge_timeout: None },
        index,
    );
    let member = Member { id: "w".to_owned(), address: "h:1".to_owned() };
    fleet.handle(now, Event::Member(Change::Join(member)));
    let Some(worker) = fleet.at_other_addresses(|_| false).first().copied() else { return };
    let worker: WorkerId = worker;
    let info = wire::InfoResponse::decode(parts[0]).ok();
    if let Some(info) = info.and_then(|info| WorkerInfo::try_from(info).ok()) {
        fleet.handle(now, Event::Connected(worker, info));
    }
    for part in &parts[1..] {
        if let Ok(event) = wire::WorkerEvent::decode(*part) {
            fleet.handle(now, Event::Watched(worker, WatchEvent::from(event)));
        }
        if let Ok(delta) = wire::GenerateDelta::decode(*part) {
            let _ = WorkerDelta::try_from(delta);
        }
        fleet.handle(now, Event::Tick);
    }
    let _ = (fleet.status(now), fleet.limits(now), fleet.is_ready(now), fleet.states(now).count());
}

fn watch_seeds() -> Vec<Vec<u8>> {
    use wire::worker_event::Event as Kind;
    let info = wire::InfoResponse {
        epoch: 3,
        model: "model".to_owned(),
        max_model_len: 64,
        vocab_size: 500,
        block_size: 16,
        kv_blocks: 9,
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        ..wire::InfoResponse::default()
    };
    let event =
        |sequence, event| wire::WorkerEvent { epoch: 3, sequence, event: Some(event) }.encode_to_vec();
    let runs = vec![wire::RunStored { handle: 1, parent: 0, depth: 0, hashes: vec![11, 12, 13] }];
    let snapshot = wire::CacheSnapshot { runs: runs.clone(), ..wire::CacheSnapshot::default() };
    let change = wire::CacheDelta {
        truncated: vec![wire::RunTruncated { handle: 1, new_end: 2 }],
        stored: vec![wire::RunStored { handle: 2, parent: 1, depth: 2, hashes: vec![14] }],
        ..wire::CacheDelta::default()
    };
    let delta = wire::GenerateDelta { sample_index: 0, token_ids: vec![5], ..wire::GenerateDelta::default() };
    let log = [
        event(1, Kind::Snapshot(snapshot)),
        event(1, Kind::Load(wire::Load::default())),
        event(1, Kind::Cache(change)),
        event(2, Kind::Admitted(wire::Admitted { depth: 0, hashes: vec![15], ..wire::Admitted::default() })),
        delta.encode_to_vec(),
    ];
    vec![join(&[&[info.encode_to_vec()], &log[..]].concat())]
}

fn hello(data: &[u8]) {
    skein_worker::fuzzing::hello(data);
}

fn hello_seeds() -> Vec<Vec<u8>> {
    vec![
        br#"{"node":1,"nodes":2,"version":"0.1.0","model":7,"settings":[{"name":"max-model-len","value":"64","shown":"64","is_given":true}],"nonce":[1,2,3]}"#.to_vec(),
        br#"{"nonce":[1],"proof":[2]}"#.to_vec(),
    ]
}

fn step(data: &[u8]) {
    let (words, _) = data.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    skein_worker::fuzzing::step(&words);
}

fn step_seeds() -> Vec<Vec<u8>> {
    skein_worker::fuzzing::steps()
        .into_iter()
        .map(|words| words.into_iter().flat_map(u32::to_le_bytes).collect())
        .collect()
}
