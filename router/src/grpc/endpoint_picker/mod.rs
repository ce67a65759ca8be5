//! The endpoint picker of the Gateway API Inference Extension: Envoy sends what it receives by external
//! processing (`ext_proc`), and the answer names the endpoint for the request. The choice is the one that
//! this router would make itself.
//!
//! The service needs no key, because proxies send none; it checks the key in the client's request.

mod exchange;
mod messages;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use http::HeaderMap;
use skein_proto::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use skein_proto::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::app::App;
use crate::gateway::{ApiKeys, BODY_TIMEOUT, picked};
use crate::picks::{Endpoints, Picked};
use crate::refusal::Refusal;
use exchange::{Exchange, Next, Told};

/// This long after a pick, the worker's own reports count the request: proxies send requests on at once, and
/// a worker with work reports four times a second.
const REPORTED_AFTER: Duration = Duration::from_secs(1);

/// How long a proxy may take to close a stream after a refusal.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Envoy's ExternalProcessor over an [`App`].
pub struct EndpointPicker {
    app: App,
    keys: ApiKeys,
    /// Port of the endpoints.
    port: u16,
}

impl EndpointPicker {
    /// Picks among the workers of `app`, whose hosts serve HTTP on `port`.
    pub fn new(app: App, port: u16) -> Self {
        let keys = ApiKeys::new(&app.config.api_keys);
        Self { app, keys, port }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for EndpointPicker {
    type ProcessStream = Responses;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let picker = Picker { app: self.app.clone(), keys: self.keys.clone(), port: self.port, picked: None };
        Ok(Response::new(Box::pin(answers(picker, request.into_inner()))))
    }
}

/// The pick for one request.
struct Picker {
    app: App,
    keys: ApiKeys,
    port: u16,
    /// Held until the proxy reports the request's end.
    picked: Option<Picked>,
}

fn answers(
    mut picker: Picker,
    mut told: Streaming<ProcessingRequest>,
) -> impl Stream<Item = Result<ProcessingResponse, Status>> + Send {
    let mut exchange = Exchange::new(picker.app.config.limits.body_bytes);
    async_stream::try_stream! {
        loop {
            let next = match picker.told(&mut told, &exchange).await {
                // tonic's code for a message over the limit.
                Some(Err(status)) if status.code() == Code::OutOfRange => {
                    Next::Refuse(Refusal::TooLarge { limit: picker.app.config.limits.body_bytes })
                }
                Some(message) => exchange.told(message?),
                None if exchange.is_picked() => break,
                None => Next::Refuse(late()),
            };
            let responses = match next {
                Next::Say(responses) => responses,
                Next::Pick(asked) => match picker.pick(asked).await {
                    Ok(to) => exchange.picked(&to),
                    Err(refusal) => vec![messages::refusal(&refusal)],
                },
                Next::Refuse(refusal) => vec![messages::refusal(&refusal)],
            };
            picker.answered(&exchange);
            let is_over = responses.iter().any(messages::is_refusal);
            for response in responses {
                yield response;
            }
            if is_over {
                let _ = tokio::time::timeout(CLOSED_WITHIN, drained(&mut told)).await;
                break;
            }
        }
    }
}

/// Reads on until the proxy closes the stream. If this side closed it while the body still arrives, the proxy
/// might see the reset before the refusal.
async fn drained(told: &mut Streaming<ProcessingRequest>) {
    while let Ok(Some(_)) = told.message().await {}
}

/// The whole body must be there in time, as over HTTP.
fn late() -> Refusal {
    Refusal::InvalidJson(format!("The body did not arrive within {} s.", BODY_TIMEOUT.as_secs()))
}

impl Picker {
    /// The proxy's next message; `None` at the end, or if the request takes too long to arrive.
    async fn told(
        &mut self,
        told: &mut Streaming<ProcessingRequest>,
        exchange: &Exchange,
    ) -> Option<Result<ProcessingRequest, Status>> {
        let limit = if exchange.is_picked() { REPORTED_AFTER } else { BODY_TIMEOUT };
        match tokio::time::timeout(limit, told.message()).await {
            Ok(message) => message.transpose(),
            Err(_) if !exchange.is_picked() => None,
            Err(_) => {
                if let Some(picked) = &mut self.picked {
                    picked.reported();
                }
                told.message().await.transpose()
            }
        }
    }

    async fn pick(&mut self, told: Told) -> Result<exchange::Destination, Refusal> {
        let picked = self.picked(told).await;
        self.app.metrics.picked(&picked);
        let picked = picked?;
        let to = exchange::Destination { endpoint: picked.endpoint, worker: picked.worker.clone() };
        self.picked = Some(picked);
        Ok(to)
    }

    async fn picked(&self, told: Told) -> Result<Picked, Refusal> {
        let Told { path, headers, body, only } = told;
        let tenant = self.keys.admit(&headers).ok_or(Refusal::Unauthorized)?;
        let from = Endpoints { port: self.port, only };
        let draft = match body {
            Some(body) => picked::draft(&self.app, &path, &headers, body).await?,
            None => None,
        };
        match draft {
            Some(draft) => self.app.pick(crate::request::Draft { tenant, ..draft }, &from).await,
            None => self.app.pick_by_load(&from),
        }
    }

    /// Accounts for a request whose answer has begun.
    fn answered(&mut self, exchange: &Exchange) {
        if let (Some(picked), Some(status)) = (&mut self.picked, exchange.status()) {
            if status < 500 { picked.answered() } else { picked.reported() }
        }
    }
}

/// The headers of `HttpHeaders`; those that are not valid in HTTP are left out.
fn header_map<'a>(pairs: impl Iterator<Item = (&'a str, &'a [u8])>) -> HeaderMap {
    let valid = |(name, value): (&str, &[u8])| {
        Some((
            http::HeaderName::from_bytes(name.as_bytes()).ok()?,
            http::HeaderValue::from_bytes(value).ok()?,
        ))
    };
    pairs.filter_map(valid).collect()
}
