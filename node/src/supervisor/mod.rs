//! Keeps a number of worker processes alive: starts them, reports joins and leaves to discovery, restarts
//! crashed ones, kills and restarts those that the router reports as lost, and stops them all.
//!
//! A set of workers can be replaced by another one that starts beside it, for example with new weights: see
//! [`Supervisor::start_beside`].
//!
//! A worker's standard input is its lifeline: it closes when the supervisor stops the worker or dies for any
//! reason, so no worker is left behind. Its first line is the worker's secret, its
//! second line the worker's settings.

mod backoff;
mod lifecycle;
mod report;
mod secret;
mod slot;
mod start;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::discovery::{Change, Member};
use crate::shutdown::Shutdown;
pub use lifecycle::{Failed, Lifecycle, end_with_supervisor, report_alive};
pub use report::{END_TIMEOUT, Report};
pub use secret::{Secret, Secrets};
use slot::{Stop, WorkerSlot};
pub use start::{WorkerStart, settings_from_supervisor};

/// A worker that reports nothing for this long before it is ready counts as frozen. Workers report once a
/// second; the margin is for an overloaded machine. Once a worker is ready, the router watches it.
const SILENT_START: Duration = Duration::from_secs(30);
/// Most reports queued for the terminal.
const REPORTS_IN_FLIGHT: usize = 256;
/// Most reports of lost workers queued.
const LOST_IN_FLIGHT: usize = 256;

/// Supervised workers.
#[derive(Debug)]
pub struct Supervisor {
    /// The set that serves.
    serving: Mutex<WorkerSet>,
    changes: mpsc::Sender<Change>,
    stop: Shutdown,
    lost: broadcast::Sender<Member>,
    secrets: Secrets,
    silent_start: Duration,
}

/// Workers that start and stop together. Dropping it kills them.
#[derive(Debug, Default)]
pub struct WorkerSet {
    tasks: JoinSet<()>,
    stop: Shutdown,
    names: Vec<String>,
}

impl WorkerSet {
    /// Names of the workers in discovery.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Stops the workers and waits up to [`END_TIMEOUT`] for each to exit.
    pub async fn stop(mut self) {
        self.stop.request();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Supervisor {
    /// Starts `count` workers. `start` is called for every start and restart.
    pub fn start(
        count: usize,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
    ) -> (Self, mpsc::Receiver<Report>) {
        Self::start_with(count, start, changes, SILENT_START)
    }

    /// [`start`](Self::start) of workers with these names.
    pub fn start_named(
        names: Vec<String>,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
    ) -> (Self, mpsc::Receiver<Report>) {
        let supervisor = Self::new(changes, SILENT_START);
        let (set, receiver) = supervisor.start_set(names, false, start);
        supervisor.replace(set);
        (supervisor, receiver)
    }

    /// [`start`](Self::start) with a different limit of silence before a worker is ready.
    fn start_with(
        count: usize,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
        changes: &mpsc::Sender<Change>,
        silent_start: Duration,
    ) -> (Self, mpsc::Receiver<Report>) {
        let supervisor = Self::new(changes, silent_start);
        let names = (0..count).map(|worker| format!("worker-{worker}")).collect();
        let (set, receiver) = supervisor.start_set(names, false, start);
        supervisor.replace(set);
        (supervisor, receiver)
    }

    /// No workers yet.
    fn new(changes: &mpsc::Sender<Change>, silent_start: Duration) -> Self {
        let (lost, _) = broadcast::channel(LOST_IN_FLIGHT);
        Self {
            serving: Mutex::default(),
            changes: changes.clone(),
            stop: Shutdown::default(),
            lost,
            secrets: Secrets::default(),
            silent_start,
        }
    }

    /// Starts workers with these names beside those that serve. Until [`replace`](Self::replace), one that
    /// fails before it was ready is reported as [`Report::Hopeless`] and not started again.
    pub fn start_beside(
        &self,
        names: Vec<String>,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
    ) -> (WorkerSet, mpsc::Receiver<Report>) {
        self.start_set(names, true, start)
    }

    /// Starts workers with these names and starts each again whenever it dies, as those that serve.
    pub fn start_lasting(
        &self,
        names: Vec<String>,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
    ) -> (WorkerSet, mpsc::Receiver<Report>) {
        self.start_set(names, false, start)
    }

    /// Makes `set` the one that serves. Returns the set that served until now; it runs on until it is
    /// stopped.
    pub fn replace(&self, set: WorkerSet) -> WorkerSet {
        std::mem::replace(&mut *self.serving.lock().unwrap_or_else(PoisonError::into_inner), set)
    }

    fn start_set(
        &self,
        names: Vec<String>,
        once: bool,
        start: impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static,
    ) -> (WorkerSet, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS_IN_FLIGHT);
        let (mut tasks, stop) = (JoinSet::new(), Shutdown::default());
        for (worker, name) in names.iter().enumerate() {
            let slot = WorkerSlot {
                worker,
                name: name.clone(),
                once,
                changes: self.changes.clone(),
                reports: reports.clone(),
                stop: Stop { all: self.stop.clone(), set: stop.clone() },
                secrets: self.secrets.clone(),
                silent_start: self.silent_start,
            };
            let (start, lost) = (start.clone(), self.lost.subscribe());
            tasks.spawn(async move { slot.keep_alive(|| start(worker), lost).await });
        }
        (WorkerSet { tasks, stop, names }, receiver)
    }

    /// Secrets of the running workers.
    pub fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }

