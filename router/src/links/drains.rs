//! Drains that an operator orders: a worker gives its requests to others and takes no more, until it is told
//! to.

use std::time::Duration;

use skein_choice::fleet::WorkerStatus;
use skein_node::clock;

use super::workers::Workers;
use crate::refusal::Refusal;

/// Longest wait until a worker that was ordered to drain reports that it does.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// After that, time for the reports of other workers which another router has ordered to drain meanwhile.
const SETTLE: Duration = Duration::from_millis(250);

/// Orders the worker of this name to drain, or to take requests again.
///
/// # Errors
/// [`Refusal::NotFound`] if there is no such worker, [`Refusal::Conflict`] if no other one is ready, before
/// or after, or it does not obey.
pub(crate) async fn drain(workers: &Workers, name: &str, on: bool) -> Result<(), Refusal> {
    // One order after the other, so that each sees what the one before has done.
    let _turn = workers.orders.lock().await;
    let status = status(workers);
    let Some(worker) = status.iter().find(|worker| worker.id == name) else {
        return Err(Refusal::NotFound(format!("There is no worker `{name}`.")));
    };
    if worker.is_router() {
        let message = format!("`{name}` is a router; drain its workers there, or end it with SIGTERM.");
        return Err(Refusal::Conflict(message));
    }
    if on && !status.iter().any(|worker| worker.id != name && worker.is_ready()) {
        let message = format!("`{name}` cannot drain: no other worker is ready to take its requests.");
        return Err(Refusal::Conflict(message));
    }
    let named = |id| workers.with_fleet(|fleet| fleet.name(id)).is_some_and(|known| *known == *name);
    let client = workers.clients_by_id().into_iter().find(|(id, _)| named(*id)).map(|(_, client)| client);
    let client = client.ok_or_else(|| Refusal::Conflict(format!("`{name}` cannot be reached.")))?;
    client.drain(on).await.map_err(|error| {
        let message = format!("`{name}` has not confirmed the order, and may still obey it: {error}.");
        Refusal::Conflict(message)
    })?;
    if on {
        seen(workers, name).await;
        if !self::status(workers).iter().any(WorkerStatus::is_ready) {
            let undone = client.drain(false).await;
            let sequel =
                if undone.is_ok() { "it takes requests again" } else { "taking the order back failed" };
            let message = format!("`{name}` cannot drain: no other worker would be ready; {sequel}.");
            return Err(Refusal::Conflict(message));
        }
    }
    Ok(())
}

fn status(workers: &Workers) -> Vec<WorkerStatus> {
    workers.with_fleet(|fleet| fleet.status(clock::now()))
}

/// Waits until the worker reports that it drains, and a moment for the reports of others.
async fn seen(workers: &Workers, name: &str) {
    let report = async {
        while status(workers).iter().any(|worker| worker.id == name && worker.is_ready()) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    // A worker whose report is late has confirmed the order all the same.
    let _ = tokio::time::timeout(SEEN_WITHIN, report).await;
    tokio::time::sleep(SETTLE).await;
}
