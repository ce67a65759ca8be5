//! What all services over gRPC share: their server, statuses, health and reflection. The services are in the
//! rooms of their APIs: skein.v1 and KServe v2 for clients, skein.worker.v1 for gateways, ext_proc for Envoy.

mod arrival;
mod health;
pub mod status;

use axum::Router;
use axum::body::Body;
use axum::middleware::{map_request, map_response};
use axum::response::{IntoResponse, Response};
use http::Request;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tower::Service;

use crate::api::endpoint_picker::EndpointPicker;
use crate::api::kserve::KserveService;
use crate::api::skein::inference::InferenceService;
use crate::api::worker_face::WorkerFace;
use crate::refusal::Refusal;
use crate::repository::served::Served;
use crate::request::tenant::Tenant;
use skein_proto::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use skein_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use skein_proto::v1::inference_server::InferenceServer;
use skein_proto::worker::v1::worker_server::WorkerServer;
use tonic_health::pb::health_server::HealthServer;

/// Largest message sent. A delta with 20 log-probabilities per prompt token is far smaller.
const MAX_ENCODED_BYTES: usize = skein_proto::MAX_MESSAGE_BYTES;

/// Overhead of one of Envoy's messages around a body, in bytes.
const ENVELOPE_BYTES: usize = 64 * 1024;

/// Prefixes of tonic's status messages for an undecodable request, percent-encoded.
const MALFORMED: [&str; 4] = [
    "failed%20to%20decode%20Protobuf",
    "Error,%20decoded%20message%20length",
    "protocol%20error:%20received%20message%20with%20",
    "Missing%20request%20message",
];

/// Prefix of its message for a message that is not compressed as it says; and for one too large when
/// unpacked, which has a status of its own.
const NOT_COMPRESSED: &str = "Error%20decompressing";

/// The services that need a key.
///
/// # Errors
/// If the descriptors for reflection cannot be decoded: a broken build.
pub fn guarded(served: &Served) -> Result<Router, tonic_reflection::server::Error> {
    let config = served.config();
    let inference = InferenceServer::new(InferenceService::new(served.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(config.limits.body_bytes)
        .max_encoding_message_size(MAX_ENCODED_BYTES);
    let kserve = GrpcInferenceServiceServer::new(KserveService::new(served.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(config.limits.body_bytes)
        .max_encoding_message_size(MAX_ENCODED_BYTES);
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(skein_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("skein.v1.Inference")
            .with_service_name("inference.GRPCInferenceService")
            .with_service_name("grpc.health.v1.Health");
        let builder = match served {
            Served::One(_) => builder.with_service_name("skein.worker.v1.Worker"),
            Served::Several(_) => builder,
        };
        match config.endpoint_port {
            Some(_) => builder.with_service_name("envoy.service.ext_proc.v3.ExternalProcessor"),
            None => builder,
        }
    };
    let router = add(add(Router::new(), inference), kserve).merge(face(served));
    // Tools still use both versions of reflection.
    let router = add(add(router, reflection().build_v1()?), reflection().build_v1alpha()?);
    Ok(router.layer(map_response(malformed_as_invalid)).layer(map_request(arrival::in_time)))
}

/// The service for gateways, to which a router is one large worker with one model.
fn face(served: &Served) -> Router {
    let Served::One(app) = served else { return Router::new() };
    let face = WorkerServer::new(WorkerFace::new(app.clone()))
        .max_decoding_message_size(skein_proto::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(skein_proto::MAX_MESSAGE_BYTES);
    add(Router::new(), face).layer(map_request(only_gateways))
}

/// Refuses keys of the keys file that are no gateway's: through the service for gateways a request names its
/// cache and its stream itself, also those of another tenant.
async fn only_gateways(request: Request<Body>) -> Result<Request<Body>, Response> {
    let key = request.extensions().get::<Tenant>().and_then(Tenant::key);
    if key.is_none_or(|key| key.is_gateway) {
        return Ok(request);
    }
    let message = "This service is for gateways; the key's entry in the keys file needs gateway = true.";
    Err(status::refuse(&request, Refusal::Forbidden(message.to_owned())))
}

/// Changes the status of a request that is not protobuf or is too large to INVALID_ARGUMENT. tonic's codec
/// returns INTERNAL, which clients count as a server fault, and OUT_OF_RANGE.
async fn malformed_as_invalid(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let message = headers.get("grpc-message").and_then(|message| message.to_str().ok()).unwrap_or_default();
    let is_internal = headers.get("grpc-status").is_some_and(|status| status == "13");
    let is_cut = is_internal && message.starts_with(NOT_COMPRESSED);
    if is_cut || MALFORMED.iter().any(|start| message.starts_with(start)) {
        headers.insert("grpc-status", (tonic::Code::InvalidArgument as i32).into());
    }
    response
}

/// The services that answer without a key.
pub fn open(served: &Served) -> Router {
    let router = add(Router::new(), HealthServer::new(health::HealthService::new(served.clone())));
    let layer = map_response(malformed_as_invalid);
    let (Served::One(app), Some(port)) = (served, served.config().endpoint_port) else {
        return router.layer(layer);
    };
    let largest = app.config.limits.body_bytes + ENVELOPE_BYTES;
    let picker = ExternalProcessorServer::new(EndpointPicker::new(app.clone(), port))
        .max_decoding_message_size(largest)
        .max_encoding_message_size(largest);
    add(router, picker).layer(layer)
}

fn add<S>(router: Router, service: S) -> Router
where
    S: Service<Request<Body>, Error = std::convert::Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    router.route_service(&format!("/{}/{{*rest}}", S::NAME), service)
}