    /// Kills all workers without a drain when `forced` completes. The handle ends the wait for it.
    pub fn kill_after(&self, forced: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let stop = self.stop.clone();
        let waiting = tokio::spawn(async move {
            forced.await;
            stop.force();
        });
        waiting.abort_handle()
    }

    /// Callback that reports a lost worker: silent, or with a stuck engine. It is killed and restarted.
    pub fn on_lost(&self) -> impl Fn(Member) + Send + Sync + 'static {
        let lost = self.lost.clone();
        // An error means that all workers have been stopped.
        move |member| drop(lost.send(member))
    }

    /// Stops all workers and waits up to [`END_TIMEOUT`] for each of those that serve to exit.
    pub async fn stop(&self) {
        self.stop.request();
        self.replace(WorkerSet::default()).stop().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::process::Command;

    use super::*;
    use crate::clock;

    /// A shell script in place of a worker.
    fn script(text: &'static str) -> impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static {
        move |_| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command.into()
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
        let (supervisor, mut reports) = Supervisor::start(1, script(text), &changes);
        let failed = Failed { code: 3, message: "no config.json".into(), permanent: true };
        assert_eq!(reports.recv().await, Some(Report::Hopeless(failed)));
        let mut set = supervisor.serving.into_inner().expect("no panic");
        assert!(set.tasks.join_next().await.is_some());
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
            command.into()
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

    /// Says that it is ready under a port, and ends with its input.
    const SERVES: &str = r#"read -r secret; echo "{\"event\":\"ready\",\"address\":\"127.0.0.1:$0\"}"; cat >/dev/null; exit 0"#;

    fn at_port(port: &'static str) -> impl Fn(usize) -> WorkerStart + Clone + Send + Sync + 'static {
        move |_| {
            let mut command = Command::new("sh");
            command.args(["-c", SERVES, port]);
            command.into()
        }
    }

    fn joins(id: &str, port: u16) -> Change {
        Change::Join(Member { id: id.into(), address: format!("127.0.0.1:{port}") })
    }

    #[tokio::test]
    async fn a_set_that_replaces_another_starts_beside_it_and_ends_later_than_it() {
        let (changes, mut seen) = mpsc::channel(16);
        let (supervisor, _reports) = Supervisor::start(1, at_port("7"), &changes);
        assert_eq!(seen.recv().await, Some(joins("worker-0", 7)));
        let (new, mut reports) = supervisor.start_beside(vec!["worker-0-v2".into()], at_port("8"));
        assert_eq!(new.names(), ["worker-0-v2"]);
        assert_eq!(seen.recv().await, Some(joins("worker-0-v2", 8)), "the old one still serves");
        assert!(matches!(reports.recv().await, Some(Report::Ready { worker: 0, .. })));
        let old = supervisor.replace(new);
        old.stop().await;
        assert_eq!(seen.recv().await, Some(Change::Leave("worker-0".into())));
        assert!(seen.try_recv().is_err(), "the new one serves");
        supervisor.stop().await;
        assert_eq!(seen.recv().await, Some(Change::Leave("worker-0-v2".into())));
    }

    #[tokio::test]
    async fn a_worker_beside_others_that_dies_before_it_is_ready_is_reported_and_not_started_again() {
        let (changes, mut seen) = mpsc::channel(16);
        let (supervisor, _reports) = Supervisor::start(1, at_port("7"), &changes);
        assert_eq!(seen.recv().await, Some(joins("worker-0", 7)));
        let (new, mut reports) = supervisor.start_beside(vec!["worker-0-v2".into()], script("kill -9 $$"));
        let Some(Report::Hopeless(failed)) = reports.recv().await else { panic!("it is reported") };
        assert!(failed.message.contains("signal: 9"), "{}", failed.message);
        assert_eq!(reports.recv().await, None, "no other start");
        new.stop().await;
        assert!(seen.try_recv().is_err(), "the old one serves");
        supervisor.stop().await;
    }
}
