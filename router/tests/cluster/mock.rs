//! A worker that implements only the contract. Its tokens are a hash of the preceding ones, and its faults
//! are scripted. Each runs on its own runtime, so that killing it closes its sockets as a dead process would.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use skein_exchange::server::serve;
use skein_proto::block_hash;
use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::worker_server::{Worker, WorkerServer};
use tonic::{Code, Request, Response, Status, Streaming};
use wire::worker_event::Event;

pub const MODEL: &str = "m";
pub const BLOCK_SIZE: usize = 4;
pub const VOCAB_SIZE: u32 = 1000;

/// A fault of one Generate call, after the given number of deltas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// The stream breaks with an error.
    Break(usize),
    /// The stream ends early without an error.
    End(usize),
    /// A delta is sent twice.
    Twice(usize),
    /// A delta is missing.
    Hole(usize),
    /// A delta carries another epoch.
    OtherEpoch(usize),
    /// No more deltas, and the engine's step counter stops.
    Hang(usize),
    /// The call is refused with UNAVAILABLE.
    Unavailable,
    /// The call is refused because the worker is full.
    Full,
    /// The call is refused because the request is invalid.
    Invalid,
    /// The connection breaks; the output stays readable by Attach.
    Drop(usize),
    /// The worker hands the rest back.
    HandBack(usize),
}

/// Faults and records shared by the workers of a scene.
#[derive(Debug, Default)]
pub struct Script {
    faults: Mutex<VecDeque<Fault>>,
    /// Every Generate call: worker and request.
    pub calls: Mutex<Vec<(u32, wire::GenerateRequest)>>,
    /// Every Attach call: worker, request, and whether the stream was found.
    pub attaches: Mutex<Vec<(u32, wire::AttachRequest, bool)>>,
    /// Released readers: worker and request id.
    pub releases: Mutex<Vec<(u32, String)>>,
    pub aborts: Mutex<Vec<(String, u32)>>,
    pub watches: Mutex<Vec<wire::WatchRequest>>,
    /// Streams that the router dropped before their end.
    pub cancelled: AtomicU32,
    /// Milliseconds between deltas.
    pub pace_ms: AtomicU32,
    /// Workers started from now on do not promise exact resumption.
    pub inexact: AtomicBool,
    /// Workers of a release that knows no exchanges.
    pub without_exchanges: AtomicBool,
    /// The code with which the next exchange ends after a few messages.
    pub exchange_ends: Mutex<Option<Code>>,
    /// Exchanges that routers asked for.
    pub exchanges: AtomicU32,
}

impl Script {
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.faults).extend(faults);
    }

    pub fn calls_to(&self, worker: u32) -> usize {
        lock(&self.calls).iter().filter(|(called, _)| *called == worker).count()
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test thread panics while it holds this")
}

/// A running mock worker.
pub struct Mock {
    pub address: SocketAddr,
    pub state: Arc<State>,
    runtime: Option<tokio::runtime::Runtime>,
}

pub struct State {
    name: u32,
    epoch: u64,
    /// Version of the model, on which its tokens depend, and since when it serves.
    version: u64,
    script: Arc<Script>,
    /// The event log: event n is at index n - 1; `None` is never sent.
    log: Mutex<Vec<Option<Event>>>,
    stored: Mutex<Vec<wire::RunStored>>,
    /// Streams that Attach can find, oldest first: their key, and the request that started them.
    kept: Mutex<Vec<(Vec<u8>, wire::GenerateRequest)>>,
    lose_next: AtomicBool,
    frozen: AtomicBool,
    pub draining: AtomicBool,
    /// Whether it requests routers to move its streams elsewhere.
    pub giving_back: AtomicBool,
    running: AtomicU32,
    changed: tokio::sync::watch::Sender<u64>,
}

impl Mock {
    /// Starts a worker with version 1 of the model at `address` (port 0 = any).
    pub fn start(name: u32, epoch: u64, address: SocketAddr, script: &Arc<Script>) -> Self {
        Self::start_version(name, epoch, address, script, 1)
    }

