//! Keeps a number of worker processes alive: starts them, reports joins and leaves to discovery, restarts
//! crashed ones with backoff, and stops them all.
//!
//! A worker's standard input is its leash: it closes when the supervisor stops the worker and also when the
//! supervisor dies for any reason, so no worker is left behind.

mod backoff;
mod lifecycle;

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock;
use crate::discovery::{Change, Member};
use crate::shutdown::Shutdown;
use backoff::Backoff;
pub use lifecycle::{Failed, Lifecycle, end_with_supervisor};

/// How long a worker may take to exit once its input is closed.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Most reports queued for the terminal.
const REPORTS_IN_FLIGHT: usize = 256;

/// News of one worker, for the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Weights are loading.
    Progress {
        /// Index of the worker.
        worker: usize,
        /// Bytes loaded so far.
        done: u64,
        /// Bytes to load.
        total: u64,
    },
    /// The worker serves.
    Ready {
        /// Index of the worker.
        worker: usize,
        /// `host:port` of its gRPC service.
        address: String,
    },
    /// The worker has never served, and the same start would fail the same way.
    Hopeless(Failed),
}

/// A set of supervised workers.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<()>,
    stop: Shutdown,
}

impl Supervisor {
    /// Starts `count` workers. `command` is called for every start and restart.
    pub fn start(
        count: usize,
        command: impl Fn(usize) -> Command + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
    ) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS_IN_FLIGHT);
        let (mut tasks, stop) = (JoinSet::new(), Shutdown::default());
        for worker in 0..count {
            let slot =
                WorkerSlot { worker, changes: changes.clone(), reports: reports.clone(), stop: stop.clone() };
            let command = command.clone();
            tasks.spawn(async move { slot.keep_alive(|| command(worker)).await });
        }
        (Self { tasks, stop }, receiver)
    }

    /// Stops all workers and waits until they have exited, at most [`END_TIMEOUT`] each.
    pub async fn stop(mut self) {
        self.stop.request();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// How one run of a worker ended.
enum End {
    /// The supervisor stopped it.
    Stopped,
    /// It reported that it can never work.
    Hopeless(Failed),
    /// It exited by itself or by a signal.
    Died(String),
}

/// The slot of one worker; its process may be replaced.
struct WorkerSlot {
    worker: usize,
    changes: mpsc::Sender<Change>,
    reports: mpsc::Sender<Report>,
    stop: Shutdown,
}

impl WorkerSlot {
    fn id(&self) -> String {
        format!("worker-{}", self.worker)
    }

    async fn keep_alive(self, command: impl Fn() -> Command) {
        let mut backoff = Backoff::default();
        let mut served_once = false;
        loop {
            let started = clock::now();
            let mut ready = false;
            let end = self.run_once(command(), &mut ready).await;
            served_once |= ready;
            if ready {
                // The channel is closed if the router is gone.
                let _ = self.changes.send(Change::Leave(self.id())).await;
            }
            let why = match end {
                End::Stopped => return,
                End::Hopeless(failure) if !served_once => {
                    let _ = self.reports.send(Report::Hopeless(failure)).await;
                    return;
                }
                End::Hopeless(failure) => failure.message,
                End::Died(why) => why,
            };
            let pause = backoff.after(clock::now().since(started));
            tracing::warn!(
                worker = self.worker,
                why,
                pause_ms = pause.as_millis() as u64,
                "worker ended; restarting it"
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.requested() => return,
            }
        }
    }

    async fn run_once(&self, mut command: Command, ready: &mut bool) -> End {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return End::Died(format!("cannot be started: {error}")),
        };
        // Held because `wait` would close it, and the worker would exit.
        let leash = child.stdin.take();
        let mut lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let mut last_report = None;
        loop {
            let line = async {
                match &mut lines {
                    Some(lines) => lines.next_line().await.ok().flatten(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Lines first, so that a worker's last report is read before its exit is handled.
                biased;
                line = line => match line {
                    Some(line) => last_report = self.handle(&line, ready).await.or(last_report),
                    None => lines = None,
                },
                status = child.wait() => return match (last_report, status) {
                    (Some(failure), _) => End::Hopeless(failure),
                    (None, Ok(status)) => End::Died(status.to_string()),
                    (None, Err(error)) => End::Died(error.to_string()),
                },
                () = self.stop.requested() => break,
            }
        }
        drop(leash);
        if tokio::time::timeout(END_TIMEOUT, child.wait()).await.is_err() {
            tracing::warn!(worker = self.worker, "worker did not end in {END_TIMEOUT:?}; killing it");
            // This fails if it exited at this very moment.
            let _ = child.kill().await;
        }
        End::Stopped
    }

    /// Handles one line; returns the failure if the worker reports that it can never work.
    async fn handle(&self, line: &str, ready: &mut bool) -> Option<Failed> {
        let worker = self.worker;
        // As above, a closed channel means that nothing listens any more.
        match Lifecycle::parse(line) {
            Some(Lifecycle::Progress { done, total }) => {
                let _ = self.reports.try_send(Report::Progress { worker, done, total });
            }
            Some(Lifecycle::Ready { address }) => {
                *ready = true;
                let _ =
                    self.changes.send(Change::Join(Member { id: self.id(), address: address.clone() })).await;
                let _ = self.reports.send(Report::Ready { worker, address }).await;
            }
            Some(Lifecycle::Failed(failed)) => return failed.permanent.then_some(failed),
            None => tracing::debug!(worker, line, "other output of a worker"),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell script in place of a worker.
    fn script(text: &'static str) -> impl Fn(usize) -> Command + Clone + Send + Sync + 'static {
        move |_| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        }
    }

    #[tokio::test]
    async fn a_worker_that_crashes_leaves_and_joins_again() {
        let (changes, mut seen) = mpsc::channel(16);
        let text = r#"echo noise; echo '{"event":"ready","address":"127.0.0.1:7"}'; exit 9"#;
        let (supervisor, _reports) = Supervisor::start(1, script(text), &changes);
        let join = Change::Join(Member { id: "worker-0".into(), address: "127.0.0.1:7".into() });
        for expected in [join.clone(), Change::Leave("worker-0".into()), join] {
            assert_eq!(seen.recv().await, Some(expected));
        }
        supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_worker_ends_when_its_input_closes() {
        let (changes, mut seen) = mpsc::channel(16);
        let text = r#"echo '{"event":"ready","address":"127.0.0.1:7"}'; cat >/dev/null; exit 0"#;
        let (supervisor, _reports) = Supervisor::start(1, script(text), &changes);
        assert!(matches!(seen.recv().await, Some(Change::Join(_))));
        let before = clock::now();
        supervisor.stop().await;
        assert!(clock::now().since(before) < END_TIMEOUT, "it ended by itself");
        assert_eq!(seen.recv().await, Some(Change::Leave("worker-0".into())));
    }

    #[tokio::test]
    async fn a_model_that_cannot_load_is_reported_once_and_not_retried() {
        let (changes, _seen) = mpsc::channel(16);
        let text =
            r#"echo '{"event":"failed","code":3,"message":"no config.json","permanent":true}'; exit 3"#;
        let (mut supervisor, mut reports) = Supervisor::start(1, script(text), &changes);
        let failed = Failed { code: 3, message: "no config.json".into(), permanent: true };
        assert_eq!(reports.recv().await, Some(Report::Hopeless(failed)));
        assert!(supervisor.tasks.join_next().await.is_some());
    }
}
