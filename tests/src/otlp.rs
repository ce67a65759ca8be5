//! An OTLP receiver over gRPC and HTTP. It decodes the official protobufs and stores what it receives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server as metrics_server;
use opentelemetry_proto::tonic::collector::trace::v1 as traces;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server as trace_server;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, metric::Data};
use opentelemetry_proto::tonic::trace::v1 as wire;
use prost::Message;
use skein_node::clock;
use skein_tls::ServerTls;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use crate::decrypt::decrypt;

/// Longer than the timeout of any exporter.
const FOREVER: Duration = Duration::from_secs(3600);
/// Largest difference between the monotonic clock and the time of day.
const SKEW_NANOS: u64 = 5_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Instrumentation scope of the spans of processes.
const PROCESS_SCOPE: &str = "skein.process";

/// How the receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Accepts the message.
    Willing,
    /// Accepts the connection but never answers.
    Slow,
    /// Refuses the message with an error.
    Refusing,
}

/// A span as it arrived.
#[derive(Debug, Clone)]
pub struct Span {
    /// `service.name` of the process.
    pub service: String,
    /// The span as decoded.
    pub span: wire::Span,
}

impl Span {
    /// Value of an attribute as text; numbers are converted.
    pub fn attribute(&self, key: &str) -> Option<String> {
        find(&self.span.attributes, key)
    }

    /// Whether this span begins before `other`, within [`SKEW_NANOS`].
    pub fn has_begun_before(&self, other: &Self) -> bool {
        self.span.start_time_unix_nano <= other.span.start_time_unix_nano + SKEW_NANOS
    }

    /// Whether this span ends after `other`, within [`SKEW_NANOS`].
    pub fn ends_after(&self, other: &Self) -> bool {
        other.span.end_time_unix_nano <= self.span.end_time_unix_nano + SKEW_NANOS
    }
}

/// A histogram point as it arrived.
#[derive(Debug, Clone)]
pub struct Point {
    /// Name of the metric.
    pub name: String,
    /// Unit of the metric.
    pub unit: String,
    /// Counts and sum of one set of attributes.
    pub point: HistogramDataPoint,
}

fn find(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?;
    text(value)
}

fn text(value: &AnyValue) -> Option<String> {
    Some(match value.value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::ArrayValue(list) => list.values.iter().filter_map(text).collect::<Vec<_>>().join(","),
        other => format!("{other:?}"),
    })
}

#[derive(Debug, Default)]
struct Taken {
    spans: Vec<Span>,
    process_spans: Vec<Span>,
    points: Vec<Point>,
}

/// A running receiver. Both protocols store into the same state.
#[derive(Debug)]
pub struct Receiver {
    /// URL of the gRPC endpoint.
    pub grpc: String,
    /// URL of the HTTP endpoint.
    pub http: String,
    state: State,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug, Clone)]
struct State {
    taken: Arc<Mutex<Taken>>,
    mood: Mood,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn willing(&self) -> Result<(), Status> {
        match self.mood {
            Mood::Willing => Ok(()),
            Mood::Slow => {
                tokio::time::sleep(FOREVER).await;
                Ok(())
            }
            Mood::Refusing => Err(Status::permission_denied("this test refuses everything")),
        }
    }

    fn take_spans(&self, request: traces::ExportTraceServiceRequest) {
        let mut taken = self.lock();
        for resource in request.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = find(&attributes, "service.name").unwrap_or_default();
            for scoped in resource.scope_spans {
                let is_process = scoped.scope.is_some_and(|scope| scope.name == PROCESS_SCOPE);
                let to = if is_process { &mut taken.process_spans } else { &mut taken.spans };
                to.extend(scoped.spans.into_iter().map(|span| Span { service: service.clone(), span }));
            }
        }
    }

    fn take_points(&self, request: metrics::ExportMetricsServiceRequest) {
        let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let mut taken = self.lock();
        for metric in scopes.flat_map(|scope| scope.metrics) {
            if let Some(Data::Histogram(histogram)) = metric.data {
                let (name, unit) = (metric.name, metric.unit);
                let points = histogram.data_points.into_iter();
                taken.points.extend(points.map(|point| Point {
                    name: name.clone(),
                    unit: unit.clone(),
                    point,
                }));
            }
        }
    }
}

