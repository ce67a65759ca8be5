//! Runs a workload's sessions against a server, in an open or a closed loop or in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use skein_node::clock::{self, Timestamp};
use tokio::sync::{Semaphore, mpsc};

use super::client::Server;
use super::held_back;
use super::metrics::Record;
use super::pace::Pace;
use super::session::{arrival_times, run_session};
use super::workload::Session;

/// Most concurrent sessions of an open loop without `max_concurrency`, to protect this machine's sockets.
const OPEN_LOOP_SESSIONS: usize = 8192;
/// Most finished records queued for collection.
const RECORDS_IN_FLIGHT: usize = 1024;

/// Runs `sessions` against `server`; calls `on_done` after each request.
pub async fn run(
    server: &Server,
    sessions: Vec<Session>,
    pace: Pace,
    on_done: impl FnMut(&Record),
) -> Vec<Record> {
    let start = clock::now();
    let (sender, mut receiver) = mpsc::channel(RECORDS_IN_FLIGHT);
    let timed = pace.request_rate.is_some() || sessions.iter().any(|session| session.at.is_some());
    let total: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let driver = if let Some(held) = pace.held_back {
        tokio::spawn(held_back::run(server.clone(), sessions, pace, held, start, sender))
    } else if timed {
        tokio::spawn(open_loop(server.clone(), sessions, pace, start, sender))
    } else {
        tokio::spawn(closed_loop(server.clone(), sessions, pace, start, sender))
    };
    let mut on_done = on_done;
    let mut records = Vec::with_capacity(total);
    while let Some(record) = receiver.recv().await {
        on_done(&record);
        records.push(record);
    }
    // The channel closes only when the driver and all its sessions have dropped it.
    let _ = driver.await;
    records
}

/// Sends each session at its time, regardless of the server.
async fn open_loop(
    server: Server,
    sessions: Vec<Session>,
    pace: Pace,
    start: Timestamp,
    done: mpsc::Sender<Record>,
) {
    let slots = Arc::new(Semaphore::new(pace.max_concurrency.unwrap_or(OPEN_LOOP_SESSIONS)));
    for (session, intended) in arrival_times(sessions, &pace) {
        let wait = intended.saturating_sub(clock::now().since(start));
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let (server, slots, done) = (server.clone(), slots.clone(), done.clone());
        tokio::spawn(async move {
            // Never closed, so a permit always comes; waiting for it counts against the intended time.
            let Ok(_slot) = slots.acquire().await else { return };
            run_session(&server, session, Some(intended), start, &done).await;
        });
    }
}

/// Keeps `max_concurrency` sessions running until none is left.
async fn closed_loop(
    server: Server,
    sessions: Vec<Session>,
    pace: Pace,
    start: Timestamp,
    done: mpsc::Sender<Record>,
) {
    let lanes = pace.max_concurrency.unwrap_or(sessions.len()).clamp(1, sessions.len().max(1));
    let sessions = Arc::new(sessions);
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..lanes {
        let (server, sessions, next, done) = (server.clone(), sessions.clone(), next.clone(), done.clone());
        tokio::spawn(async move {
            while let Some(session) = sessions.get(next.fetch_add(1, Ordering::Relaxed)) {
                run_session(&server, session.clone(), None, start, &done).await;
            }
        });
    }
}
