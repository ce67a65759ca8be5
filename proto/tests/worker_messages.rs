//! Frozen encodings of the messages between router and worker: a rolling upgrade mixes two releases. Field
//! numbers and types never change; fields may only be added.
//!
//! Each line of `testdata/worker_messages.txt` is a message, `name hexadecimal-bytes`. Lines never change. A
//! new field gets a new message with a new name.

use std::collections::BTreeMap;
use std::fmt::Debug;

use prost::Message;
use skein_proto::delta::WorkerDelta;
use skein_proto::worker::v1::*;

const GOLDEN: &str = include_str!("../testdata/worker_messages.txt");

fn golden() -> BTreeMap<&'static str, Vec<u8>> {
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("hexadecimal")
    };
    let parse = |line: &'static str| {
        let (name, bytes) = line.split_once(' ').expect("a name and bytes");
        (name, bytes.as_bytes().chunks(2).map(byte).collect())
    };
    GOLDEN.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The golden bytes decode to `message`, and `message` encodes to them.
fn check<M: Message + Default + PartialEq + Debug>(name: &str, message: M) {
    let now = message.encode_to_vec();
    let golden = golden();
    let then = golden.get(name).unwrap_or_else(|| panic!("add the line\n{name} {}", hex(&now)));
    assert_eq!(M::decode(&then[..]).expect(name), message, "{name}: the frozen bytes decode differently");
    assert_eq!(hex(then), hex(&now), "{name}: the message encodes differently");
    // A later release may add fields: number 2047, a string.
    let mut later = then.clone();
    later.extend_from_slice(&[0xfa, 0x7f, 3, b'n', b'e', b'w']);
    assert_eq!(M::decode(&later[..]).expect(name), message, "{name}: unknown fields are ignored");
}

fn sampling() -> SamplingParams {
    SamplingParams {
        temperature: 0.75,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        repetition_penalty: 1.25,
        presence_penalty: -0.5,
        frequency_penalty: 0.5,
        seed: 0x0123_4567_89ab_cdef,
        logit_bias: vec![LogitBias { token_id: 7, bias: -2.5 }],
        max_tokens: 100,
        min_tokens: 3,
        stop_token_ids: vec![1, 300],
        ignore_eos: true,
        logprobs: Some(0),
        prompt_logprobs: Some(2),
        grammar: None,
        allowed_token_ids: Vec::new(),
        bad_words: Vec::new(),
        pooling: None,
    }
}

/// As sent by releases without stream keys and calls.
fn generate() -> GenerateRequest {
    GenerateRequest {
        request_id: "client#router.1".into(),
        prompt_token_ids: vec![1, 2, 70_000],
        sampling: Some(sampling()),
        samples: vec![
            Sample { index: 0, delivered_token_ids: Vec::new() },
            Sample { index: 3, delivered_token_ids: vec![9, 8, 7] },
        ],
        cache_salt: "tenant".into(),
        priority: -5,
        timeout_ms: 30_000,
        placement: Some(Placement { router_id: 0xfeed, sequence: 12 }),
        stream_key: Vec::new(),
        linger_ms: 0,
        call: 0,
        adapter: 0,
        model_fingerprint: 0,
    }
}

fn logprobs(token_id: u32) -> TokenLogprobs {
    let (top_token_ids, top_logprobs) = (vec![token_id, 2], vec![-0.5, -1.5]);
    TokenLogprobs { token_id, logprob: -0.5, rank: 1, top_token_ids, top_logprobs }
}

fn delta() -> GenerateDelta {
    GenerateDelta {
        epoch: 77,
        sample_index: 3,
        from_position: 6,
        token_ids: vec![5, 40_000],
        logprobs: vec![logprobs(5), logprobs(40_000)],
        finish: Some(Finish { reason: FinishReason::Stop.into(), stop_token_id: Some(0) }),
        cached_tokens: Some(0),
        prompt_logprobs: vec![logprobs(2)],
        from_prompt_position: 1,
        hand_back: false,
        model_fingerprint: 0,
        pooled: Vec::new(),
        stop_logprobs: None,
    }
}

