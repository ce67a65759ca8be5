//! Adapters loaded and unloaded at run time: on all workers, and again on workers that connect later. Workers
//! keep the changes, from which routers that start learn them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use skein_choice::worker_id::WorkerId;
use skein_node::clock;
use skein_proto::adapter::{AdapterChange, AdapterId, AdapterRecord};

use super::adapter_changes::send;
use super::worker_client::{CallError, WorkerClient};
use super::workers::Workers;
use crate::refusal::Refusal;

/// Longest wait until the workers report a name that they have loaded.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);
/// Interval between two looks at the workers' reports.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Repeats changes on the workers that lack them, until the cluster is dropped.
pub(crate) async fn follow_changes(workers: Arc<Workers>) {
    loop {
        workers.adapter_changes.lacking.notified().await;
        join_all(workers.clients_by_id().into_iter().map(|(worker, client)| {
            let lacking = {
                let mut records = workers.adapter_changes.lock();
                let lacking = records.lacking(worker);
                records.saw(worker, &lacking);
                lacking
            };
            async move {
                for record in &lacking {
                    send(&client, record).await;
                }
            }
        }))
        .await;
    }
}

/// The identity of the adapter in a directory, which all workers that can be reached could serve. Another one
/// gets it when it connects.
///
/// # Errors
/// If one of them could not, they find different adapters, or none can be reached.
pub(crate) async fn check(workers: &Workers, name: &str, path: &str) -> Result<AdapterId, Refusal> {
    let clients = workers.clients();
    if clients.is_empty() {
        return Err(workers.none_ready());
    }
    let asked = join_all(clients.iter().map(|client| client.check_adapter(name, path))).await;
    let (mut found, mut unreached): (Option<AdapterId>, Option<CallError>) = (None, None);
    let refused = |why: &dyn std::fmt::Display| {
        Refusal::invalid("lora_path", format!("The adapter cannot be loaded: {why}"))
    };
    for answer in asked {
        match answer {
            Ok(id) if found.is_some_and(|other| other != id) => {
                return Err(refused(&"the workers have different adapters in this directory"));
            }
            Ok(id) => found = Some(id),
            Err(fault @ CallError::Fault(_)) => unreached = Some(fault),
            Err(why) => return Err(refused(&why)),
        }
    }
    match (found, unreached) {
        (Some(id), _) => Ok(id),
        (None, Some(fault)) => Err(refused(&fault)),
        (None, None) => unreachable!("each worker has answered or not"),
    }
}

/// Loads an adapter on all workers that can be reached, once all of them could serve it.
///
/// # Errors
/// As [`check`], and if another adapter has the name. Then nothing has changed.
pub(crate) async fn load(workers: &Arc<Workers>, name: &str, path: &str) -> Result<AdapterId, Refusal> {
    let id = check(workers, name, path).await?;
    if workers.adapters().by_name.get(name).is_some_and(|other| *other != id) {
        let message = format!(
            "The adapter cannot be loaded: an adapter named {name} is loaded already; unload it first, or choose \
             another name"
        );
        return Err(Refusal::invalid("lora_path", message));
    }
    let change = AdapterChange::Loaded { path: path.to_owned(), id, stamp: next_stamp(workers) };
    let record = AdapterRecord { name: name.to_owned(), change };
    if let Err(error) = apply(workers, record, true).await {
        let change = AdapterChange::Unloaded { stamp: next_stamp(workers) };
        if let Err(error) = apply(workers, AdapterRecord { name: name.to_owned(), change }, true).await {
            tracing::debug!(%error, "no worker can be reached");
        }
        return Err(Refusal::invalid("lora_path", format!("The adapter cannot be loaded: {error}")));
    }
    // The name is served once this returns.
    let began = clock::now();
    while workers.adapters().by_name.get(name) != Some(&id) && clock::now().since(began) < REPORTED_WITHIN {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(id)
}

/// Unloads an adapter on all connected workers. Streams that have begun go on.
///
/// # Errors
/// If no worker has it, or none can be reached.
pub(crate) async fn unload(workers: &Arc<Workers>, name: &str) -> Result<(), Refusal> {
    if workers.clients().is_empty() {
        return Err(workers.none_ready());
    }
    let change = AdapterChange::Unloaded { stamp: next_stamp(workers) };
    match apply(workers, AdapterRecord { name: name.to_owned(), change }, false).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Refusal::NotFound(format!("No adapter named `{name}` is loaded."))),
        Err(error) => Err(Refusal::invalid("lora_name", format!("The adapter cannot be unloaded: {error}."))),
    }
}

/// Makes a change on all connected workers, and later on the others. An unloading that is not `is_repeated`
/// counts only if a worker has the adapter. Returns whether one had it, or now has it.
///
/// # Errors
/// If none could be asked.
pub(crate) async fn apply(
    workers: &Arc<Workers>,
    record: AdapterRecord,
    is_repeated: bool,
) -> Result<bool, CallError> {
    let clients = workers.clients_by_id();
    let changes = &workers.adapter_changes;
    if is_repeated {
        changes.lock().merge(std::slice::from_ref(&record));
    }
    let send = |(worker, client): &(WorkerId, WorkerClient)| {
        let (worker, client, record) = (*worker, client.clone(), &record);
        async move {
            let done = client.change_adapter(record, is_repeated).await;
            match &done {
                Ok(found) if *found || is_repeated => {
                    changes.lock().saw(worker, std::slice::from_ref(record));
                }
                Ok(_) => {}
                Err(error) => {
                    let loads = matches!(record.change, AdapterChange::Loaded { .. });
                    let (name, what) = (&record.name, if loads { "loaded" } else { "unloaded" });
                    tracing::warn!(adapter = name, %error, "a worker has not {what} an adapter");
                }
            }
            done
        }
    };
    let done = join_all(clients.iter().map(send)).await;
    let is_found = done.iter().any(|done| matches!(done, Ok(true)));
    if is_found {
        changes.lock().merge(std::slice::from_ref(&record));
        changes.lacking.notify_one();
    }
    workers.resolve_adapters();
    let any = done.iter().any(Result::is_ok);
    match done.into_iter().find_map(Result::err) {
        Some(error) if !any || (!is_found && !is_repeated) => Err(error),
        _ => Ok(is_found),
    }
}

fn next_stamp(workers: &Workers) -> u64 {
    let unix_ms = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
    workers.adapter_changes.lock().next_stamp(unix_ms)
}
