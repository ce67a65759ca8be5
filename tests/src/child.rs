//! One real process under test: started, signalled, ended and started again. Only processes started here are ever
//! signalled, and none outlives the test: each has a guardian that kills it when this process is gone.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;

use crate::process::send_signal;

/// Between two looks at a log, a port or a process.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Names a directory to which all logs are copied in the end.
const KEEP_LOGS: &str = "TEST_CHAOS_LOGS";

/// How a process is started, every time it is.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    /// What it is called in messages.
    pub name: String,
    /// Words before the binary which execute it in the end, such as `prlimit --nofile=64:64`.
    pub prefix: Vec<String>,
    /// The binary.
    pub binary: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where its output goes; `None` = a file of our own, which [`Process::log`] reads.
    pub output: Option<PathBuf>,
}

/// A process under test; killed when dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Option<Child>,
    guardian: Option<Child>,
    log: PathBuf,
    /// Where in the log the present life begins, bytes.
    life_begins: u64,
    directory: tempfile::TempDir,
}

/// The binary under test: `TEST_BINARY`, or else `binary`. Long runs want the release build.
pub fn binary_under_test(binary: &str) -> String {
    std::env::var("TEST_BINARY").unwrap_or_else(|_| binary.to_owned())
}

impl Process {
    /// Starts what `spec` says.
    pub fn start(spec: Spec) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = spec.output.clone().unwrap_or_else(|| directory.path().join("log"));
        let mut process = Self { spec, child: None, guardian: None, log, life_begins: 0, directory };
        process.start_again();
        process
    }

    /// Starts it once more, as the first time. What is still running is killed.
    pub fn start_again(&mut self) {
        self.kill();
        self.life_begins = std::fs::metadata(&self.log).map_or(0, |data| data.len());
        let output = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file");
        let mut words = self.spec.prefix.iter().chain([&self.spec.binary]);
        let mut command = Command::new(words.next().expect("a binary"));
        command.args(words).args(&self.spec.arguments).stdin(Stdio::null());
        command.stderr(output.try_clone().expect("a second handle on the log")).stdout(output);
        // What the test itself is told by its environment is not meant for the process.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_"))
        {
            command.env_remove(name);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", self.name()));
        self.guardian = Some(guardian_of(child.id()));
        self.child = Some(child);
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its id; `None` once its end was seen.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends a signal by name: "KILL", "TERM", "STOP", "CONT".
    pub fn signal(&self, signal: &str) {
        // Until its end is seen here, the id cannot be another process's.
        if let Some(pid) = self.pid() {
            send_signal(pid, signal);
        }
    }

    /// `kill -9`, and its end is seen.
    pub fn kill(&mut self) {
        self.dismiss_guardian();
        if let Some(mut child) = self.child.take() {
            // Already ended is as good as ended now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether it runs (or is stopped); its end is seen by this.
    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && self.ended().is_none()
    }

    /// Waits for its end; returns its exit code, `None` when a signal ended it.
    ///
    /// # Panics
    /// With its log when it does not end `within` that time.
    pub async fn wait_end(&mut self, within: Duration) -> Option<i32> {
        let start = clock::now();
        while clock::now().since(start) < within {
            if let Some(code) = self.ended() {
                return code;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("{} did not end within {within:?}:\n{}", self.name(), self.log());
    }

    /// Waits until the present life's log holds `sentence`.
    ///
    /// # Panics
    /// With its log when it ends before, or says nothing `within` that time.
    pub async fn wait_log(&mut self, sentence: &str, within: Duration) {
        let start = clock::now();
        while clock::now().since(start) < within {
            if self.log_of_this_life().contains(sentence) {
                return;
            }
            self.assert_running(&format!("it said {sentence:?}"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("{} did not say {sentence:?} within {within:?}:\n{}", self.name(), self.log());
    }

    /// Waits until something listens at `address`.
    ///
    /// # Panics
    /// With its log when it ends before, or listens not `within` that time.
    pub async fn wait_port(&mut self, address: SocketAddr, within: Duration) {
        let start = clock::now();
        while clock::now().since(start) < within {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return;
            }
            self.assert_running(&format!("it listened at {address}"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("{} did not listen at {address} within {within:?}:\n{}", self.name(), self.log());
    }

    /// Panics with the log when the process has ended before `what` happened.
    pub fn assert_running(&mut self, what: &str) {
        if let Some(code) = self.ended() {
            panic!("{} ended with {code:?} before {what}:\n{}", self.name(), self.log());
        }
    }

    /// Everything that all its lives have printed.
    pub fn log(&self) -> String {
        self.read_log(0)
    }

    /// What it has printed since it was started the last time.
    pub fn log_of_this_life(&self) -> String {
        self.read_log(self.life_begins)
    }

    fn read_log(&self, from: u64) -> String {
        let mut bytes = Vec::new();
        // Output that went elsewhere, /dev/full for instance, reads as nothing.
        if let (None, Ok(mut file)) = (&self.spec.output, File::open(&self.log)) {
            let _ = file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut bytes));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its exit code if it has ended, seen now or before.
    fn ended(&mut self) -> Option<Option<i32>> {
        let Some(child) = &mut self.child else { return Some(None) };
        // While the child is not waited for, its id stays its own, so the guardian goes first.
        let status = child.try_wait().expect("a child can be asked")?;
        self.child = None;
        self.dismiss_guardian();
        Some(status.code())
    }

    fn dismiss_guardian(&mut self) {
        if let Some(mut guardian) = self.guardian.take() {
            // Killed, it cannot kill.
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
            // Unique by the directory's random name. A log that cannot be kept is missing there, which shows.
            let unique = self.directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let _ = std::fs::copy(
                &self.log,
                std::path::Path::new(&directory).join(format!("{name}{unique}.log")),
            );
        }
    }
}

/// A shell that kills `pid` when its standard input closes: when this process has ended, however it did.
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

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Process {
        Process::start(Spec {
            name: "a shell".into(),
            binary: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            ..Spec::default()
        })
    }

    #[tokio::test]
    async fn lives_follow_each_other_and_their_logs_are_told_apart() {
        let mut process = shell("echo life; exec sleep 600");
        process.wait_log("life", PATIENCE).await;
        let first = process.pid();
        process.start_again();
        process.wait_log("life", PATIENCE).await;
        assert_ne!(process.pid(), first);
        assert_eq!((process.log().as_str(), process.log_of_this_life().as_str()), ("life\nlife\n", "life\n"));
        process.signal("TERM");
        assert_eq!(process.wait_end(PATIENCE).await, None, "a signal ended it");
        assert!(!process.is_running());
    }

    #[tokio::test]
    async fn exit_codes_are_seen() {
        assert_eq!(shell("exit 3").wait_end(PATIENCE).await, Some(3));
    }

    #[tokio::test]
    async fn a_guardian_kills_when_nobody_holds_its_input() {
        let mut process = shell("exec sleep 600");
        // As it happens to all pipes of a process that is gone.
        let guardian = process.guardian.as_mut().expect("a guardian");
        drop(guardian.stdin.take());
        assert_eq!(process.wait_end(PATIENCE).await, None);
    }
}
