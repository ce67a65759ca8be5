//! grpc.health.v1, answered from the current readiness.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::repository::served::Served;

/// How often a watch checks readiness.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Services that are healthy when the router is ready. The last two, and `liveness`, are names required by
/// the endpoint picker protocol.
const SERVICES: [&str; 5] = [
    "",
    "skein.v1.Inference",
    "inference.GRPCInferenceService",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
];

/// Health of the whole router.
pub struct HealthService {
    served: Served,
}

impl HealthService {
    /// Reports the health of `served`.
    pub fn new(served: Served) -> Self {
        Self { served }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = status_of(&self.served, &request.get_ref().service);
        let status = status.ok_or_else(|| Status::not_found("service not registered"))?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (served, service) = (self.served.clone(), request.into_inner().service);
        Ok(Response::new(Box::pin(async_stream::stream! {
            let mut last = None;
            loop {
                let now = status_of(&served, &service).unwrap_or(ServingStatus::ServiceUnknown);
                if last.replace(now) != Some(now) {
                    yield Ok(answer(now));
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        })))
    }
}

/// Status of a service; `None` if there is no such service.
fn status_of(served: &Served, service: &str) -> Option<ServingStatus> {
    match service {
        "liveness" => Some(ServingStatus::Serving),
        service if SERVICES.contains(&service) && served.ready().is_ok() => Some(ServingStatus::Serving),
        service if SERVICES.contains(&service) => Some(ServingStatus::NotServing),
        _ => None,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