    /// [`start`](Self::start) with another version.
    pub fn start_version(
        name: u32,
        epoch: u64,
        address: SocketAddr,
        script: &Arc<Script>,
        version: u64,
    ) -> Self {
        let listener = std::net::TcpListener::bind(address).expect("the port is free");
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(State {
            name,
            epoch,
            version,
            script: script.clone(),
            log: Mutex::default(),
            stored: Mutex::default(),
            kept: Mutex::default(),
            lose_next: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            giving_back: AtomicBool::new(false),
            running: AtomicU32::new(0),
            changed: tokio::sync::watch::Sender::new(0),
        });
        let service = WorkerServer::new(Service(state.clone()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is non-blocking");
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.expect("it serves");
        });
        Self { address, state, runtime: Some(runtime) }
    }

    /// Like `kill -9`: its sockets close without any message.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    /// Makes the next event of the log consume a number without being sent.
    pub fn lose_next_event(&self) {
        self.lose_next.store(true, Ordering::SeqCst);
    }

    fn append(&self, event: Event) {
        let lost = self.lose_next.swap(false, Ordering::SeqCst);
        lock(&self.log).push((!lost).then_some(event));
        self.changed.send_modify(|version| *version += 1);
    }

    /// Adds a prompt to the cache; returns how many of its tokens were there.
    fn cache(&self, request: &wire::GenerateRequest) -> u32 {
        let root = block_hash::root(MODEL, "", &request.cache_salt);
        let hashes = block_hash::chain(root, &request.prompt_token_ids, BLOCK_SIZE);
        let known: HashSet<u64> =
            lock(&self.stored).iter().flat_map(|run| run.hashes.iter().copied()).collect();
        let held = hashes.iter().take_while(|hash| known.contains(hash)).count();
        let missing = hashes[held..].to_vec();
        let admitted = wire::Admitted {
            placement: request.placement,
            depth: held as u32,
            hashes: missing.clone(),
            stream_key: request.stream_key.clone(),
        };
        self.append(Event::Admitted(admitted));
        // Prompts in these tests share either no blocks or all of them, so a new run starts at depth 0.
        if held == 0 && !missing.is_empty() {
            let handle = lock(&self.stored).len() as u64 + 1;
            let run = wire::RunStored { handle, parent: 0, depth: 0, hashes: missing };
            lock(&self.stored).push(run.clone());
            self.append(Event::Cache(wire::CacheDelta { stored: vec![run], ..wire::CacheDelta::default() }));
        }
        (held * BLOCK_SIZE) as u32
    }

    fn load(&self, step: u64) -> Event {
        let last = |(called, request): &(u32, wire::GenerateRequest)| {
            (*called == self.name).then(|| request.placement.map_or(0, |placement| placement.sequence))
        };
        Event::Load(wire::Load {
            running: self.running.load(Ordering::SeqCst),
            free_blocks: 10_000,
            prefill_tokens_per_second: 10_000.0,
            decode_tokens_per_second: 1000.0,
            step: if self.frozen.load(Ordering::SeqCst) { 1 } else { step },
            last_placement_sequence: lock(&self.script.calls).iter().filter_map(last).max().unwrap_or(0),
            draining: self.draining.load(Ordering::SeqCst),
            giving_back: self.giving_back.load(Ordering::SeqCst),
            ..wire::Load::default()
        })
    }
}

