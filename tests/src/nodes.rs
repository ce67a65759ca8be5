//! The processes of a cluster, one by one: workers, routers and gateways that a test starts, breaks and starts again at
//! the same address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use skein_node::clock;

use crate::child::{Process, Spec, binary_under_test};
use crate::process::shipped_model;

/// How long a process may take until it serves.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// What a worker says when it serves.
const WORKER_IS_READY: &str = "worker is ready at";
/// Below the ports that the system gives to outgoing connections: while a process is down, nobody takes its port,
/// and a connection to it cannot meet itself.
const PORTS: std::ops::Range<u16> = 18_000..32_000;
/// Tries to find one.
const PORT_TRIES: u16 = 2000;

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that stays free while nobody listens there.
pub fn lasting_address() -> SocketAddr {
    // Tests run in several processes at once: each begins somewhere else.
    let start = (std::process::id() % u32::from(PORTS.end - PORTS.start)) as u16;
    for _ in 0..PORT_TRIES {
        let step = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + start.wrapping_add(step.wrapping_mul(7)) % (PORTS.end - PORTS.start);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port of {PORTS:?} in {PORT_TRIES} tries");
}

/// Extras of a process that a test wants to hurt.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// More flags.
    pub flags: Vec<String>,
    /// See [`Spec::prefix`].
    pub prefix: Vec<String>,
    /// See [`Spec::output`].
    pub output: Option<std::path::PathBuf>,
    /// Where it listens; `None` = a port of its own on loopback.
    pub listen: Option<SocketAddr>,
}

impl Extras {
    /// Only flags.
    pub fn flags(flags: &[&str]) -> Self {
        Self { flags: flags.iter().map(|&flag| flag.to_owned()).collect(), ..Self::default() }
    }
}

/// `skein worker` with the model that ships.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    has_log: bool,
}

impl Worker {
    /// Starts one and returns before it is ready.
    pub fn spawn(binary: &str, extras: &Extras) -> Self {
        let address = extras.listen.unwrap_or_else(lasting_address);
        let mut arguments = vec!["worker".to_owned(), model()];
        arguments.extend(["--listen".into(), address.to_string(), "--threads".into(), "1".into()]);
        let process = start("worker", binary, arguments, extras);
        Self { process, address, has_log: extras.output.is_none() }
    }

    /// Starts one and waits until it serves.
    pub async fn start(binary: &str, extras: &Extras) -> Self {
        let mut worker = Self::spawn(binary, extras);
        worker.wait_ready().await;
        worker
    }

    /// Waits until it serves.
    ///
    /// # Panics
    /// With its log when it does not.
    pub async fn wait_ready(&mut self) {
        match self.has_log {
            true => self.process.wait_log(WORKER_IS_READY, READY_WITHIN).await,
            false => self.process.wait_port(self.address, READY_WITHIN).await,
        }
    }

    /// Whether it has said that it serves, in its present life.
    pub fn is_ready(&mut self) -> bool {
        self.process.is_running() && self.process.log_of_this_life().contains(WORKER_IS_READY)
    }
}

/// `skein router`, or `skein gateway`: what clients talk to.
#[derive(Debug)]
pub struct Front {
    /// The process.
    pub process: Process,
    /// `http://127.0.0.1:port`
    pub url: String,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Front {
    /// `skein router` over the workers at `workers`; returns before it is ready. No workers = the extras name a source.
    pub fn spawn_router(binary: &str, workers: &[SocketAddr], extras: &Extras) -> Self {
        Self::spawn("router", "--workers", binary, workers, extras)
    }

    /// `skein gateway` over the routers at `routers`; returns before it is ready.
    pub fn spawn_gateway(binary: &str, routers: &[SocketAddr], extras: &Extras) -> Self {
        Self::spawn("gateway", "--routers", binary, routers, extras)
    }

    /// A router, once it serves.
    pub async fn router(binary: &str, workers: &[SocketAddr], extras: &Extras) -> Self {
        let mut front = Self::spawn_router(binary, workers, extras);
        front.wait_ready().await;
        front
    }

    /// A gateway, once it serves.
    pub async fn gateway(binary: &str, routers: &[SocketAddr], extras: &Extras) -> Self {
        let mut front = Self::spawn_gateway(binary, routers, extras);
        front.wait_ready().await;
        front
    }

    fn spawn(command: &str, list: &str, binary: &str, peers: &[SocketAddr], extras: &Extras) -> Self {
        let address = extras.listen.unwrap_or_else(lasting_address);
        let mut arguments = vec![command.to_owned(), model(), "--log-format".into(), "json".into()];
        arguments.extend(["--host".into(), address.ip().to_string()]);
        arguments.extend(["--port".into(), address.port().to_string()]);
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
            arguments.extend([list.to_owned(), peers.join(",")]);
        }
        let process = start(command, binary, arguments, extras);
        Self { process, url: format!("http://{address}"), address }
    }

    /// Waits until `/readyz` says so.
    ///
    /// # Panics
    /// With its log when it does not.
    pub async fn wait_ready(&mut self) {
        let client = reqwest::Client::new();
        let start = clock::now();
        while clock::now().since(start) < READY_WITHIN {
            self.process.assert_running("it was ready");
            let asked = client.get(format!("{}/readyz", self.url)).timeout(Duration::from_secs(5)).send();
            if asked.await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} was not ready within {READY_WITHIN:?}:\n{}", self.process.name(), self.process.log());
    }
}

fn model() -> String {
    shipped_model().display().to_string()
}

fn start(name: &str, binary: &str, mut arguments: Vec<String>, extras: &Extras) -> Process {
    arguments.extend(extras.flags.iter().cloned());
    Process::start(Spec {
        name: format!("skein {name}"),
        prefix: extras.prefix.clone(),
        binary: binary_under_test(binary),
        arguments,
        output: extras.output.clone(),
    })
}
