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
        Ok((response, connection)) => {
            let (mut head, body) = response.into_parts();
            headers::strip(&mut head.headers);
            Ok((head, Reading::new(body, connection, seat)))
        }
        Err(Failure::Fault(reason)) => {
            tracing::debug!(worker = &*seat.link().name(), reason, "a worker failed a request");
            seat.end(Outcome::Fault);
            Err(Failure::Fault(reason))
        }
        Err(Failure::Over(refusal)) => Err(Failure::Over(refusal)),
    }
}
