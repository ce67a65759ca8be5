//! Emulates a server without in-flight batching on a real server: requests are held back and sent in batches,
//! and the next batch starts once the last answer of the previous one has ended.
//!
//! Finished rows cost nothing here, whereas padding would compute them until the batch ends. The figures
//! therefore flatter static and dynamic batching.

use std::fmt;
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::Server;
use super::metrics::Record;
use super::workload::Session;
use super::{Pace, arrival_times, run_session};

/// Most sessions that wait for a batch.
const MOST_WAITING: usize = 8192;

/// How batches are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// Most sessions per batch.
    pub most: usize,
    /// How long the first session of a batch waits for others; zero = a batch starts with the waiting
    /// sessions.
    pub delay: Duration,
}

impl HeldBack {
    /// Parses `static:8` or `dynamic:8:50ms`; `None` for `continuous`, which holds nothing back.
    ///
    /// # Errors
    /// Describes the expected forms.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let complaint = || {
            format!(
                "`{text}` is not continuous, static:N such as static:8, or dynamic:N:TIME such as dynamic:8:50ms"
            )
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            ["continuous"] => Ok(None),
            ["static", most] => {
                let most = count(most).ok_or_else(complaint)?;
                Ok(Some(Self { most, delay: Duration::ZERO }))
            }
            ["dynamic", most, delay] => {
                let held = Self::dynamic(most, delay).ok_or_else(complaint)?;
                Ok(Some(held))
            }
            _ => Err(complaint()),
        }
    }

    /// Parses the largest batch and the longest delay, such as `8` and `50ms` or `1.5s`.
    pub fn dynamic(most: &str, delay: &str) -> Option<Self> {
        let (number, unit) = match delay.strip_suffix("ms") {
            Some(number) => (number, 1e-3),
            None => (delay.strip_suffix('s')?, 1.0),
        };
        let seconds: f64 = number.parse().ok()?;
        let delay = Duration::try_from_secs_f64(seconds * unit).ok()?;
        Some(Self { most: count(most)?, delay })
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay {
            Duration::ZERO => write!(f, "static:{}", self.most),
            delay => write!(f, "dynamic:{}:{}ms", self.most, delay.as_millis()),
        }
    }
}

fn count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| *count > 0)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        for text in ["static:8", "dynamic:4:50ms", "dynamic:16:1500ms"] {
            let held = HeldBack::parse(text).expect("a rule").expect("it holds back");
            assert_eq!(held.to_string(), text);
        }
        assert_eq!(HeldBack::parse("continuous"), Ok(None));
        assert_eq!(
            HeldBack::parse("dynamic:8:0.5s").ok().flatten().map(|held| held.delay.as_millis()),
            Some(500)
        );
        for text in
            ["static", "static:0", "dynamic:8", "dynamic:8:50", "dynamic:8:-1s", "orca:8", "static:8:1"]
        {
            assert!(HeldBack::parse(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
