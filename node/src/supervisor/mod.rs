//! Keeps a number of worker processes alive: starts them, reports joins and leaves to discovery, restarts
//! crashed ones, kills and restarts those that the router reports as lost, and stops them all.
//!
//! A worker's standard input is its lifeline: it closes when the supervisor stops the worker or dies for any
//! reason, so no worker is left behind. Its first line is the worker's secret.

mod backoff;
mod lifecycle;
mod secret;
mod slot;

use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

use crate::discovery::{Change, Member};
use crate::shutdown::Shutdown;
pub use lifecycle::{Failed, Lifecycle, end_with_supervisor, report_alive};
pub use secret::{Secret, Secrets};
use slot::WorkerSlot;

/// How long a worker may take to exit once its input is closed.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that reports nothing for this long before it is ready counts as frozen. Workers report once a
/// second; the margin is for an overloaded machine. Once a worker is ready, the router watches it.
const SILENT_START: Duration = Duration::from_secs(30);
/// Most reports queued for the terminal.
const REPORTS_IN_FLIGHT: usize = 256;
/// Most reports of lost workers queued.
const LOST_IN_FLIGHT: usize = 256;

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
    lost: broadcast::Sender<Member>,
    secrets: Secrets,
}

impl Supervisor {
    /// Starts `count` workers. `command` is called for every start and restart.
    pub fn start(
        count: usize,
        command: impl Fn(usize) -> Command + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
    ) -> (Self, mpsc::Receiver<Report>) {
        Self::start_with(count, command, changes, SILENT_START)
    }

    /// [`start`](Self::start) with a different limit of silence before a worker is ready.
    fn start_with(
        count: usize,
        command: impl Fn(usize) -> Command + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
        silent_start: Duration,
    ) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS_IN_FLIGHT);
        let (lost, _) = broadcast::channel(LOST_IN_FLIGHT);
        let (mut tasks, stop, secrets) = (JoinSet::new(), Shutdown::default(), Secrets::default());
        for worker in 0..count {
            let slot = WorkerSlot {
                worker,
                changes: changes.clone(),
                reports: reports.clone(),
                stop: stop.clone(),
                secrets: secrets.clone(),
                silent_start,
            };
            let (command, lost) = (command.clone(), lost.subscribe());
            tasks.spawn(async move { slot.keep_alive(|| command(worker), lost).await });
        }
        (Self { tasks, stop, lost, secrets }, receiver)
    }

    /// Secrets of the running workers.
    pub fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }

    /// Kills all workers without a drain when `forced` completes.
    pub fn kill_after(&self, forced: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        tokio::spawn(async move {
            forced.await;
            stop.force();
        });
    }

    /// Callback that reports a lost worker: silent, or with a stuck engine. It is killed and restarted.
    pub fn on_lost(&self) -> impl Fn(Member) + Send + Sync + 'static {
        let lost = self.lost.clone();
        // An error means that all workers have been stopped.
        move |member| drop(lost.send(member))
    }

    /// Stops all workers and waits up to [`END_TIMEOUT`] for each to exit.
    pub async fn stop(mut self) {
        self.stop.request();
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

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
        let text =
            r#"read -r secret; echo '{"event":"ready","address":"127.0.0.1:7"}'; cat >/dev/null; exit 0"#;
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

    #[tokio::test]
    async fn a_frozen_worker_is_killed_and_replaced_when_it_is_lost() {
        let (changes, mut seen) = mpsc::channel(16);
        let text = r#"echo "{\"event\":\"ready\",\"address\":\"127.0.0.1:$$\"}"; kill -STOP $$"#;
        let (supervisor, _reports) = Supervisor::start(1, script(text), &changes);
        let lost = supervisor.on_lost();
        let Some(Change::Join(first)) = seen.recv().await else { panic!("it joins") };
        lost(Member { id: first.id.clone(), address: "127.0.0.1:0".into() });
        lost(Member { id: "worker-1".into(), address: first.address.clone() });
        lost(first.clone());
        assert_eq!(seen.recv().await, Some(Change::Leave(first.id.clone())));
        let Some(Change::Join(second)) = seen.recv().await else { panic!("it joins again") };
        assert_ne!(second.address, first.address, "another process");
        lost(first);
        assert!(seen.try_recv().is_err(), "what is said of a dead process does not hit its successor");
        lost(second);
        assert!(matches!(seen.recv().await, Some(Change::Leave(_))));
    }

    #[tokio::test]
    async fn a_worker_that_freezes_before_it_is_ready_is_killed_and_replaced() {
        let (changes, mut seen) = mpsc::channel(16);
        let flag = std::env::temp_dir().join(format!("skein-frozen-start-{}", std::process::id()));
        let of_command = flag.clone();
        // The first process freezes while it loads. The next one loads for longer than the limit of silence.
        let text = r#"alive='{"event":"alive"}'; mkdir "$0" && { echo "$alive"; kill -STOP $$; }
            for i in 1 2 3 4; do echo "$alive"; sleep 0.5; done
            echo '{"event":"ready","address":"127.0.0.1:7"}'; exec cat >/dev/null"#;
        let command = move |_| {
            let mut command = Command::new("sh");
            command.args(["-c", text]).arg(&of_command);
            command
        };
        let silence = Duration::from_millis(1500);
        let (supervisor, _reports) = Supervisor::start_with(1, command, &changes, silence);
        let join = Change::Join(Member { id: "worker-0".into(), address: "127.0.0.1:7".into() });
        let joined = tokio::time::timeout(Duration::from_secs(60), seen.recv()).await;
        assert_eq!(joined.expect("it is replaced"), Some(join));
        supervisor.stop().await;
        std::fs::remove_dir(flag).expect("the first process has made it");
    }

    #[tokio::test]
    async fn every_process_has_a_secret_of_its_own_until_it_ends() {
        let (changes, mut seen) = mpsc::channel(16);
        let text = r#"read -r secret; echo "{\"event\":\"ready\",\"address\":\"$secret\"}"; exec sleep 600"#;
        let (supervisor, _reports) = Supervisor::start(2, script(text), &changes);
        let (secrets, mut members) = (supervisor.secrets(), Vec::new());
        for _ in 0..2 {
            let Some(Change::Join(member)) = seen.recv().await else { panic!("it joins") };
            assert_eq!(secrets.of(&member.address).expect("it runs").expose(), member.address);
            members.push(member);
        }
        assert_ne!(members[0].address, members[1].address);
        supervisor.on_lost()(members[0].clone());
        assert_eq!(seen.recv().await, Some(Change::Leave(members[0].id.clone())));
        assert_eq!(secrets.of(&members[0].address), None, "a dead worker's secret is void");
        assert!(secrets.of(&members[1].address).is_some());
    }
}
