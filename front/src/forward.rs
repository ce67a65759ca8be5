//! One request: attempts on workers until one answers. Nothing reaches the client before an attempt has
//! succeeded, so a failed one can be repeated elsewhere.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use skein_choice::breaker::Outcome;
use skein_node::clock;
use skein_router::refusal::Refusal;

use super::answers::refused;
use super::attempt::attempt;
use super::body::AnswerBody;
use super::exchange::{Failure, outcome, watched};
use super::headers::is_event_stream;
use super::reading::Reading;
use super::routes::Call;
use super::running::Running;
use super::shared::Shared;
use super::stream::Stream;

/// Longest response that is read to its end before the client gets any of it.
const MAX_WHOLE_BYTES: usize = 1 << 20;
/// Longest error of a worker that is kept while others are tried.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Time for the body of an error.
const ERROR_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a worker that has failed is tried again, because there is no other.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Tries workers for `call` until one answers.
pub(super) async fn forward(
    shared: Arc<Shared>,
    call: Arc<Call>,
    mut running: Running,
) -> Response<AnswerBody> {
    let (mut tried, mut moves, mut last_error) = (Vec::new(), 0, None);
    let mut give_up = shared.give_up_at();
    loop {
        let seat = match shared.place(&call, &tried, give_up).await {
            Ok(seat) => seat,
            Err(refusal) => {
                running.failed();
                return last_error.unwrap_or_else(|| refused(&refusal));
            }
        };
        running.at(&seat.link().name());
        let is_again = tried.contains(&seat.worker());
        tried.push(seat.worker());
        let reason = match attempt(&shared, &call, &call.body, seat).await {
            Ok((head, reading)) if is_retried(head.status) => {
                let (status, response) = (head.status, keep_error(head, reading).await);
                if outcome(status) == Outcome::Backpressure {
                    // Another one, or a wait for room: as long as a full worker alone would be waited for.
                    if clock::now() >= give_up {
                        running.failed();
                        return response;
                    }
                    last_error = Some(response);
                    continue;
                }
                last_error = Some(response);
                format!("status {status}")
            }
            Ok((head, reading)) => match answer(&shared, &call, head, reading, running).await {
                Ok(response) => return response,
                Err((ended, back)) => {
                    running = back;
                    match ended {
                        Failure::Fault(reason) => reason,
                        Failure::Over(refusal) => return over(running, &refusal),
                    }
                }
            },
            Err(Failure::Over(refusal)) => return over(running, &refusal),
            Err(Failure::Fault(reason)) => reason,
        };
        tracing::debug!(worker = tried.last(), reason, "an attempt failed");
        moves += 1;
        if moves > shared.config.router.migration_limit {
            running.failed();
            let refusal = Refusal::WorkersLost { moves: moves - 1, reason };
            return last_error.unwrap_or_else(|| refused(&refusal));
        }
        running.moved();
        give_up = shared.give_up_at();
        if is_again {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

fn over(mut running: Running, refusal: &Refusal) -> Response<AnswerBody> {
    running.failed();
    refused(refusal)
}

/// Whether another worker may answer better.
fn is_retried(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

/// The response for the client. A short one is read first, so that its loss can still be repaired.
async fn answer(
    shared: &Arc<Shared>,
    call: &Arc<Call>,
    head: Parts,
    reading: Reading,
    mut running: Running,
) -> Result<Response<AnswerBody>, (Failure, Running)> {
    running.answered(head.status);
    if reading.length().is_none_or(|length| length > MAX_WHOLE_BYTES as u64) {
        let is_events = is_event_stream(&head.headers);
        let stream = Stream::new(shared.clone(), call.clone(), running, reading, is_events);
        return Ok(Response::from_parts(head, AnswerBody::Stream(Box::new(stream))));
    }
    let (body, mut connection, mut seat) = reading.into_parts();
    let collected = connection.drive(Limited::new(body, MAX_WHOLE_BYTES).collect());
    match watched(shared, call, &seat, collected).await {
        Ok(Ok(collected)) => {
            if seat.begin() {
                running.began();
            }
            seat.link().pool.keep(connection);
            seat.end(outcome(head.status));
            let body = collected.to_bytes();
            running.tally(|tally| tally.whole(&body));
            running.completed();
            Ok(Response::from_parts(head, AnswerBody::Whole(body)))
        }
        Ok(Err(error)) => {
            seat.end(Outcome::Fault);
            Err((Failure::Fault(error.to_string()), running))
        }
        Err(Failure::Fault(reason)) => {
            seat.end(Outcome::Fault);
            Err((Failure::Fault(reason), running))
        }
        Err(Failure::Over(refusal)) => Err((Failure::Over(refusal), running)),
    }
}

/// Keeps an error of a worker for the client, should no other worker do better.
async fn keep_error(head: Parts, reading: Reading) -> Response<AnswerBody> {
    let (body, mut connection, seat) = reading.into_parts();
    let collected = connection.drive(Limited::new(body, MAX_ERROR_BYTES).collect());
    let collected = tokio::time::timeout(ERROR_TIMEOUT, collected).await;
    let bytes = match collected {
        Ok(Ok(collected)) => {
            seat.link().pool.keep(connection);
            collected.to_bytes()
        }
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    seat.end(outcome(head.status));
    Response::from_parts(head, AnswerBody::Whole(bytes))
}
