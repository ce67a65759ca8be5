//! Both ends together, over a service of this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use skein_proto::worker::v1::router_frame::Content;
use skein_proto::worker::v1::worker_server::Worker;
use skein_proto::worker::v1::{self as wire, RouterFrame, RouterFrames, WorkerFrames, worker_frame};
use tokio::sync::Notify;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status, Streaming};

use super::serve;
use crate::client::{self, Exchange};
use crate::limits::{CREDIT, MAX_CALLS, MAX_FRAMES, cost};

/// Answers each request with its own prompt, a token a delta; the id says how.
#[derive(Debug, Default)]
struct Echo {
    /// Deltas that were taken from streams.
    given: Arc<AtomicU32>,
    /// Streams that are open.
    open: Arc<AtomicUsize>,
    /// Lets the streams `wait` go on.
    go: Arc<Notify>,
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type Deltas = BoxStream<'static, Result<wire::GenerateDelta, Status>>;

fn one(token: u32) -> wire::GenerateDelta {
    wire::GenerateDelta { token_ids: vec![token], ..wire::GenerateDelta::default() }
}

#[tonic::async_trait]
impl Worker for Echo {
    type GenerateStream = Deltas;
    type AttachStream = Deltas;
    type ExchangeStream = BoxStream<'static, Result<WorkerFrames, Status>>;
    type WatchStream = BoxStream<'static, Result<wire::WorkerEvent, Status>>;

