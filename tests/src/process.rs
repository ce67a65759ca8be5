//! A real `skein serve` process and its workers. Only processes started here are ever signalled.

use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;

/// How long a cluster may take until `/readyz` answers 200.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running `skein serve`; killed when dropped.
pub struct Cluster {
    child: Child,
    /// Base URL of the server, `http://127.0.0.1:port`.
    pub url: String,
    log: PathBuf,
    _log_dir: tempfile::TempDir,
}

/// The directory of the shipped model.
pub fn shipped_model() -> PathBuf {
    skein_golden::shipped()
}

/// A loopback port that is currently free.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

impl Cluster {
    /// Starts `binary serve` with `arguments` on a free port and waits until it is ready. `TEST_BINARY` in
    /// the environment replaces `binary`: long runs should use the release build.
    ///
    /// # Panics
    /// With the process's log if it does not become ready.
    pub async fn serve(binary: &str, arguments: &[&str]) -> Self {
        Self::serve_with(binary, arguments, &[]).await
    }

    /// [`serve`](Self::serve) with some environment variables.
    ///
    /// # Panics
    /// With the process's log if it does not become ready.
    pub async fn serve_with(binary: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let binary = std::env::var("TEST_BINARY").unwrap_or_else(|_| binary.to_owned());
        let log_dir = tempfile::tempdir().expect("a temporary directory");
        let log = log_dir.path().join("log");
        let out = std::fs::File::create(&log).expect("a log file");
        let port = free_port().to_string();
        let child = Command::new(binary)
            .args(["serve", "--port", &port])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle on the log"))
            .stdout(out)
            .spawn()
            .expect("the skein binary starts");
        let mut cluster = Self { child, url: format!("http://127.0.0.1:{port}"), log, _log_dir: log_dir };
        cluster.wait_ready().await;
        cluster
    }

    async fn wait_ready(&mut self) {
        let client = reqwest::Client::new();
        let start = clock::now();
        while clock::now().since(start) < READY_WITHIN {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                panic!("skein ended with {status} before it was ready:\n{}", self.log());
            }
            if let Ok(answer) = client.get(format!("{}/readyz", self.url)).send().await
                && answer.status().is_success()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("skein was not ready within {READY_WITHIN:?}:\n{}", self.log());
    }

    /// Whether `/readyz` answers 200 now.
    pub async fn is_ready(&self) -> bool {
        let answer = reqwest::Client::new().get(format!("{}/readyz", self.url)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Process id of the supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of the running workers, which are children of the supervisor.
    pub fn worker_pids(&self) -> Vec<u32> {
        workers_of(self.pid())
    }

    /// Everything the process has printed.
    pub fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(&self.log) {
            // If reading fails, what was read so far is the log.
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    /// Path of the file with everything that the process prints.
    pub fn log_file(&self) -> PathBuf {
        self.log.clone()
    }

    /// Sends `signal` ("TERM", "INT", "KILL") to the supervisor and waits at most `within` for it to end.
    /// Returns its exit code, or `None` if a signal ended it.
    pub async fn end(mut self, signal: &str, within: Duration) -> Option<i32> {
        send_signal(self.pid(), signal);
        let start = clock::now();
        while clock::now().since(start) < within {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("skein did not end within {within:?} of SIG{signal}:\n{}", self.log());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let workers = children_of(self.pid());
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for worker in workers {
            send_signal(worker, "KILL");
        }
    }
}

/// Resident memory of a process in bytes; 0 if it has exited.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Sends a signal by name to a process that this test started.
pub fn send_signal(pid: u32, signal: &str) {
    // The process may have ended in the meantime.
    let _ = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).stderr(Stdio::null()).status();
}

/// Process ids of the running workers of a supervisor.
pub fn workers_of(supervisor: u32) -> Vec<u32> {
    children_of(supervisor).into_iter().filter(|pid| subcommand_of(*pid) == b"worker").collect()
}

/// The first argument of a process; empty if it has ended.
fn subcommand_of(pid: u32) -> Vec<u8> {
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command_line.split(|byte| *byte == 0).nth(1).unwrap_or_default().to_vec()
}

/// Ids of the child processes of `parent`, from /proc.
pub fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut children: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| parent_and_state(*pid).is_some_and(|(ppid, state)| ppid == parent && state != 'Z'))
        .collect();
    children.sort_unstable();
    children
}

/// Parent process id and state letter from `/proc/<pid>/stat`. Its second field may contain spaces.
fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
