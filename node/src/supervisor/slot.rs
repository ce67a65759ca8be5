//! Slot of one worker, whose process may be replaced.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{broadcast, mpsc};

use super::backoff::Backoff;
use super::lifecycle::{Failed, Lifecycle};
use super::report::{END_TIMEOUT, Report};
use super::secret::{Secret, Secrets};
use super::start::WorkerStart;
use crate::clock;
use crate::discovery::{Change, Member};
use crate::shutdown::Shutdown;

/// Exit code reported for a worker that died before it was ready and is not started again.
const FAILED_BESIDE: u8 = 1;

/// How a worker process ended.
enum End {
    /// The supervisor stopped it.
    Stopped,
    /// It reported a permanent failure.
    Hopeless(Failed),
    /// It failed to start, exited, or was killed by a signal or after the router reported it as lost.
    Died(String),
}

/// Requests to stop: all workers of the supervisor, or those of one set.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub all: Shutdown,
    pub set: Shutdown,
}

impl Stop {
    async fn requested(&self) {
        tokio::select! {
            () = self.all.requested() => {}
            () = self.set.requested() => {}
        }
    }

    async fn forced(&self) {
        self.all.forced().await;
    }
}

pub(super) struct WorkerSlot {
    pub worker: usize,
    /// Its name in discovery.
    pub name: String,
    /// It is not started again if it fails before it was ready.
    pub once: bool,
    pub changes: mpsc::Sender<Change>,
    pub reports: mpsc::Sender<Report>,
    pub stop: Stop,
    pub secrets: Secrets,
    /// Longest silence before the worker is ready.
    pub silent_start: Duration,
}