#[test]
fn requests_and_their_output() {
    check("generate", generate());
    check(
        "generate.stream_key",
        GenerateRequest { stream_key: (0..16).collect(), linger_ms: 10_000, ..generate() },
    );
    check("generate.call", GenerateRequest { call: 7, ..generate() });
    check("generate.adapter", GenerateRequest { adapter: 0xfeed, ..generate() });
    check("generate.version", GenerateRequest { model_fingerprint: 0xabcd, ..generate() });
    let grammar = Some(Grammar { text: "start: \"a\"\n".into(), fingerprint: 0xfeed });
    let held = SamplingParams { grammar, ..sampling() };
    check("generate.grammar", GenerateRequest { sampling: Some(held), ..generate() });
    let pooling = SamplingParams { pooling: Some(Pooling { second_from: 2 }), max_tokens: 1, ..sampling() };
    check("generate.pooling", GenerateRequest { sampling: Some(pooling), ..generate() });
    check("delta", delta());
    check("delta.pooled", GenerateDelta { pooled: vec![0.25, -1.5], ..delta() });
    check("delta.stop_logprobs", GenerateDelta { stop_logprobs: Some(logprobs(2)), ..delta() });
    check("delta.version", GenerateDelta { model_fingerprint: 0xabcd, ..delta() });
    let place = GenerateDelta { epoch: 77, sample_index: 1, from_position: 9, ..GenerateDelta::default() };
    check("delta.hand_back", GenerateDelta { hand_back: true, ..place });
    for (name, reason) in [
        ("finish.stop", FinishReason::Stop),
        ("finish.length", FinishReason::Length),
        ("finish.abort", FinishReason::Abort),
    ] {
        check(name, Finish { reason: reason.into(), stop_token_id: None });
    }
    check("abort", AbortRequest { request_id: "client#router.1".into(), sample_index: 3 });
    check("abort.response", AbortResponse { found: true });
    let samples = vec![SamplePosition { index: 3, from_position: 45 }];
    let attach = AttachRequest {
        request_id: "client#other.1".into(),
        stream_key: (0..16).collect(),
        samples,
        from_prompt_position: 2,
        linger_ms: 10_000,
    };
    check("attach", attach.clone());
    let header = || Header { name: "traceparent".into(), value: "00-1".into() };
    let first = RouterFrame {
        call: 1,
        content: Some(router_frame::Content::Generate(GenerateRequest {
            prompt_token_ids: vec![],
            ..generate()
        })),
        prompt: vec![1, 0, 0, 0, 0x2c, 1, 0, 0].into(),
        metadata: vec![header()],
        credit: 8192,
    };
    let attaching = Some(router_frame::Content::Attach(attach));
    let leaving = Some(router_frame::Content::Leave(Leave {}));
    let frames = vec![
        first,
        RouterFrame { call: 2, content: attaching, credit: 8192, ..RouterFrame::default() },
        RouterFrame { call: 1, credit: 4096, ..RouterFrame::default() },
        RouterFrame { call: 2, content: leaving, ..RouterFrame::default() },
    ];
    check("exchange.router", RouterFrames { frames });
    let end = End { code: 8, message: "full".into(), metadata: vec![header()] };
    let contents = [
        worker_frame::Content::Accepted(Accepted {}),
        worker_frame::Content::Delta(delta()),
        worker_frame::Content::End(end),
    ];
    let frames = contents.map(|content| WorkerFrame { call: 300, content: Some(content) }).to_vec();
    check("exchange.worker", WorkerFrames { frames });
    check("release", ReleaseRequest { request_id: "client#router.1".into() });
    check("release.response", ReleaseResponse { found: true });
}

