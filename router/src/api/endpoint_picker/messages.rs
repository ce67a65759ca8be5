//! Messages sent by the picker.

use bytes::Bytes;
use skein_proto::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use skein_proto::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use skein_proto::envoy::service::ext_proc::v3::body_mutation::Mutation;
use skein_proto::envoy::service::ext_proc::v3::processing_response::Response;
use skein_proto::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use skein_proto::envoy::r#type::v3::HttpStatus;

use super::destination::Destination;
use super::draft::PICKED_WORKER;
use crate::api::http::error::headers;
use crate::api::openai::error::error_object;
use crate::refusal::Refusal;

/// Header name, and metadata key, of the endpoint.
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Metadata namespace of the endpoint.
const NAMESPACE: &str = "envoy.lb";
/// Largest part of a body per message, in bytes: some proxies limit a message to 64 KiB, including framing.
const BODY_CHUNK_BYTES: usize = 62_000;

fn response(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

/// Passes the request headers on unchanged.
pub fn request_headers() -> ProcessingResponse {
    response(Response::RequestHeaders(HeadersResponse::default()))
}

/// Passes the response headers on unchanged.
pub fn response_headers() -> ProcessingResponse {
    response(Response::ResponseHeaders(HeadersResponse::default()))
}

/// Instructs the proxy to pass on the request chunk that it holds.
pub fn request_body_kept() -> ProcessingResponse {
    response(Response::RequestBody(BodyResponse::default()))
}

/// Instructs the proxy to pass on the response chunk that it holds.
pub fn response_body_kept() -> ProcessingResponse {
    response(Response::ResponseBody(BodyResponse::default()))
}

/// Passes the request trailers on.
pub fn request_trailers() -> ProcessingResponse {
    response(Response::RequestTrailers(TrailersResponse::default()))
}

/// Passes the response trailers on.
pub fn response_trailers() -> ProcessingResponse {
    response(Response::ResponseTrailers(TrailersResponse::default()))
}

/// Returns the request body to a proxy that does not buffer it.
pub fn request_body(body: Bytes, is_end: bool) -> Vec<ProcessingResponse> {
    chunks(body, is_end).map(|chunk| response(Response::RequestBody(chunk))).collect()
}

/// Returns a part of the response body to a proxy that does not buffer it.
pub fn response_body(HttpBody { body, end_of_stream }: HttpBody) -> Vec<ProcessingResponse> {
    chunks(body, end_of_stream).map(|chunk| response(Response::ResponseBody(chunk))).collect()
}

/// Splits `body` into at least one chunk, because the last chunk marks the end.
fn chunks(mut body: Bytes, is_end: bool) -> impl Iterator<Item = BodyResponse> {
    let mut is_first = true;
    std::iter::from_fn(move || {
        if body.is_empty() && !std::mem::take(&mut is_first) {
            return None;
        }
        is_first = false;
        let chunk = body.split_to(body.len().min(BODY_CHUNK_BYTES));
        let streamed = StreamedBodyResponse { body: chunk, end_of_stream: is_end && body.is_empty() };
        let body_mutation = Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) });
        Some(BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) })
    })
}

/// Routes the request to its endpoint, in the answer to its headers.
pub fn sent_to(to: &Destination) -> ProcessingResponse {
    let headers = HeadersResponse { response: Some(destination(to)) };
    ProcessingResponse {
        response: Some(Response::RequestHeaders(headers)),
        dynamic_metadata: Some(metadata(to)),
    }
}

/// Routes the request to its endpoint, in the answer to a buffered body.
pub fn body_sent_to(to: &Destination) -> ProcessingResponse {
    let body = BodyResponse { response: Some(destination(to)) };
    ProcessingResponse { response: Some(Response::RequestBody(body)), dynamic_metadata: Some(metadata(to)) }
}

fn destination(to: &Destination) -> CommonResponse {
    let endpoint = set_header(DESTINATION, to.endpoint.to_string().into());
    let worker = set_header(PICKED_WORKER.as_str(), to.worker.as_bytes().to_vec().into());
    CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers: vec![endpoint, worker],
            ..HeaderMutation::default()
        }),
        clear_route_cache: true,
        ..CommonResponse::default()
    }
}

fn set_header(name: &str, value: Bytes) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), raw_value: value, ..HeaderValue::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// Endpoint in the form that Envoy's load balancers read.
fn metadata(to: &Destination) -> prost_types::Struct {
    use prost_types::value::Kind;
    let one = |name: &str, kind| prost_types::Struct {
        fields: [(name.to_owned(), prost_types::Value { kind: Some(kind) })].into(),
    };
    let endpoint = one(DESTINATION, Kind::StringValue(to.endpoint.to_string()));
    one(NAMESPACE, Kind::StructValue(endpoint))
}

/// Answers the client like the HTTP API; the request reaches no endpoint.
pub fn refusal(refusal: &Refusal) -> ProcessingResponse {
    let shape = refusal.http();
    let own = headers(refusal);
    let mut set_headers = vec![set_header("content-type", Bytes::from_static(b"application/json"))];
    set_headers.extend(
        own.iter().map(|(name, value)| set_header(name.as_str(), Bytes::copy_from_slice(value.as_bytes()))),
    );
    response(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: shape.status.into() }),
        headers: Some(HeaderMutation { set_headers, ..HeaderMutation::default() }),
        body: error_object(refusal).to_string().into(),
        details: shape.code.unwrap_or(shape.kind).to_owned(),
    }))
}

/// Whether `response` ends the exchange.
pub fn is_refusal(response: &ProcessingResponse) -> bool {
    matches!(response.response, Some(Response::ImmediateResponse(_)))
}
