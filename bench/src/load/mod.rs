//! Load over HTTP, for `skein bench serve`: sends the sessions of a workload in a closed loop (fixed
//! concurrency) or an open loop (at times independent of the server), and collects the results.
//!
//! An open loop also reports latency from the *intended* send time: a client that falls behind must not make
//! a slow server look fast (coordinated omission).

pub mod arrivals;
pub mod client;
mod held_back;
pub mod metrics;
pub mod report;
pub mod sse;
pub mod texts;
pub mod watch;
pub mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::sync::{Semaphore, mpsc};

use arrivals::Arrivals;
use client::Server;
pub use held_back::HeldBack;
use metrics::Record;
use workload::Session;

/// Output tokens to request if neither a flag nor the data set specifies them, as in vLLM.
pub const DEFAULT_OUTPUT_LEN: u32 = 128;
/// Most concurrent sessions of an open loop without `max_concurrency`, to protect this machine's sockets.
const OPEN_LOOP_SESSIONS: usize = 8192;
/// Most finished records queued for collection.
const RECORDS_IN_FLIGHT: usize = 1024;

/// Distribution of requests over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Sessions per second; `None` = as fast as `max_concurrency` permits.
    pub request_rate: Option<f64>,
    /// Shape parameter of the gaps, see [`Arrivals`].
    pub burstiness: f64,
    /// Most sessions at once; `None` = all.
    pub max_concurrency: Option<usize>,
    /// Seed of the arrival times.
    pub seed: u64,
    /// Forms batches of sessions; `max_concurrency` then has no effect.
    pub held_back: Option<HeldBack>,
}

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

/// Sessions with their send times: their own, or those of the arrival process.
fn arrival_times(sessions: Vec<Session>, pace: &Pace) -> impl Iterator<Item = (Session, Duration)> + use<> {
    let mut arrivals = pace.request_rate.map(|rate| Arrivals::new(rate, pace.burstiness, pace.seed));
    sessions.into_iter().map(move |session| {
        let next = arrivals.as_mut().and_then(Iterator::next);
        let intended = session.at.or(next).unwrap_or_default();
        (session, intended)
    })
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

/// Sends the turns one after another, each with the conversation so far.
async fn run_session(
    server: &Server,
    session: Session,
    intended: Option<Duration>,
    start: Timestamp,
    done: &mpsc::Sender<Record>,
) {
    let mut prompt = Vec::new();
    let mut intended = intended;
    for turn in session.turns {
        prompt.extend(turn.tokens);
        // Only a session's first turn has an intended time; later turns follow the answer.
        let meant = intended.take().unwrap_or_else(|| clock::now().since(start));
        let (record, answer) = server.complete(&prompt, turn.output_tokens, meant, start).await;
        prompt.extend(answer);
        let failed = record.error.is_some();
        if done.send(record).await.is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