impl WorkerSlot {
    /// Starts the worker and restarts it until stopped; `lost` receives the workers that the router reports
    /// as lost.
    pub async fn keep_alive(self, start: impl Fn() -> WorkerStart, mut lost: broadcast::Receiver<Member>) {
        let mut backoff = Backoff::default();
        let mut served_once = false;
        loop {
            let started = clock::now();
            let mut address = None;
            let end = self.run_once(start(), &mut lost, &mut address).await;
            let was_ready = address.is_some();
            served_once |= was_ready;
            if let Some(address) = address {
                self.secrets.forget(&address);
                // An error means that the router has ended.
                let _ = self.changes.send(Change::Leave(self.name.clone())).await;
            }
            let why = match end {
                End::Stopped => return,
                End::Hopeless(failure) if !served_once => {
                    let _ = self.reports.send(Report::Hopeless(failure)).await;
                    return;
                }
                End::Hopeless(failure) => failure.message,
                End::Died(why) if self.once && !served_once => {
                    let failed = Failed { code: FAILED_BESIDE, message: why, permanent: false };
                    let _ = self.reports.send(Report::Hopeless(failed)).await;
                    return;
                }
                End::Died(why) => why,
            };
            let run = clock::now().since(started);
            let pause = if was_ready { backoff.after_ready(run) } else { backoff.before_ready() };
            let pause_ms = pause.as_millis() as u64;
            tracing::warn!(worker = self.worker, why, pause_ms, "worker ended; restarting it");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.requested() => return,
            }
        }
    }

    /// Runs one process from start to end. `ready` is set to its address once it serves.
    async fn run_once(
        &self,
        start: WorkerStart,
        lost: &mut broadcast::Receiver<Member>,
        ready: &mut Option<String>,
    ) -> End {
        let id = self.name.as_str();
        let WorkerStart { mut command, settings } = start;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let (mut child, secret) = match command.spawn().and_then(|child| Ok((child, Secret::draw()?))) {
            Ok(started) => started,
            Err(error) => return End::Died(format!("cannot start: {error}")),
        };
        // Taken out of `child`, because `wait` would close it, and a worker exits when its input closes.
        let lifeline = hand_over(&secret, &settings, child.stdin.take());
        // A process that does not read is frozen, which is noticed below.
        let lifeline = tokio::time::timeout(self.silent_start, lifeline).await.unwrap_or_default();
        let mut lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let mut last_report = None;
        let mut heard_at = clock::now();
        loop {
            let silence_left = self.silent_start.saturating_sub(clock::now().since(heard_at));
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
                    Some(line) => {
                        heard_at = clock::now();
                        last_report = self.handle(&line, &secret, ready).await.or(last_report);
                    }
                    None => lines = None,
                },
                status = child.wait() => return match (last_report, status) {
                    (Some(failure), _) => End::Hopeless(failure),
                    (None, Ok(status)) => End::Died(status.to_string()),
                    (None, Err(error)) => End::Died(error.to_string()),
                },
                () = is_lost(lost, id, ready.as_deref()) => {
                    self.kill(&mut child).await;
                    return End::Died("killed: it was silent or its engine was stuck".into());
                }
                () = tokio::time::sleep(silence_left), if ready.is_none() => {
                    self.kill(&mut child).await;
                    let seconds = self.silent_start.as_secs();
                    return End::Died(format!("killed: silent for {seconds} s before it was ready"));
                }
                () = self.stop.requested() => break,
            }
        }
        drop(lifeline);
        self.see_end(&mut child).await;
        End::Stopped
    }

    /// Waits for a worker whose input has closed, and kills it after the timeout.
    async fn see_end(&self, child: &mut Child) {
        tokio::select! {
            _ = child.wait() => return,
            () = self.stop.forced() => {}
            () = tokio::time::sleep(END_TIMEOUT) => {
                tracing::warn!(worker = self.worker, "worker did not exit within {END_TIMEOUT:?}; killing it");
            }
        }
        self.kill(child).await;
    }

    /// Kills a process. If a driver blocks it in the kernel, it may still exist afterwards.
    async fn kill(&self, child: &mut Child) {
        // This fails if the process has just exited.
        let _ = child.start_kill();
        if tokio::time::timeout(END_TIMEOUT, child.wait()).await.is_err() {
            let pid = child.id();
            tracing::error!(worker = self.worker, pid, "a killed worker still exists after {END_TIMEOUT:?}");
        }
    }

    /// Handles one line; returns the failure if the worker reports one that another start would not mend.
    async fn handle(&self, line: &str, secret: &Secret, ready: &mut Option<String>) -> Option<Failed> {
        let worker = self.worker;
        // As above, an error means that the router has ended.
        match Lifecycle::parse(line) {
            Some(Lifecycle::Progress { done, total }) => {
                let _ = self.reports.try_send(Report::Progress { worker, done, total });
            }
            Some(Lifecycle::Alive) => {}
            Some(Lifecycle::Ready { address }) => {
                *ready = Some(address.clone());
                self.secrets.keep(&address, secret.clone());
                let member = Member { id: self.name.clone(), address: address.clone() };
                let _ = self.changes.send(Change::Join(member)).await;
                let _ = self.reports.send(Report::Ready { worker, address }).await;
            }
            Some(Lifecycle::Failed(failed)) => return (failed.permanent || self.once).then_some(failed),
            None => tracing::debug!(worker, line, "unexpected output of a worker"),
        }
        None
    }
}

/// Writes the secret to the worker. Its input stays open until the returned value is dropped.
async fn hand_over(secret: &Secret, settings: &str, input: Option<ChildStdin>) -> Option<ChildStdin> {
    let mut input = input?;
    let lines = format!("{}\n{settings}\n", secret.expose());
    // An error means that the worker has exited, which is handled below.
    let _ = input.write_all(lines.as_bytes()).await;
    Some(input)
}

/// Waits until the router reports the process at `address` as lost. Reports about an earlier process of this
/// slot, at a different address, are ignored.
async fn is_lost(lost: &mut broadcast::Receiver<Member>, id: &str, address: Option<&str>) {
    loop {
        match lost.recv().await {
            Ok(member) if member.id == id && Some(member.address.as_str()) == address => return,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}
