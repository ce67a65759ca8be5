//! The processes of a cluster: workers, routers and gateways that a test starts, breaks and restarts at the
//! same address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use skein_node::clock;

use crate::child::{Process, Spec, binary_under_test};
use crate::process::shipped_model;

/// How long a process may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// What a ready worker logs.
const WORKER_IS_READY: &str = "worker is ready at";
/// Below the system's ephemeral ports. So no outgoing connection takes the port of a process that is down,
/// and a connection to that port cannot connect to itself.
const PORTS: std::ops::Range<u16> = 18_000..32_000;
/// Attempts to find a free port.
const PORT_TRIES: u16 = 2000;

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that stays free while nothing listens there.
pub fn lasting_address() -> SocketAddr {
    // Tests run in several processes at once, so each starts at a different port.
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

/// Additional settings of a process, for tests that make it fail.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Flags in addition to those of the harness.
    pub flags: Vec<String>,
    /// Words before the command, as in [`Spec::prefix`].
    pub prefix: Vec<String>,
    /// File for its output, as in [`Spec::output`].
    pub output: Option<std::path::PathBuf>,
    /// Address to listen at; `None` = a free port on loopback.
    pub listen: Option<SocketAddr>,
    /// Directory of a model with the shipped one's tokenizer, served under its name; `None` = the shipped
    /// one.
    pub model: Option<String>,
}

impl Extras {
    /// Only additional flags.
    pub fn flags(flags: &[&str]) -> Self {
        Self { flags: flags.iter().map(|&flag| flag.to_owned()).collect(), ..Self::default() }
    }

    fn name(&self) -> Vec<String> {
        let named = || vec!["--served-model-name".to_owned(), "skein-7m".to_owned()];
        self.model.as_ref().map(|_| named()).unwrap_or_default()
    }
}

/// `skein worker` with the shipped model.
#[derive(Debug)]
pub struct Worker {
    /// The running process.
    pub process: Process,
    /// Address that it listens at.
    pub address: SocketAddr,
    has_log: bool,
}

impl Worker {
    /// Starts a worker; does not wait until it is ready.
    pub fn spawn(binary: &str, extras: &Extras) -> Self {
        let address = extras.listen.unwrap_or_else(lasting_address);
        let mut arguments = vec!["worker".to_owned(), model(extras)];
        arguments.extend(extras.name());
        arguments.extend(["--listen".into(), address.to_string(), "--threads".into(), "1".into()]);
        if !address.ip().is_loopback() {
            // On a network that only this test reaches.
            arguments.push("--insecure-cluster".into());
        }
        let process = start("worker", binary, arguments, extras);
        Self { process, address, has_log: extras.output.is_none() }
    }

    /// Starts a worker and waits until it is ready.
    pub async fn start(binary: &str, extras: &Extras) -> Self {
        let mut worker = Self::spawn(binary, extras);
        worker.wait_ready().await;
        worker
    }

    /// Waits until the worker is ready.
    ///
    /// # Panics
    /// With its log if it is not ready in time.
    pub async fn wait_ready(&mut self) {
        if self.has_log {
            self.process.wait_log(WORKER_IS_READY, READY_WITHIN).await;
        } else {
            self.process.wait_port(self.address, READY_WITHIN).await;
        }
    }

    /// Whether the worker has logged since its last start that it is ready.
    pub fn is_ready(&mut self) -> bool {
        self.process.is_running() && self.process.log_since_start().contains(WORKER_IS_READY)
    }
}

/// `skein router` or `skein gateway`: a process that clients talk to.
#[derive(Debug)]
pub struct Front {
    /// The running process.
    pub process: Process,
    /// Base URL, `http://127.0.0.1:port`.
    pub url: String,
    /// Address that it listens at.
    pub address: SocketAddr,
}

impl Front {
    /// `skein router` over `workers`; does not wait until it is ready. Without workers, the extra flags name
    /// a source.
    pub fn spawn_router(binary: &str, workers: &[SocketAddr], extras: &Extras) -> Self {
        Self::spawn("router", "--workers", binary, workers, extras)
    }

    /// `skein gateway` over `routers`; does not wait until it is ready.
    pub fn spawn_gateway(binary: &str, routers: &[SocketAddr], extras: &Extras) -> Self {
        Self::spawn("gateway", "--routers", binary, routers, extras)
    }

    /// Starts a router and waits until it is ready.
    pub async fn router(binary: &str, workers: &[SocketAddr], extras: &Extras) -> Self {
        let mut front = Self::spawn_router(binary, workers, extras);
        front.wait_ready().await;
        front
    }

    /// Starts a gateway and waits until it is ready.
    pub async fn gateway(binary: &str, routers: &[SocketAddr], extras: &Extras) -> Self {
        let mut front = Self::spawn_gateway(binary, routers, extras);
        front.wait_ready().await;
        front
    }

    fn spawn(command: &str, list: &str, binary: &str, peers: &[SocketAddr], extras: &Extras) -> Self {
        let address = extras.listen.unwrap_or_else(lasting_address);
        let mut arguments = vec![command.to_owned(), model(extras), "--log-format".into(), "json".into()];
        arguments.extend(extras.name());
        arguments.extend(["--host".into(), address.ip().to_string()]);
        arguments.extend(["--port".into(), address.port().to_string()]);
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
            arguments.extend([list.to_owned(), peers.join(",")]);
        }
        let process = start(command, binary, arguments, extras);
        Self { process, url: format!("http://{address}"), address }
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Panics
    /// With its log if it does not in time.
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

fn model(extras: &Extras) -> String {
    extras.model.clone().unwrap_or_else(|| shipped_model().display().to_string())
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
