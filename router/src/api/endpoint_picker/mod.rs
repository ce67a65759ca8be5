//! Endpoint picker of the Gateway API Inference Extension: Envoy sends each request by external processing
//! (`ext_proc`), and the answer names its endpoint. The choice is the one that this router would make itself.
//!
//! The service requires no key, because proxies send none; it checks the key in the client's request.

mod destination;
mod draft;
mod exchange;
mod messages;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use skein_proto::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use skein_proto::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use tonic::{Code, Request, Response, Status, Streaming};

use super::http::body::BODY_TIMEOUT;
use super::http::keys::ApiKeys;
use crate::app::App;
use crate::links::picks::{Endpoints, Picked};
use crate::refusal::Refusal;
use destination::Destination;
use exchange::{Exchange, Next, RequestParts};

/// Time after a pick at which the worker's own reports count the request: proxies forward requests
/// immediately, and a busy worker reports four times a second.
const REPORTED_AFTER: Duration = Duration::from_secs(1);

/// Time limit for a proxy to close a stream after a refusal.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Envoy's ExternalProcessor over an [`App`].
pub struct EndpointPicker {
    app: App,
    keys: ApiKeys,
    /// HTTP port of the endpoints.
    port: u16,
}

impl EndpointPicker {
    /// Picks among the workers of `app`, whose hosts serve HTTP on `port`.
    pub fn new(app: App, port: u16) -> Self {
        let keys = ApiKeys::of(&app.config);
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

/// State of the pick for one request.
struct Picker {
    app: App,
    keys: ApiKeys,
    port: u16,
    /// Held until the proxy reports the request's end.
    picked: Option<Picked>,
}

fn answers(
    mut picker: Picker,
    mut incoming: Streaming<ProcessingRequest>,
) -> impl Stream<Item = Result<ProcessingResponse, Status>> + Send {
    let mut exchange = Exchange::new(picker.app.config.limits.body_bytes);
    async_stream::try_stream! {
        loop {
            let next = match picker.next_message(&mut incoming, &exchange).await {
                // tonic's code for a message above the size limit.
                Some(Err(status)) if status.code() == Code::OutOfRange => {
                    Next::Refuse(Refusal::TooLarge { limit: picker.app.config.limits.body_bytes })
                }
                Some(message) => exchange.handle(message?),
                None if exchange.is_picked() => break,
                None => Next::Refuse(late()),
            };
            let responses = match next {
                Next::Send(responses) => responses,
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
                let _ = tokio::time::timeout(CLOSED_WITHIN, drained(&mut incoming)).await;
                break;
            }
        }
    }
}

/// Reads until the proxy closes the stream. If this side closed it while the body is still arriving, the
/// proxy might see the reset before the refusal.
async fn drained(incoming: &mut Streaming<ProcessingRequest>) {
    while let Ok(Some(_)) = incoming.message().await {}
}

/// The whole body must arrive in time, as over HTTP.
fn late() -> Refusal {
    Refusal::InvalidJson(format!("The body did not arrive within {} s.", BODY_TIMEOUT.as_secs()))
}

impl Picker {
    /// Next message of the proxy; `None` at the end, or if the request takes too long to arrive.
    async fn next_message(
        &mut self,
        incoming: &mut Streaming<ProcessingRequest>,
        exchange: &Exchange,
    ) -> Option<Result<ProcessingRequest, Status>> {
        let limit = if exchange.is_picked() { REPORTED_AFTER } else { BODY_TIMEOUT };
        match tokio::time::timeout(limit, incoming.message()).await {
            Ok(message) => message.transpose(),
            Err(_) if !exchange.is_picked() => None,
            Err(_) => {
                if let Some(picked) = &mut self.picked {
                    picked.reported();
                }
                incoming.message().await.transpose()
            }
        }
    }

    async fn pick(&mut self, parts: RequestParts) -> Result<Destination, Refusal> {
        let picked = self.picked(parts).await;
        self.app.metrics.picked(&picked);
        let picked = picked?;
        let to = Destination { endpoint: picked.endpoint, worker: picked.worker.clone() };
        self.picked = Some(picked);
        Ok(to)
    }

    async fn picked(&self, parts: RequestParts) -> Result<Picked, Refusal> {
        let RequestParts { path, headers, body, only } = parts;
        let tenant = self.keys.admit(&headers)?.tenant;
        let from = Endpoints { port: self.port, only };
        let draft = match body {
            Some(body) => draft::draft(&self.app, &path, &headers, body).await?,
            None => None,
        };
        match draft {
            Some(draft) => self.app.pick(crate::request::Draft { tenant, ..draft }, &from).await,
            None => self.app.pick_by_load(tenant, &from),
        }
    }

    /// Updates the account of a request whose response has started.
    fn answered(&mut self, exchange: &Exchange) {
        if let (Some(picked), Some(status)) = (&mut self.picked, exchange.status()) {
            if status < 500 { picked.answered() } else { picked.reported() }
        }
    }
}
