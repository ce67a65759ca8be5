//! One attempt of a request: sends it to a worker and starts to read the response.

use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use skein_choice::breaker::Outcome;

use super::exchange::{self, Failure};
use super::headers;
use super::reading::Reading;
use super::routes::Call;
use super::shared::{Seat, Shared};

/// Sends `body` to the worker of `seat`, which ends here if the attempt fails.
pub(super) async fn attempt(
    shared: &Arc<Shared>,
    call: &Call,
    body: &Bytes,
    seat: Seat,
) -> Result<(Parts, Reading), Failure> {
    match exchange::ask(shared, call, body, &seat).await {
        Ok((response, mut connection)) => {
            let (head, body) = response.into_parts();
            if headers::is_framed_twice(&head.headers) {
                connection.use_once();
            }
            match headers::from_worker(head) {
                Ok(head) => Ok((head, Reading::new(body, connection, seat))),
                Err(reason) => Err(failed(seat, reason.to_owned())),
            }
        }
        Err(Failure::Fault(reason)) => Err(failed(seat, reason)),
        Err(Failure::Over(refusal)) => Err(Failure::Over(refusal)),
    }
}

fn failed(seat: Seat, reason: String) -> Failure {
    tracing::debug!(worker = &*seat.link().name(), reason, "a worker failed a request");
    seat.end(Outcome::Fault);
    Failure::Fault(reason)
}
