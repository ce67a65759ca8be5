//! A TCP proxy that is a bad network on command: delay, bandwidth, stalls, silence in one direction or both, cut
//! connections. What it does can be changed while it runs, for all connections or for one.

mod connection;
mod pump;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

/// Orders to cut that a connection may be behind with.
const ORDERS: usize = 16;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the side that connected.
    Up,
    /// To the side that connected.
    Down,
}

/// Whether bytes arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// They do.
    #[default]
    Pass,
    /// They wait until this is over, as TCP makes them wait out a partition: after it they arrive, late.
    Stall,
    /// They are read and thrown away, the end of the stream too: half-open. A connection that has lost bytes stays
    /// silent in that direction to its end, for they cannot be had back.
    Swallow,
}

/// What happens to bytes on their way in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Conduct {
    /// Whether they arrive.
    pub flow: Flow,
    /// Time on the way.
    pub delay: Duration,
    /// Bytes a second; `None` = as many as there are.
    pub bandwidth: Option<u64>,
    /// Share of chunks that are lost and sent again: all behind them waits for [`Conduct::resend_after`].
    pub loss: f64,
    /// How long TCP takes to notice and repair a loss.
    pub resend_after: Duration,
}

impl Conduct {
    /// Bytes wait.
    pub const STALL: Self = Self { flow: Flow::Stall, ..Self::GOOD };
    /// Bytes vanish.
    pub const SWALLOW: Self = Self { flow: Flow::Swallow, ..Self::GOOD };
    /// A network without faults.
    pub const GOOD: Self = Self {
        flow: Flow::Pass,
        delay: Duration::ZERO,
        bandwidth: None,
        loss: 0.0,
        resend_after: Duration::from_millis(200),
    };
}

/// Both directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// From the side that connected.
    pub up: Conduct,
    /// To the side that connected.
    pub down: Conduct,
}

impl Weather {
    /// No faults.
    pub const GOOD: Self = Self { up: Conduct::GOOD, down: Conduct::GOOD };

    /// The same in both directions.
    pub const fn both(conduct: Conduct) -> Self {
        Self { up: conduct, down: conduct }
    }
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both sides get a reset.
    Reset,
    /// Both sides get an end of stream, as if the other one had closed.
    Finish,
}

/// One connection through a proxy.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Counts from 1 in the order of arrival.
    pub id: u64,
    weather: Arc<watch::Sender<Weather>>,
    orders: broadcast::Sender<Cut>,
}

impl Connection {
    /// Changes the weather of this connection alone.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Cuts it.
    pub fn cut(&self, cut: Cut) {
        // It may have ended by itself.
        let _ = self.orders.send(cut);
    }
}

/// What the proxy's tasks share.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    weather: Mutex<Weather>,
    refusing: AtomicBool,
    open: Mutex<BTreeMap<u64, Connection>>,
    seed: AtomicU64,
}

/// A running proxy; its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own in front of `upstream`, which need not be there yet. `seed` decides on losses.
    pub async fn start(upstream: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            upstream,
            weather: Mutex::new(Weather::GOOD),
            refusing: AtomicBool::new(false),
            open: Mutex::default(),
            seed: AtomicU64::new(seed),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    /// Sets the weather of all connections, those to come too.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
        self.connections().iter().for_each(|connection| connection.set(weather));
    }

    /// The weather of one direction of all connections.
    pub fn set_direction(&self, direction: Direction, conduct: Conduct) {
        let mut weather = *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner);
        match direction {
            Direction::Up => weather.up = conduct,
            Direction::Down => weather.down = conduct,
        }
        self.set(weather);
    }

    /// Cuts all connections that are open.
    pub fn cut(&self, cut: Cut) {
        self.connections().iter().for_each(|connection| connection.cut(cut));
    }

    /// Resets whoever connects from now on; `false` ends that.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, Ordering::Relaxed);
    }

    /// Good weather, and nobody is refused.
    pub fn heal(&self) {
        self.refuse(false);
        self.set(Weather::GOOD);
    }

    /// The connections that are open.
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
        // Without descriptors there is nothing to do but to try again.
        let Ok((near, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if shared.refusing.load(Ordering::Relaxed) {
            connection::reset(near);
            continue;
        }
        let weather = *shared.weather.lock().unwrap_or_else(PoisonError::into_inner);
        let (weather, seen) = watch::channel(weather);
        let (orders, told) = broadcast::channel(ORDERS);
        let connection = Connection { id, weather: Arc::new(weather), orders };
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, connection);
        let shared = shared.clone();
        tokio::spawn(async move {
            let seed = shared.seed.fetch_add(1, Ordering::Relaxed);
            connection::run(near, shared.upstream, seen, told, seed).await;
            shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
    }
}

#[cfg(test)]
mod tests;
