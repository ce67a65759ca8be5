//! Emulates a server without in-flight batching on a real server: requests are held back and sent in batches,
//! and the next batch starts once the last answer of the previous one has ended.
//!
//! Finished rows cost nothing here, whereas padding would compute them until the batch ends. The figures
//! therefore flatter static and dynamic batching.

use skein_node::clock::{self, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::Server;
use super::metrics::Record;
use super::pace::{HeldBack, Pace};
use super::session::{arrival_times, run_session};
use super::workload::Session;

/// Most sessions that wait for a batch.
const MOST_WAITING: usize = 8192;

/// Sends `sessions` in batches; each arrives at its time in an open loop, or at the start.
pub(super) async fn run(
    server: Server,
    sessions: Vec<Session>,
    pace: Pace,
    held: HeldBack,
    start: Timestamp,
    done: mpsc::Sender<Record>,
) {
    let (arrived, mut waiting) = mpsc::channel(MOST_WAITING);
    let arrivals = tokio::spawn(async move {
        for (session, intended) in arrival_times(sessions, &pace) {
            tokio::time::sleep(intended.saturating_sub(clock::now().since(start))).await;
            if arrived.send((session, intended)).await.is_err() {
                return;
            }
        }
    });
    while let Some(first) = waiting.recv().await {
        let full_or_late = first.1 + held.delay;
        let mut batch = vec![first];
        while batch.len() < held.most {
            let left = full_or_late.saturating_sub(clock::now().since(start));
            let next = match waiting.try_recv() {
                Ok(next) => Some(next),
                Err(_) if left.is_zero() => None,
                Err(_) => tokio::time::timeout(left, waiting.recv()).await.ok().flatten(),
            };
            let Some(next) = next else { break };
            batch.push(next);
        }
        let mut running = JoinSet::new();
        for (session, intended) in batch {
            let (server, done) = (server.clone(), done.clone());
            running.spawn(async move { run_session(&server, session, Some(intended), start, &done).await });
        }
        running.join_all().await;
    }
    // The channel is closed, so the task has ended.
    let _ = arrivals.await;
}
