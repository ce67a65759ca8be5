//! Drains that an operator orders: a worker gives its requests to others and takes no more, until it is told
//! to.

use skein_node::clock;

use super::workers::Workers;
use crate::refusal::Refusal;

/// Orders the worker of this name to drain, or to take requests again.
///
/// # Errors
/// [`Refusal::NotFound`] if there is no such worker, [`Refusal::Conflict`] if no other one is ready or it
/// does not obey.
pub(crate) async fn drain(workers: &Workers, name: &str, on: bool) -> Result<(), Refusal> {
    let status = workers.with_fleet(|fleet| fleet.status(clock::now()));
    if !status.iter().any(|worker| worker.id == name) {
        return Err(Refusal::NotFound(format!("There is no worker `{name}`.")));
    }
    if on && !status.iter().any(|worker| worker.id != name && worker.is_ready()) {
        let message = format!("`{name}` cannot drain: no other worker is ready to take its requests.");
        return Err(Refusal::Conflict(message));
    }
    let named = |id| workers.with_fleet(|fleet| fleet.name(id)).is_some_and(|known| *known == *name);
    let client = workers.clients_by_id().into_iter().find(|(id, _)| named(*id)).map(|(_, client)| client);
    let client = client.ok_or_else(|| Refusal::Conflict(format!("`{name}` cannot be reached.")))?;
    client.drain(on).await.map_err(|error| Refusal::Conflict(format!("`{name}` does not obey: {error}.")))
}
