//! Server span of each generation request over HTTP and gRPC: reads the caller's trace context and passes on
//! its own.

use axum::extract::Request;
use axum::response::Response;
use futures::FutureExt;
use futures::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use skein_node::trace::{self, Remote};

use crate::api::kserve::rest::target::Target;

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

/// Traces a request to a path in [`GENERATING`]; others pass through.
pub fn trace<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> impl Future<Output = Response> {
    let Some(path) = generating(&request) else { return Either::Left(next(request)) };
    let mut span = begin(path, request.headers());
    let Some(traceparent) = span.traceparent() else { return Either::Left(next(request)) };
    let answered = {
        let _entered = trace::enter(&mut span);
        next(request)
    };
    Either::Right(trace::within(span.clone(), answered).map(move |mut response| {
        let status = response.status();
        span.set("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            span.fail(status.as_str().to_owned());
        }
        if let Ok(value) = HeaderValue::from_bytes(traceparent.as_bytes()) {
            response.headers_mut().insert(TRACEPARENT, value);
        }
        response
    }))
}

/// Begins the server span of a request to `path` whose caller sent `headers`.
pub fn begin(path: &'static str, headers: &HeaderMap) -> trace::Request {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let span = trace::Request::begin(Remote::read(header));
    if span.is_on() {
        span.name("POST", path);
        span.set_all(|| [("http.request.method", "POST".into()), ("url.path", path.into())]);
    }
    span
}

/// A gateway's request, called for itself or within an exchange.
pub const WORKER_GENERATE: &str = "/skein.worker.v1.Worker/Generate";

/// Paths of generation requests.
const GENERATING: [&str; 9] = [
    "/v1/responses",
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/completions",
    "/api/chat",
    "/api/generate",
    "/skein.v1.Inference/Generate",
    WORKER_GENERATE,
    "/inference.GRPCInferenceService/ModelInfer",
];

/// The matching path in [`GENERATING`], or the route of a model's path, if any.
fn generating(request: &Request) -> Option<&'static str> {
    let path = request.uri().path();
    // The path may follow a root path.
    let known = GENERATING.into_iter().find(|known| path.ends_with(known));
    let of_model = || {
        let verb = Target::read(path.split_once("/v2/models/")?.1).verb;
        verb.generates().then(|| verb.route())
    };
    known.or_else(of_model).filter(|_| request.method() == Method::POST)
}