#[derive(Clone)]
struct Service(Arc<State>);

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for Service {
    type GenerateStream = Answer<wire::GenerateDelta>;
    type AttachStream = Answer<wire::GenerateDelta>;
    type ExchangeStream = Answer<wire::WorkerFrames>;
    type WatchStream = Answer<wire::WorkerEvent>;

    async fn info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        Ok(Response::new(wire::InfoResponse {
            epoch: self.0.epoch,
            model: MODEL.into(),
            max_model_len: 4096,
            vocab_size: VOCAB_SIZE,
            block_size: BLOCK_SIZE as u32,
            kv_blocks: 10_000,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            resume_exact: !self.0.script.inexact.load(Ordering::SeqCst),
            version: "0".into(),
            backend: "mock".into(),
            model_fingerprint: self.0.version,
            grammar_fingerprint: 0,
            tokenizer_fingerprint: 0,
            serving_since_ms: self.0.version,
            pooled: None,
        }))
    }

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let state = self.0.clone();
        let request = request.into_inner();
        lock(&state.script.calls).push((state.name, request.clone()));
        let fault = lock(&state.script.faults).pop_front();
        if ![0, state.version].contains(&request.model_fingerprint) {
            return Err(Status::aborted("it serves another version"));
        }
        match fault {
            Some(Fault::Unavailable) => return Err(Status::unavailable("scripted")),
            Some(Fault::Full) => return Err(Status::resource_exhausted("scripted")),
            Some(Fault::Invalid) => return Err(Status::invalid_argument("scripted: max_tokens")),
            _ => {}
        }
        if !request.stream_key.is_empty() && request.linger_ms > 0 {
            lock(&state.kept).push((request.stream_key.clone(), request.clone()));
        }
        let cached_tokens = state.cache(&request);
        let deltas = deltas(&request, &state, cached_tokens);
        Ok(Response::new(Box::pin(play(state, deltas, fault))))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<wire::RouterFrames>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        self.0.script.exchanges.fetch_add(1, Ordering::SeqCst);
        if self.0.script.without_exchanges.load(Ordering::SeqCst) {
            return Err(Status::unimplemented("it is of the release before"));
        }
        let answers = serve(Arc::new(self.clone()), request.into_inner(), std::future::pending());
        let Some(code) = lock(&self.0.script.exchange_ends).take() else {
            return Ok(Response::new(Box::pin(answers)));
        };
        let end = stream::iter([Err(Status::new(code, "scripted"))]);
        Ok(Response::new(Box::pin(answers.take(2).chain(end))))
    }

    async fn load_adapter(
        &self,
        _: Request<wire::LoadAdapterRequest>,
    ) -> Result<Response<wire::LoadAdapterResponse>, Status> {
        Err(Status::unimplemented("it has no adapters"))
    }

    async fn unload_adapter(
        &self,
        _: Request<wire::UnloadAdapterRequest>,
    ) -> Result<Response<wire::UnloadAdapterResponse>, Status> {
        Err(Status::unimplemented("it has no adapters"))
    }

    async fn drain(
        &self,
        request: Request<wire::DrainRequest>,
    ) -> Result<Response<wire::DrainResponse>, Status> {
        let on = request.into_inner().on;
        self.0.draining.store(on, Ordering::SeqCst);
        self.0.giving_back.store(on, Ordering::SeqCst);
        Ok(Response::new(wire::DrainResponse {}))
    }

    async fn abort(
        &self,
        request: Request<wire::AbortRequest>,
    ) -> Result<Response<wire::AbortResponse>, Status> {
        let request = request.into_inner();
        lock(&self.0.script.aborts).push((request.request_id, request.sample_index));
        Ok(Response::new(wire::AbortResponse { found: true }))
    }

    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let state = self.0.clone();
        let request = request.into_inner();
        let kept = lock(&state.kept);
        let began = kept.iter().find(|(key, _)| *key == request.stream_key).map(|(_, began)| began.clone());
        drop(kept);
        lock(&state.script.attaches).push((state.name, request.clone(), began.is_some()));
        let began = began.ok_or_else(|| Status::not_found("no such stream is kept here"))?;
        let fault = lock(&state.script.faults).pop_front();
        let deltas = attached(&request, deltas(&began, &state, 0))?;
        Ok(Response::new(Box::pin(play(state, deltas, fault))))
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        let reader = request.into_inner().request_id;
        lock(&self.0.script.releases).push((self.0.name, reader));
        Ok(Response::new(wire::ReleaseResponse { found: true }))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        lock(&self.0.script.watches).push(request);
        Ok(Response::new(Box::pin(follow(self.0.clone(), request))))
    }
}

