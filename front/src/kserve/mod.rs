//! A KServe v2 server, such as Triton with a text-generation model, as an OpenAI server: over a pipe within
//! this process it answers HTTP like any other worker, and asks the server by gRPC. So no other part of
//! this room knows the protocol: choice, health, breakers, retries and continuation by text are the same.
//!
//! `inputs` makes tensors of a body by what the model's metadata lists, `outputs` makes completions of
//! tensors, both purely. Completions only: a server of tensors has no chat template.

mod inputs;
mod outputs;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use skein_proto::inference::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelStreamInferResponse,
    RepositoryIndexRequest, ServerReadyRequest,
};
use tokio::io::DuplexStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

pub use self::inputs::Model;
#[cfg(feature = "fuzzing")]
pub use self::inputs::request;
pub use self::outputs::Completion;

/// Bytes that a pipe holds in each direction.
const PIPE_BYTES: usize = 64 * 1024;
/// Time for a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most models whose metadata is kept.
const MAX_MODELS: usize = 1000;
/// Metadata by which Triton fails a stream with a status instead of a message.
const STRICT: &str = "triton_grpc_error";
/// Headers that are passed on as metadata.
const PASSED_ON: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

type Client = GrpcInferenceServiceClient<Channel>;
type Body = UnsyncBoxBody<Bytes, Lost>;

/// A server.
pub struct Kserve {
    channel: Channel,
    models: Mutex<HashMap<String, Arc<Model>>>,
}

/// The server is out of reach or failed in the middle of a response: as if it had closed its connection.
#[derive(Debug, thiserror::Error)]
#[error("the server failed: {0}")]
struct Lost(String);

/// Why a request has no answer.
enum Failed {
    /// The server's fault.
    Lost(Lost),
    /// A response that says why.
    Refused(StatusCode, String),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        // Only a status that the transport made has a source.
        if status.source().is_some() {
            return Self::Lost(Lost(status.message().to_owned()));
        }
        let http = match status.code() {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound | Code::Unimplemented => StatusCode::NOT_FOUND,
            Code::AlreadyExists => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::Refused(http, status.message().to_owned())
    }
}

impl Kserve {
    /// The server at `host:port`. It is connected to on first use.
    pub fn new(authority: &str) -> Option<Arc<Self>> {
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).ok()?;
        // Without pings: servers in C++ close connections that ping more often than they allow, and health
        // checks find a silent server.
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy();
        Some(Arc::new(Self { channel, models: Mutex::default() }))
    }

    /// Our end of a pipe over which the server answers HTTP. It ends with the pipe.
    pub fn connect(self: &Arc<Self>) -> DuplexStream {
        let (ours, its) = tokio::io::duplex(PIPE_BYTES);
        let server = self.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let server = server.clone();
                async move { server.respond(request).await }
            });
            if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(its), service).await {
                tracing::debug!(%error, "a pipe to a KServe server was closed");
            }
        });
        ours
    }

    fn client(&self) -> Client {
        Client::new(self.channel.clone()).max_decoding_message_size(skein_proto::MAX_MESSAGE_BYTES)
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<Body>, Lost> {
        let (head, body) = request.into_parts();
        let response = match (&head.method, head.uri.path()) {
            (&Method::GET, "/health") => self.health(&head.headers).await,
            (&Method::GET, "/v1/models") => self.list(&head.headers).await,
            (&Method::POST, "/v1/completions") => {
                let body = body.collect().await.map_err(|error| Lost(error.to_string()))?;
                self.complete(&head.headers, &body.to_bytes()).await
            }
            (_, "/v1/chat/completions") => {
                let message = "This model takes a prompt and has no chat template; use /v1/completions.";
                Err(Failed::Refused(StatusCode::BAD_REQUEST, message.to_owned()))
            }
            _ => Err(Failed::Refused(
                StatusCode::NOT_FOUND,
                "The workers serve /v1/completions only.".to_owned(),
            )),
        };
        match response {
            Ok(response) => Ok(response),
            Err(Failed::Lost(lost)) => Err(lost),
            Err(Failed::Refused(status, message)) => {
                let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
                let error = json!({"message": message, "type": kind, "param": null, "code": null});
                Ok(whole(status, &json!({"error": error})))
            }
        }
    }

    async fn health(&self, headers: &HeaderMap) -> Result<Response<Body>, Failed> {
        let answer = self.client().server_ready(call(headers, ServerReadyRequest {})).await?;
        let status = if answer.get_ref().ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(whole(status, &json!({})))
    }

    /// The models that are ready, by Triton's extension.
    async fn list(&self, headers: &HeaderMap) -> Result<Response<Body>, Failed> {
        let ready = RepositoryIndexRequest { ready: true, ..RepositoryIndexRequest::default() };
        let index = self.client().repository_index(call(headers, ready)).await?.into_inner();
        // Models may have changed: what requests need is read again.
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let model = |name: &str| json!({"id": name, "object": "model", "owned_by": "kserve"});
        let mut names: Vec<&str> = index.models.iter().map(|model| model.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let data: Vec<Value> = names.into_iter().map(model).collect();
        Ok(whole(StatusCode::OK, &json!({"object": "list", "data": data})))
    }

    async fn complete(&self, headers: &HeaderMap, body: &[u8]) -> Result<Response<Body>, Failed> {
        let bad = |message: String| Failed::Refused(StatusCode::BAD_REQUEST, message);
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| bad(format!("The body must be a JSON object: {error}.")))?;
        let name = fields.get("model").and_then(Value::as_str).unwrap_or_default();
        let model = self.model(headers, name).await?;
        let id = headers.get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let created = clock::unix_time().as_secs();
        let completion = Completion::new(id, created, name, &fields);
        let request = inputs::request(fields, &model, id).map_err(bad)?;
        let mut responses = self.infer(headers, request).await?;
        let first = next(&mut responses).await?;
        if !completion.streams {
            return whole_answer(completion, first, responses).await;
        }
        let body = StreamBody::new(events(completion, first, responses)).boxed_unsync();
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Ok(response)
    }

    async fn infer(
        &self,
        headers: &HeaderMap,
        request: ModelInferRequest,
    ) -> Result<Streaming<ModelStreamInferResponse>, Failed> {
        let mut call = call(headers, futures::stream::iter([request]));
        call.metadata_mut().insert(STRICT, MetadataValue::from_static("true"));
        Ok(self.client().model_stream_infer(call).await?.into_inner())
    }

    /// What the model `name` takes.
    async fn model(&self, headers: &HeaderMap, name: &str) -> Result<Arc<Model>, Failed> {
        if name.is_empty() {
            return Err(Failed::Refused(StatusCode::BAD_REQUEST, "model is required.".to_owned()));
        }
        let known = self.models.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(model) = known {
            return Ok(model);
        }
        let request = ModelMetadataRequest { name: name.to_owned(), version: String::new() };
        let metadata = self.client().model_metadata(call(headers, request)).await?.into_inner();
        let model = Arc::new(Model::of(metadata));
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() < MAX_MODELS {
            models.insert(name.to_owned(), model.clone());
        }
        Ok(model)
    }
}

