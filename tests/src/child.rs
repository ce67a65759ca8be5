//! One real process under test, which can be signalled, killed and restarted. Only processes started here are
//! ever signalled. None outlives the test: a guardian shell kills each when the test process is gone.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;

use crate::process::send_signal;

/// Interval at which a log, a port or a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Environment variable that names a directory for copies of all logs.
const KEEP_LOGS: &str = "TEST_CHAOS_LOGS";

/// How to start a process, the first time and after every restart.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    /// Name of the process in messages.
    pub name: String,
    /// Command that executes the binary, such as `prlimit --nofile=64:64`; empty = none.
    pub prefix: Vec<String>,
    /// Path or name of the binary.
    pub binary: String,
    /// Arguments of the binary.
    pub arguments: Vec<String>,
    /// File that takes its output; `None` = a temporary file, which [`Process::log`] reads.
    pub output: Option<PathBuf>,
}

/// A process under test; killed when dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Option<Child>,
    guardian: Option<Child>,
    log: PathBuf,
    /// Offset in the log at which the current run begins, in bytes.
    run_begins: u64,
    directory: tempfile::TempDir,
}

/// The binary under test: `TEST_BINARY`, else `binary`. Long runs should use the release build.
pub fn binary_under_test(binary: &str) -> String {
    std::env::var("TEST_BINARY").unwrap_or_else(|_| binary.to_owned())
}

impl Process {
    /// Starts the process that `spec` describes.
    pub fn start(spec: Spec) -> Self {
        let mut process = Self::prepare(spec);
        process.restart();
        process
    }