    async fn generate(&self, request: Request<wire::GenerateRequest>) -> Result<Response<Deltas>, Status> {
        let traced = request.metadata().get("traceparent").is_some();
        let request = request.into_inner();
        if request.request_id == "full" {
            let mut full = Status::resource_exhausted("full");
            full.metadata_mut().insert("retry-after-ms", MetadataValue::from_static("7"));
            return Err(full);
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        let (open, given) = (Open(self.open.clone()), self.given.clone());
        let begin = match request.request_id.as_str() {
            "wait" => {
                let go = self.go.clone();
                async move { go.notified().await }.boxed()
            }
            _ => future::ready(()).boxed(),
        };
        let last = match request.request_id.as_str() {
            "cut" => Some(Err(Status::unavailable("cut"))),
            "traced" => Some(Ok(one(traced.into()))),
            _ => None,
        };
        let tokens = stream::iter(request.prompt_token_ids).map(move |token| {
            let _held = &open;
            given.fetch_add(1, Ordering::SeqCst);
            Ok(one(token))
        });
        let all = begin.into_stream().map(|()| None).chain(tokens.map(Some)).filter_map(future::ready);
        Ok(Response::new(all.chain(stream::iter(last)).boxed()))
    }

    async fn attach(&self, request: Request<wire::AttachRequest>) -> Result<Response<Deltas>, Status> {
        Err(Status::not_found(request.into_inner().request_id))
    }

    async fn info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn exchange(
        &self,
        _: Request<Streaming<RouterFrames>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn release(
        &self,
        _: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn abort(&self, _: Request<wire::AbortRequest>) -> Result<Response<wire::AbortResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch(&self, _: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn load_adapter(
        &self,
        _: Request<wire::LoadAdapterRequest>,
    ) -> Result<Response<wire::LoadAdapterResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn unload_adapter(
        &self,
        _: Request<wire::UnloadAdapterRequest>,
    ) -> Result<Response<wire::UnloadAdapterResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Result<Response<wire::DrainResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A router's end that is joined to `service` without a network, and the task that reads its answers.
fn joined(service: &Arc<Echo>, stopping: impl Future<Output = ()> + Send + 'static) -> (Exchange, Reading) {
    let (exchange, frames, answers) = client::exchange(CREDIT);
    let served = serve(service.clone(), frames.map(Ok), stopping);
    (exchange, tokio::spawn(answers.read(Box::pin(served))))
}

type Reading = tokio::task::JoinHandle<Option<Status>>;

fn request(id: &str, tokens: impl IntoIterator<Item = u32>) -> Request<wire::GenerateRequest> {
    Request::new(wire::GenerateRequest {
        request_id: id.to_owned(),
        prompt_token_ids: tokens.into_iter().collect(),
        ..wire::GenerateRequest::default()
    })
}

async fn tokens(deltas: impl Stream<Item = Result<wire::GenerateDelta, Status>>) -> Vec<u32> {
    let deltas: Vec<_> = deltas.collect().await;
    deltas.into_iter().flat_map(|delta| delta.expect("it does not fail").token_ids).collect()
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn many_calls_at_once_each_get_their_own_answer_whole() {
    let service = Arc::new(Echo::default());
    let (exchange, _reading) = joined(&service, future::pending());
    let call = async |at: u32| {
        // Far more than the credit of a call, so that credit comes back many times.
        let prompt: Vec<u32> = (0..500 + at).map(|token| token * 1000 + at).collect();
        let deltas = exchange.generate(request("echo", prompt.clone())).await.expect("it is accepted");
        assert_eq!(tokens(deltas).await, prompt);
    };
    future::join_all((0..100).map(call)).await;
    assert_eq!(service.open.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn refusals_failures_and_metadata_arrive() {
    let service = Arc::new(Echo::default());
    let (exchange, _reading) = joined(&service, future::pending());
    let full = exchange.generate(request("full", [1])).await.unwrap_err();
    assert_eq!(
        (full.code(), full.metadata().get("retry-after-ms").unwrap().as_bytes()),
        (Code::ResourceExhausted, &b"7"[..])
    );
    let deltas = exchange.generate(request("cut", [1, 2])).await.unwrap();
    let all: Vec<_> = deltas.map(|delta| delta.map_err(|status| status.code())).collect().await;
    assert_eq!(all, [Ok(one(1)), Ok(one(2)), Err(Code::Unavailable)]);
    let mut traced = request("traced", []);
    traced.metadata_mut().insert("traceparent", MetadataValue::from_static("00-0"));
    assert_eq!(tokens(exchange.generate(traced).await.unwrap()).await, [1]);
    let attach = wire::AttachRequest { request_id: "me".to_owned(), ..wire::AttachRequest::default() };
    let missing = exchange.attach(Request::new(attach)).await.unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "me"));
}

/// A reader that stops holds up nothing but its own call, and the worker stops at the credit.
#[tokio::test]
async fn a_slow_reader_costs_only_itself() {
    let service = Arc::new(Echo::default());
    let (exchange, _reading) = joined(&service, future::pending());
    let prompt: Vec<u32> = (0..10_000).collect();
    let slow = exchange.generate(request("echo", prompt.clone())).await.unwrap();
    let most = CREDIT.div_ceil(cost(&one(1)));
    for _ in 0..3 {
        let before = service.given.load(Ordering::SeqCst);
        assert!(before <= most, "{before} deltas on the way to a reader that does not read; at most {most}");
        let fast = exchange.generate(request("echo", [1, 2, 3])).await.unwrap();
        assert_eq!(tokens(fast).await, [1, 2, 3]);
        service.given.fetch_sub(3, Ordering::SeqCst);
    }
    assert_eq!(tokens(slow).await, prompt);
}

#[tokio::test]
async fn the_worker_drops_the_stream_of_a_reader_that_leaves() {
    let service = Arc::new(Echo::default());
    let (exchange, _reading) = joined(&service, future::pending());
    let waiting = exchange.generate(request("wait", [1])).await.unwrap();
    let unread = exchange.generate(request("echo", 0..10_000)).await.unwrap();
    until(|| service.open.load(Ordering::SeqCst) == 2).await;
    drop((waiting, unread));
    until(|| service.open.load(Ordering::SeqCst) == 0).await;
    assert!(exchange.is_open());
}

#[tokio::test]
async fn the_exchange_ends_after_its_calls_when_either_end_stops() {
    for is_worker in [true, false] {
        let service = Arc::new(Echo::default());
        let stop = Arc::new(Notify::new());
        let stopping = stop.clone();
        let (exchange, reading) = joined(&service, async move { stopping.notified().await });
        let waiting = exchange.generate(request("wait", [1, 2])).await.unwrap();
        if is_worker {
            stop.notify_one()
        } else {
            drop(exchange)
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!reading.is_finished(), "a call still runs");
        service.go.notify_one();
        assert_eq!(tokens(waiting).await, [1, 2]);
        assert!(reading.await.unwrap().is_none(), "it has ended in order");
    }
}

/// Answers to frames as they are, up to the first pause.
fn answers(frames: Vec<RouterFrame>) -> Vec<Result<Vec<worker_frame::Content>, Code>> {
    let message = stream::iter([Ok(RouterFrames { frames })]).chain(stream::pending());
    let mut served = Box::pin(serve(Arc::new(Echo::default()), message, future::pending()));
    let mut all = Vec::new();
    while let Some(Some(message)) = served.next().now_or_never() {
        let contents =
            |message: WorkerFrames| message.frames.into_iter().filter_map(|frame| frame.content).collect();
        all.push(message.map(contents).map_err(|status| status.code()));
    }
    all
}

fn first(call: u64, prompt: &'static [u8]) -> RouterFrame {
    let content = Some(Content::Generate(wire::GenerateRequest::default()));
    RouterFrame { call, content, prompt: prompt.into(), credit: CREDIT, ..RouterFrame::default() }
}

#[tokio::test]
async fn frames_that_no_router_sends_end_the_exchange_or_their_call() {
    for twice in
        [[first(1, b""), first(1, b"")], [first(2, b""), first(1, b"")], [first(0, b""), first(1, b"")]]
    {
        assert_eq!(answers(twice.to_vec()), [Err(Code::InvalidArgument)]);
    }
    let cut = answers(vec![first(1, b"123"), first(2, b"\x05\0\0\0")]);
    let [Ok(contents)] = &cut[..] else { panic!("{cut:?}") };
    let Some(worker_frame::Content::End(end)) = contents.first() else { panic!("{contents:?}") };
    assert_eq!(end.code, Code::InvalidArgument as i32);
    assert!(contents.contains(&worker_frame::Content::Delta(one(5))), "the other call goes on: {contents:?}");
    assert_eq!(answers(vec![RouterFrame::default(); MAX_FRAMES + 1]), [Err(Code::InvalidArgument)]);
    // Frames of a call that has ended, or of a later release.
    let late = [RouterFrame { call: 9, credit: u32::MAX, ..RouterFrame::default() }, RouterFrame::default()];
    assert!(answers(late.to_vec()).is_empty());
    let leave = Some(Content::Leave(wire::Leave {}));
    assert!(
        answers(vec![first(1, b""), RouterFrame { call: 1, content: leave, ..RouterFrame::default() }])
            .is_empty()
    );
}

#[tokio::test]
async fn a_call_too_many_is_refused_alone() {
    let service = Arc::new(Echo::default());
    let (exchange, _reading) = joined(&service, future::pending());
    let waiting: Vec<_> = (0..MAX_CALLS).map(|_| exchange.generate(request("wait", [1]))).collect();
    until(|| service.open.load(Ordering::SeqCst) == MAX_CALLS).await;
    let refused = exchange.generate(request("echo", [1])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(waiting);
    until(|| service.open.load(Ordering::SeqCst) == 0).await;
    assert_eq!(tokens(exchange.generate(request("echo", [2])).await.unwrap()).await, [2]);
}
