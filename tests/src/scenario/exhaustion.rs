//! Exhausted resources: disk space for logs, and file descriptors. Accepted requests complete, and once there
//! is room again everything works as before.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::net::TcpStream;

use super::{Plan, addresses, wait_until};
use crate::load::Target;
use crate::nodes::{Extras, Front, Worker};
use crate::report::Report;

/// How long streams may take to complete once resources are back.
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);
/// Limit of file descriptors: enough for the process itself and for a few streams.
const DESCRIPTORS: u32 = 64;
/// Idle connections that use the descriptors up.
const HOGS: usize = 100;

/// All output of all processes goes to a full device.
pub async fn full_disk(plan: &Plan) -> Report {
    let full = |flags: &[String]| Extras {
        flags: [flags, &["--log-level".into(), "debug".into()]].concat(),
        output: Some("/dev/full".into()),
        ..Extras::default()
    };
    let mut workers = Vec::new();
    for _ in 0..plan.workers {
        workers.push(Worker::start(&plan.binary, &full(&plan.worker_flags)).await);
    }
    let router = Front::router(&plan.binary, &addresses(&workers), &full(&plan.front_flags)).await;
    let mut report = Report::new("no room for logs, from the start to the end");
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "full-disk");
    for round in 0..plan.rounds as usize {
        tokio::time::sleep(plan.pause.1).await;
        // Makes the processes log something.
        let victim = round % workers.len();
        workers[victim].process.restart();
        workers[victim].wait_ready().await;
    }
    report.streams(&load.finish().await);
    report
}

/// All output goes to a tiny file system, which fills up and is emptied again. `None` if mounting is not
/// permitted.
pub async fn filling_disk(plan: &Plan) -> Option<Report> {
    let disk = TinyDisk::mount()?;
    let onto = |name: &str, flags: &[String]| Extras {
        flags: [flags, &["--log-level".into(), "debug".into()]].concat(),
        output: Some(disk.path().join(name)),
        ..Extras::default()
    };
    let mut workers = Vec::new();
    for index in 0..plan.workers {
        let extras = onto(&format!("worker-{index}"), &plan.worker_flags);
        workers.push(Worker::start(&plan.binary, &extras).await);
    }
    let router = Front::router(&plan.binary, &addresses(&workers), &onto("router", &plan.front_flags)).await;
    let mut report = Report::new("a log's file system fills up and is emptied");
    let corpus = plan.record(&router).await;
    let load = plan.load(&corpus, Target::plain(&router.url), "filling-disk");
    tokio::time::sleep(plan.pause.1).await;
    disk.fill();
    report.require(disk.is_full(), || "the file system did not fill up, so this proves nothing".into());
    // Makes the processes log something, first without room and then with room again.
    workers[0].process.restart();
    workers[0].wait_ready().await;
    tokio::time::sleep(plan.pause.1).await;
    disk.empty();
    workers[0].process.restart();
    let log = disk.path().join("router");
    let writes = || std::fs::metadata(&log).is_ok_and(|data| data.len() > 0);
    let speaks = wait_until(RECOVERS_WITHIN, writes).await;
    report.require(speaks, || "the router does not log again after there is room".into());
    report.streams(&load.finish().await);
    Some(report)
}

/// First a router and then a worker runs out of file descriptors for new connections, and gets them back.
pub async fn descriptors(plan: &Plan) -> Report {
    let few = |flags: &[String]| Extras {
        flags: flags.to_vec(),
        prefix: vec!["prlimit".into(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")],
        ..Extras::default()
    };
    let mut workers = Vec::new();
    for _ in 0..plan.workers {
        workers.push(Worker::start(&plan.binary, &few(&plan.worker_flags)).await);
    }
    let router = Front::router(&plan.binary, &addresses(&workers), &few(&plan.front_flags)).await;
    let corpus = plan.record(&router).await;
    let mut report = Report::new(format!("{DESCRIPTORS} file descriptors and {HOGS} idle connections"));
    for (name, address) in [("router", router.address), ("worker", workers[0].address)] {
        let load = plan.load(&corpus, Target::plain(&router.url), name);
        tokio::time::sleep(plan.pause.0).await;
        let mut hogs = Vec::new();
        for _ in 0..HOGS {
            // Once the listener's backlog is full this waits, which serves as well.
            let connecting = TcpStream::connect(address);
            if let Ok(Ok(hog)) = tokio::time::timeout(Duration::from_millis(20), connecting).await {
                hogs.push(hog);
            }
        }
        tokio::time::sleep(plan.pause.1).await;
        let held = hogs.len();
        drop(hogs);
        let ended = load.all_begun_have_ended(RECOVERS_WITHIN).await;
        report.require(ended.is_some(), || format!("{name}: streams hang after descriptors were freed"));
        report.say(&format!("{name}: connections held"), held);
        report.streams(&load.finish().await);
    }
    for (name, log) in [("router", router.process.log()), ("worker", workers[0].process.log())] {
        let speaks = log.contains("Too many open files");
        report.require(speaks, || format!("the {name} does not log that it is out of descriptors:\n{log}"));
    }
    report
}

/// A tiny file system; unmounted when dropped.
struct TinyDisk {
    directory: tempfile::TempDir,
}

impl TinyDisk {
    /// Mount option that sets the size.
    const SIZE: &'static str = "size=256k";

    /// `None` if mounting is not permitted.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", Self::SIZE, "none"])
            .arg(directory.path())
            .status()
            .is_ok_and(|status| status.success());
        mounted.then_some(Self { directory })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn hog(&self) -> PathBuf {
        self.path().join("hog")
    }

    /// Uses all remaining space.
    fn fill(&self) {
        let hog = std::fs::OpenOptions::new().create(true).append(true).open(self.hog());
        let mut hog = hog.expect("a file");
        while std::io::Write::write_all(&mut hog, b"x").is_ok() {}
    }

    fn is_full(&self) -> bool {
        std::fs::OpenOptions::new()
            .append(true)
            .open(self.hog())
            .and_then(|mut hog| std::io::Write::write_all(&mut hog, &[0; 4096]))
            .is_err()
    }

    /// Frees all space, including that of the logs so far.
    fn empty(&self) {
        for entry in std::fs::read_dir(self.path()).into_iter().flatten().flatten() {
            // A process that has the file open goes on appending, from offset 0.
            drop(std::fs::File::create(entry.path()));
        }
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        // Lazy, because a process may still have its log open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
