//! The links to the workers: one task follows discovery, and one per worker reads its `Info` and its watch.
//! They pass events to [`Fleet::handle`] and carry out its actions; they decide nothing.
//!
//! [`Fleet::handle`]: skein_choice::fleet::Fleet::handle

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skein_choice::fleet::{Action, Event, TICK};
use skein_choice::worker_id::{WorkerEpoch, WorkerId};
use skein_node::discovery::Change;
use skein_node::trace::Connecting;
use skein_node::{clock, task};
use skein_proto::watch::{WatchBody, WatchEvent};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use super::link_log::{LinkLog, Reached};
use super::snapshot_parts;
use super::worker_client::{CallError, WorkerClient};
use super::workers::Workers;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause before retrying a worker that answers but is not ready, for example because it loads its
/// weights.
const LOADING_PAUSE: Duration = Duration::from_millis(200);

/// Follows discovery until the cluster is dropped. All links close with this task.
pub(crate) async fn follow_members(workers: Arc<Workers>, mut changes: mpsc::Receiver<Change>) {
    let mut links = JoinSet::new();
    let mut handles: HashMap<WorkerId, (AbortHandle, Arc<Notify>)> = HashMap::new();
    loop {
        let Some(change) = changes.recv().await else {
            // The source has ended: the members stay as they are.
            return std::future::pending().await;
        };
        for action in workers.handle(Event::Member(change)) {
            match action {
                Action::Follow(worker, address) => {
                    let hurry = Arc::new(Notify::new());
                    let link = task::spawn_in(
                        &mut links,
                        follow_worker(workers.clone(), worker, address, hurry.clone()),
                    );
                    handles.insert(worker, (link, hurry));
                }
                Action::Unfollow(worker) => {
                    workers.disconnect(worker);
                    handles.remove(&worker).inspect(|(link, _)| link.abort());
                }
                Action::Hurry(worker) => {
                    handles.get(&worker).inspect(|(_, hurry)| hurry.notify_one());
                }
                Action::Resubscribe(_)
                | Action::Reconnect(_)
                | Action::Wake
                | Action::SeatFree
                | Action::Recheck(_)
                | Action::Lost(_)
                | Action::Log(_) => {}
            }
        }
        while links.try_join_next().is_some() {}
        // Links to departed workers end by themselves.
        handles.retain(|_, (link, _)| !link.is_finished());
    }
}

/// Ticks the fleet until the cluster is dropped.
pub(crate) async fn tick(workers: Arc<Workers>) {
    loop {
        for action in workers.handle(Event::Tick) {
            if let Action::Unfollow(worker) = action {
                workers.disconnect(worker);
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn follow_worker(workers: Arc<Workers>, worker: WorkerId, address: String, hurry: Arc<Notify>) {
    let mut pause = FIRST_PAUSE;
    let mut log = LinkLog::default();
    let mut connecting = Connecting::begin("worker", &address);
    loop {
        let mut reached = Reached::Nothing;
        let link = Link { worker, address: &address, log: &mut log, connecting: &mut connecting };
        let ended = session(&workers, link, &mut reached).await;
        if workers.handle(Event::Lost(worker)).contains(&Action::Unfollow(worker)) || !workers.has(worker) {
            tracing::info!(worker = worker.0, address, "a worker that had left discovery is gone");
            return workers.disconnect(worker);
        }
        connecting.failed();
        pause = match reached {
            Reached::Nothing => pause,
            Reached::Process | Reached::Worker | Reached::Watch => pause.min(LOADING_PAUSE),
            Reached::Service => FIRST_PAUSE,
        };
        let error = ended.err();
        let reason = error.as_ref().and_then(|error| log.ended(clock::now(), reached, error));
        if let Some(reason) = reason {
            tracing::warn!(worker = worker.0, address, reason, "no link to a worker; retrying");
        }
        tracing::debug!(worker = worker.0, error = error.map(tracing::field::display), ?pause, "link ended");
        // Either the pause is over or discovery announced the worker again: retry.
        let _ = tokio::time::timeout(pause, hurry.notified()).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// State of a link during a session.
struct Link<'a> {
    worker: WorkerId,
    address: &'a str,
    log: &'a mut LinkLog,
    connecting: &'a mut Connecting,
}

/// One connection to a worker, from reading its `Info` to the end of its watch.
async fn session(
    workers: &Arc<Workers>,
    Link { worker, address, log, connecting }: Link<'_>,
    reached: &mut Reached,
) -> Result<(), CallError> {
    let client = WorkerClient::connect(&*workers.connector, address).await?;
    *reached = Reached::Process;
    let info = client.info().await?;
    *reached = Reached::Worker;
    let (backend, version) = (info.backend.clone(), info.version.clone());
    workers.connect(worker, client.clone());
    // Before it gets requests.
    workers.adapter_changes.repeat(worker, &client).await;
    workers.handle(Event::Connected(worker, info));
    let mut subscriptions = 0u32;
    'subscribe: loop {
        // Back off, in case a worker's snapshots never fit.
        tokio::time::sleep(FIRST_PAUSE * subscriptions.min(20)).await;
        subscriptions += 1;
        let mut events = client.watch(workers.router_id, workers.watch_from(worker)).await?;
        while let Some(event) = events.next().await {
            let event = event?;
            let is_first = *reached == Reached::Worker;
            if is_first {
                *reached = Reached::Watch;
                log_recovered(worker, address, log);
                connecting.works();
            }
            let actions = handle(workers, worker, event).await;
            if is_first {
                // Logged only now, because a worker gets no requests before its first report.
                tracing::info!(worker = worker.0, address, backend, version, "worker connected");
            }
            for action in actions {
                match action {
                    Action::Resubscribe(_) => continue 'subscribe,
                    Action::Reconnect(_) => return Ok(()),
                    Action::Wake => *reached = Reached::Service,
                    Action::Follow(..)
                    | Action::Unfollow(_)
                    | Action::Hurry(_)
                    | Action::SeatFree
                    | Action::Recheck(_)
                    | Action::Lost(_)
                    | Action::Log(_) => {}
                }
            }
        }
        return Err(CallError::fault("the watch ended"));
    }
}

/// Passes an event of a worker's log to the fleet; a large snapshot in parts.
async fn handle(workers: &Workers, worker: WorkerId, mut event: WatchEvent) -> Vec<Action> {
    if let WatchBody::Load(_, totals) = &mut event.body {
        workers.totals.report(worker, event.epoch, std::mem::take(totals));
    }
    let mut rest = snapshot_parts::split(event);
    let mut actions = workers.handle(Event::Watched(worker, rest.event));
    let reopens = |action: &Action| matches!(action, Action::Resubscribe(_) | Action::Reconnect(_));
    while let Some(runs) = rest.parts.next().filter(|_| !actions.iter().any(reopens)) {
        // Other tasks may use the fleet between two parts.
        tokio::task::yield_now().await;
        let at = WorkerEpoch { worker, epoch: rest.epoch };
        actions.extend(workers.handle(Event::SnapshotPart(at, runs)));
    }
    actions
}

fn log_recovered(worker: WorkerId, address: &str, log: &mut LinkLog) {
    if let Some(away) = log.works(clock::now()) {
        tracing::info!(
            worker = worker.0,
            address,
            away_s = away.as_secs_f32(),
            "the link to a worker is back"
        );
    }
}