/// The log from the position that a router requests, with load reports in between.
fn follow(
    state: Arc<State>,
    request: wire::WatchRequest,
) -> impl Stream<Item = Result<wire::WorkerEvent, Status>> + Send {
    async_stream::stream! {
        let mut changed = state.changed.subscribe();
        let mut next = request.next_sequence;
        let event = |sequence, event| {
            Ok(wire::WorkerEvent { epoch: state.epoch, sequence, event: Some(event) })
        };
        if request.epoch != state.epoch || next == 0 {
            let runs = lock(&state.stored).clone();
            next = lock(&state.log).len() as u64 + 1;
            let stream_keys = lock(&state.kept).iter().map(|(key, _)| key.clone()).collect();
            yield event(next, Event::Snapshot(wire::CacheSnapshot { runs, stream_keys, ..wire::CacheSnapshot::default() }));
        }
        let mut step = 1;
        loop {
            let entries = lock(&state.log)[next as usize - 1..].to_vec();
            for entry in entries {
                if let Some(entry) = entry {
                    yield event(next, entry);
                }
                next += 1;
            }
            step += 1;
            yield event(next, state.load(step));
            // Check again after a change or a timeout.
            let _ = tokio::time::timeout(Duration::from_millis(50), changed.changed()).await;
        }
    }
}