#[tonic::async_trait]
impl trace_server::TraceService for State {
    async fn export(
        &self,
        request: Request<traces::ExportTraceServiceRequest>,
    ) -> Result<Response<traces::ExportTraceServiceResponse>, Status> {
        self.willing().await?;
        self.take_spans(request.into_inner());
        Ok(Response::new(traces::ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl metrics_server::MetricsService for State {
    async fn export(
        &self,
        request: Request<metrics::ExportMetricsServiceRequest>,
    ) -> Result<Response<metrics::ExportMetricsServiceResponse>, Status> {
        self.willing().await?;
        self.take_points(request.into_inner());
        Ok(Response::new(metrics::ExportMetricsServiceResponse::default()))
    }
}

impl Receiver {
    /// Listens on two free ports.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(mood: Mood) -> Self {
        let state = State { taken: Arc::default(), mood };
        let (grpc_listener, grpc) = listen().await;
        let (http_listener, http) = listen().await;
        let traces = trace_server::TraceServiceServer::new(state.clone());
        let metrics = metrics_server::MetricsServiceServer::new(state.clone());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(grpc_listener);
        let server = tonic::transport::Server::builder().add_service(traces).add_service(metrics);
        let by_grpc = tokio::spawn(async move {
            server.serve_with_incoming(incoming).await.expect("the receiver serves");
        });
        let by_http = tokio::spawn(serve_http(http_listener, state.clone()));
        Self {
            grpc: format!("http://{grpc}"),
            http: format!("http://{http}"),
            state,
            tasks: vec![by_grpc, by_http],
        }
    }

    /// As [`start`](Self::start), with `https://localhost` URLs.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_encrypted(mood: Mood, tls: ServerTls) -> Self {
        let mut receiver = Self::start(mood).await;
        for url in [&mut receiver.grpc, &mut receiver.http] {
            let behind = url.trim_start_matches("http://").parse().expect("an address");
            let (address, task) = decrypt(tls.clone(), behind).await;
            receiver.tasks.push(task);
            *url = format!("https://localhost:{}", address.port());
        }
        receiver
    }

    /// All spans of requests so far.
    pub fn spans(&self) -> Vec<Span> {
        self.state.lock().spans.clone()
    }

    /// All spans of processes so far.
    pub fn process_spans(&self) -> Vec<Span> {
        self.state.lock().process_spans.clone()
    }

    /// All histogram points so far.
    pub fn points(&self) -> Vec<Point> {
        self.state.lock().points.clone()
    }

    /// Waits until `enough` returns true for the spans of requests.
    ///
    /// # Panics
    /// If that takes longer than `within`; the message lists the spans' names.
    pub async fn wait_spans(&self, within: Duration, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        wait(|| self.spans(), within, enough).await
    }

    /// Like [`wait_spans`](Self::wait_spans), for the spans of processes.
    ///
    /// # Panics
    /// As [`wait_spans`](Self::wait_spans).
    pub async fn wait_process_spans(&self, within: Duration, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        wait(|| self.process_spans(), within, enough).await
    }
}

async fn wait(
    so_far: impl Fn() -> Vec<Span>,
    within: Duration,
    enough: impl Fn(&[Span]) -> bool,
) -> Vec<Span> {
    let start = clock::now();
    loop {
        let spans = so_far();
        if enough(&spans) {
            return spans;
        }
        if clock::now().since(start) >= within {
            let names: Vec<_> =
                spans.iter().map(|span| format!("{} {}", span.service, span.span.name)).collect();
            panic!("{} spans within {within:?}: {names:#?}", names.len());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    (listener, address)
}

async fn serve_http(listener: TcpListener, state: State) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| take_http(request, state.clone()));
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // A client that disconnects does not fail the test.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn take_http(
    request: http::Request<Incoming>,
    state: State,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let answer = |status: u16, body: Vec<u8>| {
        let mut response = http::Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a valid status");
        Ok(response)
    };
    if state.willing().await.is_err() {
        return answer(403, Vec::new());
    }
    let path = request.uri().path().to_owned();
    let is_protobuf =
        request.headers().get("content-type").is_some_and(|kind| kind == "application/x-protobuf");
    let Ok(body) = request.into_body().collect().await else { return answer(400, Vec::new()) };
    let body = body.to_bytes();
    match (path.as_str(), is_protobuf) {
        ("/v1/traces", true) => match traces::ExportTraceServiceRequest::decode(body) {
            Ok(request) => state.take_spans(request),
            Err(_) => return answer(400, Vec::new()),
        },
        ("/v1/metrics", true) => match metrics::ExportMetricsServiceRequest::decode(body) {
            Ok(request) => state.take_points(request),
            Err(_) => return answer(400, Vec::new()),
        },
        _ => return answer(404, Vec::new()),
    }
    answer(200, Vec::new())
}
