//! grpc.health.v1, answered from the current readiness.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::app::App;

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
    app: App,
}

impl HealthService {
    /// Reports the health of `app`.
    pub fn new(app: App) -> Self {
        Self { app }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            "liveness" => Ok(Response::new(answer(ServingStatus::Serving))),
            service if SERVICES.contains(&service) => Ok(Response::new(answer(serving(&self.app)))),
            _ => Err(Status::not_found("service not registered")),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.get_ref().service.as_str());
        let app = self.app.clone();
        Ok(Response::new(Box::pin(async_stream::stream! {
            let mut last = None;
            loop {
                let now = if known { serving(&app) } else { ServingStatus::ServiceUnknown };
                if last.replace(now) != Some(now) {
                    yield Ok(answer(now));
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        })))
    }
}

fn serving(app: &App) -> ServingStatus {
    if app.ready().is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