/// Counts a stream as running, and as cancelled if it is dropped before its end.
struct Running {
    state: Arc<State>,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.state.running.fetch_sub(1, Ordering::SeqCst);
        if !self.ended {
            self.state.script.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn play(
    state: Arc<State>,
    deltas: Vec<wire::GenerateDelta>,
    fault: Option<Fault>,
) -> impl Stream<Item = Result<wire::GenerateDelta, Status>> + Send {
    async_stream::stream! {
        state.running.fetch_add(1, Ordering::SeqCst);
        let mut running = Running { state: state.clone(), ended: false };
        for (index, mut delta) in deltas.into_iter().enumerate() {
            paced(&state.script.pace_ms).await;
            match fault {
                Some(Fault::Break(at)) if index == at => {
                    running.ended = true;
                    lock(&state.kept).clear();
                    yield Err(Status::unavailable("scripted"));
                    return;
                }
                Some(Fault::Drop(at)) if index == at => {
                    running.ended = true;
                    yield Err(Status::unavailable("scripted: the connection broke"));
                    return;
                }
                Some(Fault::HandBack(at)) if index == at => {
                    running.ended = true;
                    lock(&state.kept).clear();
                    state.draining.store(true, Ordering::SeqCst);
                    yield Ok(wire::GenerateDelta {
                        epoch: state.epoch,
                        hand_back: true,
                        ..wire::GenerateDelta::default()
                    });
                    return;
                }
                Some(Fault::End(at)) if index == at => {
                    running.ended = true;
                    return;
                }
                Some(Fault::Hang(at)) if index == at => {
                    state.frozen.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }
                Some(Fault::Twice(at)) if index == at => yield Ok(delta.clone()),
                Some(Fault::Hole(at)) if index == at => continue,
                Some(Fault::OtherEpoch(at)) if index == at => delta.epoch += 1,
                _ => {}
            }
            yield Ok(delta);
        }
        running.ended = true;
    }
}

/// Waits between two deltas, no longer than the script says now: a test may end the wait.
async fn paced(pace_ms: &AtomicU32) {
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_millis(pace_ms.load(Ordering::SeqCst).into()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn token_logprobs(token: u32) -> wire::TokenLogprobs {
    let logprob = -(token as f32) / 7.0;
    let (top_token_ids, top_logprobs) = (vec![token], vec![logprob]);
    wire::TokenLogprobs { token_id: token, logprob, rank: 1, top_token_ids, top_logprobs }
}

/// The model: a hash of seed, sample and all tokens so far.
fn next_token(seed: u64, sample: u32, history: &[u32]) -> u32 {
    let root = seed ^ (u64::from(sample) << 32) ^ history.len() as u64;
    (block_hash::extend(root, history) % u64::from(VOCAB_SIZE)) as u32
}

/// All deltas of a request, one token each, its samples interleaved. Multiples of 41 end a sample.
fn deltas(request: &wire::GenerateRequest, state: &State, cached_tokens: u32) -> Vec<wire::GenerateDelta> {
    let sampling = request.sampling.clone().unwrap_or_default();
    let prompt = &request.prompt_token_ids;
    let mut samples: Vec<(u32, Vec<u32>, bool)> = request
        .samples
        .iter()
        .map(|sample| (sample.index, [prompt, &sample.delivered_token_ids[..]].concat(), false))
        .collect();
    let mut deltas = Vec::new();
    if sampling.prompt_logprobs.is_some() {
        deltas.push(wire::GenerateDelta {
            sample_index: samples[0].0,
            from_position: samples[0].1.len() as u32,
            prompt_logprobs: prompt[1..].iter().copied().map(token_logprobs).collect(),
            from_prompt_position: 1,
            ..wire::GenerateDelta::default()
        });
    }
    while samples.iter().any(|(_, _, ended)| !ended) {
        for (index, history, ended) in samples.iter_mut().filter(|(_, _, ended)| !ended) {
            let mut delta = wire::GenerateDelta {
                sample_index: *index,
                from_position: history.len() as u32,
                ..wire::GenerateDelta::default()
            };
            let token = next_token(sampling.seed ^ ((state.version - 1) << 48), *index, history);
            let finish = if history.len() - prompt.len() == sampling.max_tokens as usize {
                Some((wire::FinishReason::Length, None))
            } else if token.is_multiple_of(41) {
                Some((wire::FinishReason::Stop, Some(token)))
            } else {
                history.push(token);
                delta.token_ids.push(token);
                delta.logprobs.extend(sampling.logprobs.map(|_| token_logprobs(token)));
                None
            };
            *ended = finish.is_some();
            delta.finish =
                finish.map(|(reason, stop_token_id)| wire::Finish { reason: reason.into(), stop_token_id });
            deltas.push(delta);
        }
    }
    deltas.iter_mut().for_each(|delta| delta.epoch = state.epoch);
    deltas[0].cached_tokens = Some(cached_tokens);
    deltas
}

/// Deltas of a stream that a reader still needs.
fn attached(
    request: &wire::AttachRequest,
    deltas: Vec<wire::GenerateDelta>,
) -> Result<Vec<wire::GenerateDelta>, Status> {
    let wanted = |delta: &wire::GenerateDelta| {
        let sample = request.samples.iter().find(|sample| sample.index == delta.sample_index);
        let prompt = !delta.prompt_logprobs.is_empty() && request.from_prompt_position <= 1;
        let tokens = delta.prompt_logprobs.is_empty();
        sample.is_some_and(|sample| prompt || tokens && delta.from_position >= sample.from_position)
    };
    for sample in &request.samples {
        let first = deltas.iter().find(|delta| delta.sample_index == sample.index);
        if first.is_none_or(|first| first.from_position > sample.from_position) {
            return Err(Status::out_of_range("its beginning is gone"));
        }
    }
    Ok(deltas.into_iter().filter(wanted).collect())
}

/// Directions in which a [`Wire`] transmits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flow {
    Both,
    ToWorker,
    FromWorker,
    None,
}

/// A connection to a worker that can be cut in one direction or both without its ends noticing, as by a
/// stopped process, a dead switch or an asymmetric firewall.
pub struct Wire {
    pub address: SocketAddr,
    flow: tokio::sync::watch::Sender<Flow>,
}

impl Wire {
    pub async fn to(worker: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let flow = tokio::sync::watch::Sender::new(Flow::Both);
        let flows = flow.subscribe();
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            // Ends with the test's runtime.
            while let Ok((from, _)) = listener.accept().await {
                let flows = flows.clone();
                connections.spawn(async move {
                    let to = tokio::net::TcpStream::connect(worker).await.expect("the worker listens");
                    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
                    tokio::select! {
                        () = carry(from_read, to_write, flows.clone(), Flow::ToWorker) => {}
                        () = carry(to_read, from_write, flows, Flow::FromWorker) => {}
                    }
                });
            }
        });
        Self { address, flow }
    }

    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

/// Copies bytes in one direction while the wire is open in that direction. Later bytes are lost, and the
/// sockets stay open.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut flows: tokio::sync::watch::Receiver<Flow>,
    way: Flow,
) {
    let closed = flows.wait_for(|flow| *flow != Flow::Both && *flow != way);
    let copied = tokio::select! {
        copied = tokio::io::copy(&mut from, &mut to) => copied,
        _ = closed => Ok(0),
    };
    let cut = {
        let flow = *flows.borrow();
        flow != Flow::Both && flow != way
    };
    if cut {
        std::future::pending::<()>().await;
    }
    drop(copied);
}