#[test]
fn what_a_worker_says_of_itself() {
    let info = InfoResponse {
        epoch: 77,
        model: "tiny".into(),
        max_model_len: 4096,
        vocab_size: 32_000,
        block_size: 16,
        kv_blocks: 1000,
        max_num_seqs: 64,
        max_num_batched_tokens: 512,
        resume_exact: true,
        version: "0.1.0".into(),
        backend: "cpu".into(),
        model_fingerprint: 0xabcd,
        grammar_fingerprint: 0,
        tokenizer_fingerprint: 0,
        serving_since_ms: 0,
        pooled: None,
    };
    check("info", info.clone());
    check("info.grammars", InfoResponse { grammar_fingerprint: 0xfeed, ..info.clone() });
    let since = InfoResponse { tokenizer_fingerprint: 0xbeef, serving_since_ms: 1_764_000_000_000, ..info };
    check("info.version", since.clone());
    let pooled = PooledModel {
        width: 384,
        kind: PooledKind::Embedding.into(),
        is_normalized: true,
        labels: vec!["yes".into()],
    };
    check("info.pooled", InfoResponse { pooled: Some(pooled), ..since });
    check("watch", WatchRequest { epoch: 77, next_sequence: 5, router_id: 0xfeed });
    let event = |event| WorkerEvent { epoch: 77, sequence: 5, event: Some(event) };
    let retired = Adapter { name: String::new(), id: 0xbeef, is_resident: false };
    let adapters = vec![Adapter { name: "sql".into(), id: 0xfeed, is_resident: true }, retired];
    check("event.adapters", event(worker_event::Event::Adapters(AdapterList { adapters, records: None })));
    let (name, path) = ("sql".to_owned(), "/adapters/sql".to_owned());
    let loaded = AdapterRecord { name, path, id: 0xfeed, stamp: 7, is_unloaded: false };
    let unloaded =
        AdapterRecord { name: "old".into(), stamp: 8, is_unloaded: true, ..AdapterRecord::default() };
    let records = Some(AdapterRecords { records: vec![loaded, unloaded] });
    let list = AdapterList { adapters: Vec::new(), records };
    check("event.adapters.records", event(worker_event::Event::Adapters(list)));
    let load = LoadAdapterRequest {
        name: "sql".into(),
        path: "/adapters/sql".into(),
        id: 0xfeed,
        stamp: 0,
        only_check: false,
    };
    check("load_adapter.stamp", LoadAdapterRequest { stamp: 7, ..load.clone() });
    check("load_adapter.check", LoadAdapterRequest { only_check: true, ..load.clone() });
    check("load_adapter", load);
    check("load_adapter.response", LoadAdapterResponse { id: 0xfeed });
    let unload = UnloadAdapterRequest { name: "sql".into(), stamp: 0, is_repeated: false };
    check("unload_adapter.stamp", UnloadAdapterRequest { stamp: 8, is_repeated: true, ..unload.clone() });
    check("unload_adapter", unload);
    check("unload_adapter.response", UnloadAdapterResponse { found: true });
    let run = RunStored { handle: 4, parent: 2, depth: 1, hashes: vec![0x1111, 0x2222] };
    let snapshot = CacheSnapshot { runs: vec![run.clone()], ..CacheSnapshot::default() };
    check("event.snapshot", event(worker_event::Event::Snapshot(snapshot.clone())));
    let stream_keys = vec![(0..16).collect(), (16..32).collect()];
    let keyed = CacheSnapshot { stream_keys, ..snapshot.clone() };
    check("event.snapshot.stream_keys", event(worker_event::Event::Snapshot(keyed)));
    let gapped = CacheSnapshot { gaps: vec![0x2222], window_blocks: 3, ..snapshot.clone() };
    check("event.snapshot.gaps", event(worker_event::Event::Snapshot(gapped)));
    let ends = CacheSnapshot { gaps: vec![0x2222], gaps_are_ends: true, ..snapshot };
    check("event.snapshot.ends", event(worker_event::Event::Snapshot(ends)));
    let truncated = vec![RunTruncated { handle: 4, new_end: 2 }];
    let change = CacheDelta { truncated, stored: vec![run], gaps: Vec::new() };
    check("event.cache", event(worker_event::Event::Cache(change.clone())));
    let gaps = vec![Gap { hash: 0x1111, is_open: true }, Gap { hash: 0x2222, is_open: false }];
    check("event.cache.gaps", event(worker_event::Event::Cache(CacheDelta { gaps, ..change })));
    let placement = Some(Placement { router_id: 0xfeed, sequence: 12 });
    let admitted = Admitted { placement, depth: 2, hashes: vec![0x3333], stream_key: Vec::new() };
    check("event.admitted", event(worker_event::Event::Admitted(admitted.clone())));
    let keyed = Admitted { stream_key: (0..16).collect(), ..admitted };
    check("event.admitted.stream_key", event(worker_event::Event::Admitted(keyed)));
    let load = Load {
        queued_uncached_tokens: 1000,
        waiting: 2,
        running: 3,
        free_blocks: 900,
        prefill_tokens_per_second: 512.5,
        decode_tokens_per_second: 64.25,
        step: 12_345,
        last_placement_sequence: 12,
        draining: true,
        giving_back: false,
        totals: Vec::new(),
        detail: None,
    };
    check("event.load", event(worker_event::Event::Load(load.clone())));
    let detail = LoadDetail {
        cached_blocks: 1,
        shared_blocks: 2,
        step_seconds: 0.25,
        prompt_tokens: 4,
        cached_prompt_tokens: 5,
        output_tokens: 6,
    };
    check("event.load.detail", event(worker_event::Event::Load(Load { detail: Some(detail), ..load })));
}

/// Converting a message to plain types and back loses and adds nothing.
#[test]
fn plain_types_say_what_messages_say() {
    let params = skein_proto::sampling::SamplingParams::from(sampling());
    assert_eq!(SamplingParams::from(params), sampling());
    let new = WorkerDelta::try_from(delta()).expect("well formed");
    assert_eq!(GenerateDelta::from(new), delta());
    let golden = golden();
    for (name, bytes) in golden.iter().filter(|(name, _)| name.starts_with("event.")) {
        let event = WorkerEvent::decode(&bytes[..]).expect(name);
        let plain = skein_proto::watch::WatchEvent::from(event.clone());
        assert_eq!(WorkerEvent::from(plain), event, "{name}");
    }
    let info = InfoResponse::decode(&golden["info"][..]).expect("info");
    let read = skein_proto::info::WorkerInfo::try_from(info.clone()).expect("info");
    assert_eq!(InfoResponse::from(read), info);
}

#[test]
fn what_no_worker_should_send_is_named() {
    let refused = |delta: GenerateDelta| WorkerDelta::try_from(delta).expect_err("malformed").to_string();
    let uneven = TokenLogprobs { top_logprobs: Vec::new(), ..logprobs(5) };
    let got = refused(GenerateDelta { logprobs: vec![uneven], ..delta() });
    assert_eq!(got, "top_token_ids and top_logprobs differ in length");
    let unsaid = Finish { reason: FinishReason::Unspecified.into(), stop_token_id: None };
    let got = refused(GenerateDelta { finish: Some(unsaid), ..delta() });
    assert_eq!(got, "a sample ended without a reason");
}

#[test]
fn every_golden_message_is_checked() {
    let source = include_str!("worker_messages.rs");
    for name in golden().keys() {
        assert!(source.contains(&format!("\"{name}\"")), "{name} is in the file and in no test");
    }
}
