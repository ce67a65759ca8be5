//! One attempt: sends a request to a worker and waits for the head of its response.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use skein_choice::breaker::Outcome;
use skein_node::clock::{self, Timestamp};
use skein_router::refusal::Refusal;

use super::pool::Connection;
use super::routes::Call;
use super::shared::{Seat, Shared};

/// How often a waiting request looks at its worker's health and at its own time.
pub const LOOK: Duration = Duration::from_millis(500);

/// Why an attempt has no response.
#[derive(Debug)]
pub enum Failure {
    /// The worker failed.
    Fault(String),
    /// The request has to end.
    Over(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Over(refusal)
    }
}

/// Sends `body` to the worker of `seat`. Returns the response and its connection.
///
/// # Errors
/// If the worker fails before the head of its response is complete, or the request is over.
pub async fn ask(
    shared: &Arc<Shared>,
    call: &Call,
    body: &Bytes,
    seat: &Seat,
) -> Result<(Response<Incoming>, Connection), Failure> {
    let link = seat.link();
    // A worker may close an idle connection at any time, which says nothing about the request.
    if let Some(mut connection) = link.pool.idle_one().await {
        let sent = watched(shared, call, seat, connection.send(request(call, body, seat)?)).await?;
        match sent {
            Ok(response) => return Ok((response, connection)),
            // A response that is not HTTP is not a connection's fault.
            Err(error) if error.error().is_parse() => {
                return Err(Failure::Fault(error.into_error().to_string()));
            }
            Err(error) => tracing::debug!(error = %error.error(), "a kept connection was closed"),
        }
    }
    let connected = watched(shared, call, seat, link.pool.connect()).await?;
    let mut connection = connected.map_err(Failure::Fault)?;
    let sent = watched(shared, call, seat, connection.send(request(call, body, seat)?)).await?;
    match sent {
        Ok(response) => Ok((response, connection)),
        Err(error) => Err(Failure::Fault(error.into_error().to_string())),
    }
}

fn request(call: &Call, body: &Bytes, seat: &Seat) -> Result<Request<Full<Bytes>>, Failure> {
    let url = &seat.link().url;
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.path(&call.target).parse().map_err(|_| Refusal::Internal)?;
    *request.headers_mut() = call.headers.clone();
    let host = HeaderValue::from_str(&url.authority()).map_err(|_| Refusal::Internal)?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}

/// Waits for `work` while the worker lives and the request has time.
///
/// # Errors
/// If the worker is lost, or silent for too long, or the request is over.
pub async fn watched<T>(
    shared: &Shared,
    call: &Call,
    seat: &Seat,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    let since = clock::now();
    let mut work = pin!(work);
    loop {
        // Polls the work before it makes a timer.
        if let Ok(done) = tokio::time::timeout(LOOK, work.as_mut()).await {
            return Ok(done);
        }
        call.check()?;
        if let Some(fault) =
            fault(shared, seat, since, call.prompt.streams.then_some(shared.config.first_byte_timeout))
        {
            return Err(Failure::Fault(fault));
        }
    }
}

/// Why a worker that has been silent since `heard` has failed: it is lost, or silent for longer than `limit`.
pub fn fault(shared: &Shared, seat: &Seat, heard: Timestamp, limit: Option<Duration>) -> Option<String> {
    let silent = clock::now().since(heard);
    // Bytes that still arrive prove more than missed health checks.
    if seat.link().is_lost() && silent >= shared.config.router.recovery.worker_timeout / 2 {
        return Some("its health checks fail".to_owned());
    }
    let limit = limit.filter(|limit| silent >= *limit)?;
    Some(format!("silent for {} s", limit.as_secs()))
}

/// What a status says about the worker.
pub fn outcome(status: StatusCode) -> Outcome {
    match status.as_u16() {
        429 | 503 => Outcome::Backpressure,
        500..=599 => Outcome::Fault,
        400..=499 => Outcome::Neutral,
        _ => Outcome::Success,
    }
}
