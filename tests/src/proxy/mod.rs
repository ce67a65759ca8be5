//! A TCP proxy that simulates a bad network on command: delay, bandwidth, stalls, silence in one direction or
//! both, cut connections. Its behaviour can change while it runs, for all connections or for one.

mod connection;
mod link;
mod pump;

pub use link::{Cut, Flow, Link, Network};

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

/// Cuts that may be queued for a connection.
const ORDERS: usize = 16;

/// Direction of bytes through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the side that connected.
    Up,
    /// To the side that connected.
    Down,
}

/// One connection through a proxy.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Number of the connection, from 1 in order of arrival.
    pub id: u64,
    network: Arc<watch::Sender<Network>>,
    orders: broadcast::Sender<Cut>,
}

impl Connection {
    /// Changes the network of this connection only.
    pub fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Cuts this connection.
    pub fn cut(&self, cut: Cut) {
        // It may have ended already.
        let _ = self.orders.send(cut);
    }
}

/// State shared by the proxy's tasks.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    network: Mutex<Network>,
    refusing: AtomicBool,
    open: Mutex<BTreeMap<u64, Connection>>,
    seed: AtomicU64,
}

/// A running proxy; dropping it closes its connections.
#[derive(Debug)]
pub struct Proxy {
    /// Address that the proxy listens at.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port in front of `upstream`, which need not run yet. `seed` determines which chunks
    /// are lost.
    pub async fn start(upstream: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            upstream,
            network: Mutex::new(Network::GOOD),
            refusing: AtomicBool::new(false),
            open: Mutex::default(),
            seed: AtomicU64::new(seed),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    /// Sets the network of all connections, future ones included.
    pub fn set(&self, network: Network) {
        *self.shared.network.lock().unwrap_or_else(PoisonError::into_inner) = network;
        self.connections().iter().for_each(|connection| connection.set(network));
    }

    /// Sets one direction of all connections.
    pub fn set_direction(&self, direction: Direction, link: Link) {
        let mut network = *self.shared.network.lock().unwrap_or_else(PoisonError::into_inner);
        match direction {
            Direction::Up => network.up = link,
            Direction::Down => network.down = link,
        }
        self.set(network);
    }

    /// Cuts all open connections.
    pub fn cut(&self, cut: Cut) {
        self.connections().iter().for_each(|connection| connection.cut(cut));
    }

    /// Whether to reset new connections from now on.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, Ordering::Relaxed);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.refuse(false);
        self.set(Network::GOOD);
    }

    /// The open connections.
    pub fn connections(&self) -> Vec<Connection> {
        let open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut(Cut::Reset);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    for id in 1.. {
        // Out of file descriptors: all we can do is retry.
        let Ok((near, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if shared.refusing.load(Ordering::Relaxed) {
            connection::reset(near);
            continue;
        }
        let network = *shared.network.lock().unwrap_or_else(PoisonError::into_inner);
        let (network, seen) = watch::channel(network);
        let (orders, order) = broadcast::channel(ORDERS);
        let connection = Connection { id, network: Arc::new(network), orders };
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, connection);
        let shared = shared.clone();
        tokio::spawn(async move {
            let seed = shared.seed.fetch_add(1, Ordering::Relaxed);
            connection::run(near, shared.upstream, seen, order, seed).await;
            shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
    }
}

#[cfg(test)]
mod tests;