    /// A process that [`Process::restart`] will start.
    pub fn prepare(spec: Spec) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = spec.output.clone().unwrap_or_else(|| directory.path().join("log"));
        Self { spec, child: None, guardian: None, log, run_begins: 0, directory }
    }

    /// Starts the process once more with the same `spec`. If it still runs, it is killed first.
    pub fn restart(&mut self) {
        self.kill();
        self.run_begins = std::fs::metadata(&self.log).map_or(0, |data| data.len());
        let output = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file");
        let mut words = self.spec.prefix.iter().chain([&self.spec.binary]);
        let mut command = Command::new(words.next().expect("a binary"));
        command.args(words).args(&self.spec.arguments).stdin(Stdio::null());
        command.stderr(output.try_clone().expect("a second handle on the log")).stdout(output);
        // The test's own SKEIN_ variables are not meant for the process.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_"))
        {
            command.env_remove(name);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", self.name()));
        self.guardian = Some(guardian_of(child.id()));
        self.child = Some(child);
    }

    /// The process's name in messages.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Process id; `None` once the process has been seen to end.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends a signal by name: "KILL", "TERM", "STOP", "CONT".
    pub fn signal(&self, signal: &str) {
        // The child has not been waited for, so no other process can have its id.
        if let Some(pid) = self.pid() {
            send_signal(pid, signal);
        }
    }

    /// Sends SIGKILL and waits for the process to end.
    pub fn kill(&mut self) {
        self.dismiss_guardian();
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether the process runs or is stopped.
    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && self.ended().is_none()
    }

    /// Waits for the process to end. Returns its exit code, or `None` if a signal ended it.
    ///
    /// # Panics
    /// With the log if the process does not end `within` that time.
    pub async fn wait_end(&mut self, within: Duration) -> Option<i32> {
        let start = clock::now();
        while clock::now().since(start) < within {
            if let Some(code) = self.ended() {
                return code;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{} did not end within {within:?}:\n{}", self.name(), self.log());
    }

    /// Waits until the current run has logged `sentence`.
    ///
    /// # Panics
    /// With the log if the process ends first, or does not log it `within` that time.
    pub async fn wait_log(&mut self, sentence: &str, within: Duration) {
        let start = clock::now();
        while clock::now().since(start) < within {
            if self.log_since_start().contains(sentence) {
                return;
            }
            self.assert_running(&format!("it said {sentence:?}"));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{} did not say {sentence:?} within {within:?}:\n{}", self.name(), self.log());
    }

    /// Waits until something listens at `address`.
    ///
    /// # Panics
    /// With the log if the process ends first, or does not listen `within` that time.
    pub async fn wait_port(&mut self, address: SocketAddr, within: Duration) {
        let start = clock::now();
        while clock::now().since(start) < within {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return;
            }
            self.assert_running(&format!("it listened at {address}"));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{} did not listen at {address} within {within:?}:\n{}", self.name(), self.log());
    }

    /// Panics with the log if the process has ended before `what` happened.
    pub fn assert_running(&mut self, what: &str) {
        if let Some(code) = self.ended() {
            panic!("{} ended with {code:?} before {what}:\n{}", self.name(), self.log());
        }
    }

    /// The output of all runs of this process.
    pub fn log(&self) -> String {
        self.read_log(0)
    }

    /// The output since the last start.
    pub fn log_since_start(&self) -> String {
        self.read_log(self.run_begins)
    }

    fn read_log(&self, from: u64) -> String {
        let mut bytes = Vec::new();
        // Output that goes elsewhere, such as /dev/full, reads as empty.
        if let (None, Ok(mut file)) = (&self.spec.output, File::open(&self.log)) {
            let _ = file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut bytes));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The exit code if the process has ended, now or earlier.
    fn ended(&mut self) -> Option<Option<i32>> {
        let Some(child) = &mut self.child else { return Some(None) };
        // Dismiss the guardian first: until the child is waited for, nothing else can have its id.
        let status = child.try_wait().expect("a child can be asked")?;
        self.child = None;
        self.dismiss_guardian();
        Some(status.code())
    }

    fn dismiss_guardian(&mut self) {
        if let Some(mut guardian) = self.guardian.take() {
            // A killed guardian cannot kill.
            let _ = guardian.kill();
            let _ = guardian.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Ok(directory) = std::env::var(KEEP_LOGS) {
            let name = self.spec.name.replace(' ', "-");
            // The directory's random name makes this one unique. A failed copy shows as a missing file.
            let unique = self.directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let _ = std::fs::copy(
                &self.log,
                std::path::Path::new(&directory).join(format!("{name}{unique}.log")),
            );
        }
    }
}

/// A shell that kills `pid` when its standard input closes, which happens when this process ends in any way.
fn guardian_of(pid: u32) -> Child {
    Command::new("sh")
        .args(["-c", "read _; kill -9 \"$1\"", "guardian", &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell starts")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Process {
        Process::start(Spec {
            name: "a shell".into(),
            binary: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            ..Spec::default()
        })
    }

    #[tokio::test]
    async fn the_log_of_the_current_run_is_told_from_that_of_all_runs() {
        let mut process = shell("echo up; exec sleep 600");
        process.wait_log("up", TIMEOUT).await;
        let first = process.pid();
        process.restart();
        process.wait_log("up", TIMEOUT).await;
        assert_ne!(process.pid(), first);
        assert_eq!((process.log().as_str(), process.log_since_start().as_str()), ("up\nup\n", "up\n"));
        process.signal("TERM");
        assert_eq!(process.wait_end(TIMEOUT).await, None, "a signal ended it");
        assert!(!process.is_running());
    }

    #[tokio::test]
    async fn exit_codes_are_seen() {
        assert_eq!(shell("exit 3").wait_end(TIMEOUT).await, Some(3));
    }

    #[tokio::test]
    async fn a_guardian_kills_when_nobody_holds_its_input() {
        let mut process = shell("exec sleep 600");
        // The kernel closes all pipes of a process that ends.
        let guardian = process.guardian.as_mut().expect("a guardian");
        drop(guardian.stdin.take());
        assert_eq!(process.wait_end(TIMEOUT).await, None);
    }
}
