//! Real etcd servers for tests: started, stopped, killed, wiped, alone or three together. Only processes started here
//! are ever signalled.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skein_node::clock;
use skein_node::discovery::etcd::{EtcdApi, EtcdClient, EtcdSettings};

/// How long a server may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Shorter than etcd's own defaults, so that leaders are elected and leases expire while a test waits.
const TIMING: [&str; 4] = ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// The server's program: `TEST_ETCD`, else `etcd` in the path. `None` is said loudly: what was not run did not pass.
pub fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("TEST_ETCD").map(PathBuf::from);
    let in_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file())
    };
    let found = named.or_else(in_path);
    if found.is_none() {
        eprintln!("SKIPPED: no etcd server on this machine; install etcd-server, or name one in TEST_ETCD");
    }
    found
}

/// One server; ended when dropped.
#[derive(Debug)]
pub struct Etcd {
    command: Vec<String>,
    program: PathBuf,
    child: Option<Child>,
    /// `host:port` for clients.
    pub endpoint: String,
    data: PathBuf,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Etcd {
    /// A server that is not started yet, with `extra` arguments; `scheme` is of its client address.
    pub fn prepare(program: &Path, scheme: &str, extra: &[String]) -> Self {
        let peer = free_address();
        let cluster = format!("alone=http://{peer}");
        Self::of_cluster(program, "alone", scheme, &free_address(), &peer, &cluster, extra)
    }

    /// A server that runs and answers.
    pub async fn start(program: &Path) -> Self {
        let mut etcd = Self::prepare(program, "http", &[]);
        etcd.launch();
        etcd.wait_ready(&etcd.settings()).await;
        etcd
    }

    /// Three servers that are one cluster, not started yet.
    pub fn prepare_three(program: &Path) -> Vec<Self> {
        let peers: Vec<String> = (0..3).map(|_| free_address()).collect();
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(index, peer)| format!("e{index}=http://{peer}")).collect();
        let one = |(index, peer): (usize, &String)| {
            let name = format!("e{index}");
            Self::of_cluster(program, &name, "http", &free_address(), peer, &cluster.join(","), &[])
        };
        peers.iter().enumerate().map(one).collect()
    }

    fn of_cluster(
        program: &Path,
        name: &str,
        scheme: &str,
        client: &str,
        peer: &str,
        cluster: &str,
        extra: &[String],
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (data, log) = (dir.path().join("data"), dir.path().join("log"));
        let (client_url, peer_url) = (format!("{scheme}://{client}"), format!("http://{peer}"));
        let data_dir = data.display().to_string();
        let arguments = [
            ["--name", name],
            ["--data-dir", &data_dir],
            ["--listen-client-urls", &client_url],
            ["--advertise-client-urls", &client_url],
            ["--listen-peer-urls", &peer_url],
            ["--initial-advertise-peer-urls", &peer_url],
            ["--initial-cluster", cluster],
        ];
        let mut command: Vec<String> =
            arguments.concat().iter().map(|&argument| argument.to_owned()).collect();
        command.extend(TIMING.map(str::to_owned));
        command.extend_from_slice(extra);
        let (program, endpoint) = (program.to_owned(), client.to_owned());
        Self { command, program, child: None, endpoint, data, log, _dir: dir }
    }

    /// How to reach it, without user and TLS.
    pub fn settings(&self) -> EtcdSettings {
        EtcdSettings { endpoints: vec![self.endpoint.clone()], ..EtcdSettings::default() }
    }

    /// Starts the process, for the first time or again with the data it has.
    pub fn launch(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(&self.log).expect("a log file");
        let child = Command::new(&self.program)
            .args(&self.command)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle on the log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.child = Some(child);
    }

    /// Waits until a linearizable read works.
    pub async fn wait_ready(&self, settings: &EtcdSettings) {
        self.wait_ready_as(settings, "/").await;
    }

    /// The same for a user that may not read everything.
    pub async fn wait_ready_as(&self, settings: &EtcdSettings, prefix: &str) {
        let client = EtcdClient::new(settings.clone(), 0).await.expect("good settings");
        let start = clock::now();
        loop {
            let error = match client.list(prefix).await {
                Ok(_) => return,
                Err(error) => error,
            };
            let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(clock::now().since(start) < READY_WITHIN, "etcd is not ready: {error}\n{}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stands still ("STOP") or goes on ("CONT").
    pub fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            send(child.id(), signal);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Already ended is as good as ended now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Loses everything it knew; not while it runs.
    pub fn wipe(&self) {
        assert!(self.child.is_none(), "a running server keeps its data");
        std::fs::remove_dir_all(&self.data).expect("its data can be removed");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn send(pid: u32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{signal} {pid}");
}

/// `127.0.0.1:port`, free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("a bound listener has an address").to_string()
}