/// A call with the client's metadata.
fn call<T>(headers: &HeaderMap, message: T) -> tonic::Request<T> {
    let mut call = tonic::Request::new(message);
    for name in PASSED_ON {
        if let Some(value) = headers.get(&name)
            && let (Ok(key), Ok(value)) = (
                tonic::metadata::AsciiMetadataKey::from_bytes(name.as_ref()),
                MetadataValue::try_from(value.as_bytes()),
            )
        {
            call.metadata_mut().insert(key, value);
        }
    }
    call
}

/// The next response; an error if there is none.
async fn next(responses: &mut Streaming<ModelStreamInferResponse>) -> Result<ModelInferResponse, Failed> {
    let Some(response) = responses.message().await? else {
        return Err(Failed::Lost(Lost("it ended its stream without a final response".to_owned())));
    };
    if !response.error_message.is_empty() {
        // Only servers that know no other form say it so; whose fault it is they do not say.
        return Err(Failed::Refused(StatusCode::BAD_REQUEST, response.error_message));
    }
    Ok(response.infer_response.unwrap_or_default())
}

async fn whole_answer(
    mut completion: Completion,
    first: ModelInferResponse,
    mut responses: Streaming<ModelStreamInferResponse>,
) -> Result<Response<Body>, Failed> {
    let lost = |why: String| Failed::Lost(Lost(why));
    let mut ended = completion.gather(first).map_err(lost)?;
    while !ended {
        ended = completion.gather(next(&mut responses).await?).map_err(lost)?;
    }
    Ok(whole(StatusCode::OK, &completion.whole()))
}

/// The answer as server-sent events.
fn events(
    mut completion: Completion,
    first: ModelInferResponse,
    mut responses: Streaming<ModelStreamInferResponse>,
) -> impl Stream<Item = Result<Frame<Bytes>, Lost>> + Send {
    async_stream::try_stream! {
        let mut response = first;
        loop {
            let (events, ended) = completion.events(response).map_err(Lost)?;
            yield Frame::data(Bytes::from(events));
            if ended {
                break;
            }
            response = match next(&mut responses).await {
                Ok(response) => response,
                Err(Failed::Lost(lost)) => Err(lost)?,
                Err(Failed::Refused(status, message)) => Err(Lost(format!("{status}: {message}")))?,
            };
        }
    }
}

fn whole(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
