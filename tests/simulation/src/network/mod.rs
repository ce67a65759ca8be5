//! The network between processes: messages take time, wait behind a partition, and are lost when their
//! connection dies.
//!
//! A link between two hosts may be blocked in one direction or both, silently: bytes wait, as TCP keeps
//! retransmitting them, and pings detect it after a while. A process that dies leaves resets behind; a
//! machine that loses power leaves nothing. Beyond what TCP permits, single messages of a stream may be
//! dropped, duplicated or swapped ([`Abuse`]), which the protocol's positions and numbers must catch.

mod call;
mod connection;
mod duplex;
mod transport;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use skein_node::signal::Signal;
use tokio::time::Instant;

use crate::process::Process;
use crate::random::Random;
use crate::report::Log;
use crate::served::Served;
pub use call::Incoming;
pub use connection::Connection;
pub use transport::{Direct, SimConnector};

/// Name of a machine.
pub type Host = &'static str;

/// Silence after which a router gives up a connection: ping interval plus time for the answer.
const CLIENT_KEEPALIVE: Duration = Duration::from_secs(5);
/// The same for a worker.
const SERVER_KEEPALIVE: Duration = Duration::from_secs(20);
/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Delays and limits of the network.
#[derive(Debug, Clone)]
pub struct NetworkSpec {
    /// Shortest and longest delay of a message.
    pub delay: (Duration, Duration),
    /// Most messages of a stream in flight; beyond that the sender waits.
    pub window: usize,
    /// Credit of a call in an exchange, bytes.
    pub credit: u32,
    /// Whether pings detect silent connections.
    pub keepalive: bool,
}

/// Faults that TCP would hide. Each affects one message in the given number; 0 = none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abuse {
    /// One message in this many is lost.
    pub dropped: u64,
    /// One message in this many arrives twice.
    pub doubled: u64,
    /// One message in this many arrives after the next one.
    pub swapped: u64,
}

/// The simulated network: listeners, connections and their faults.
pub struct Network {
    spec: NetworkSpec,
    random: Random,
    log: Arc<Log>,
    state: Mutex<State>,
    /// Notified when a link is blocked or opened.
    changed: Signal,
}

#[derive(Default)]
struct State {
    /// Since when each direction is blocked.
    blocked: BTreeMap<(Host, Host), Instant>,
    /// Since when a stopped process answers no pings.
    mute: BTreeMap<Host, Instant>,
    dark: BTreeMap<Host, Instant>,
    listeners: BTreeMap<Host, Listener>,
    connections: Vec<Weak<Connection>>,
    abuse: Abuse,
}

#[derive(Clone)]
struct Listener {
    process: Process,
    served: Arc<Served>,
}

impl Network {
    /// A network without faults.
    pub fn new(spec: NetworkSpec, random: Random, log: Arc<Log>) -> Arc<Self> {
        Arc::new(Self { spec, random, log, state: Mutex::default(), changed: Signal::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes new connections to `host` reach `served`.
    pub fn listen(&self, host: Host, process: &Process, served: Served) {
        let listener = Listener { process: process.clone(), served: Arc::new(served) };
        self.lock().listeners.insert(host, listener);
    }

    /// Refuses new connections to `host`; open ones stay.
    pub fn stop_listening(&self, host: Host) {
        self.lock().listeners.remove(host);
    }

    /// Blocks messages `from` one host `to` another, or opens the link again.
    pub fn block(self: &Arc<Self>, from: Host, to: Host, blocked: bool) {
        {
            let state = &mut *self.lock();
            if blocked {
                state.blocked.entry((from, to)).or_insert_with(Instant::now);
            } else {
                state.blocked.remove(&(from, to));
            }
        }
        self.changed.send();
        self.watch_silence();
    }

    /// Opens every link and ends [`Abuse`].
    pub fn heal(self: &Arc<Self>) {
        {
            let state = &mut *self.lock();
            state.blocked.clear();
            state.abuse = Abuse::default();
        }
        self.changed.send();
    }

    /// Makes `host` ignore pings because it is stopped, or answer them again.
    pub fn mute(self: &Arc<Self>, host: Host, mute: bool) {
        {
            let state = &mut *self.lock();
            if mute {
                state.mute.entry(host).or_insert_with(Instant::now);
            } else {
                state.mute.remove(host);
            }
        }
        self.watch_silence();
    }

    /// Applies `abuse` to messages of streams between routers and workers.
    pub fn abuse(&self, abuse: Abuse) {
        self.lock().abuse = abuse;
    }

    /// Breaks all or some connections between two hosts and tells both ends.
    pub fn cut(self: &Arc<Self>, one: Host, other: Host) {
        let all = self.random.once_in(2);
        for connection in self.connections() {
            if connection.joins(one, other) && (all || self.random.once_in(2)) {
                connection.client.die("it was cut");
                connection.server.die("it was cut");
            }
        }
    }

    /// Reports the end of a process. Its kernel tells its peers, unless the machine is `dark`.
    pub fn process_ended(self: &Arc<Self>, host: Host, process: &Process, dark: bool) {
        {
            let state = &mut *self.lock();
            if state.listeners.get(host).is_some_and(|listener| listener.process.is_gone()) {
                state.listeners.remove(host);
            }
            state.mute.remove(host);
            if dark {
                state.dark.entry(host).or_insert_with(Instant::now);
            }
        }
        for connection in self.connections() {
            connection.process_ended(self, process, dark);
        }
        self.watch_silence();
    }

    /// The machine has power again: resets the connections of its previous run.
    pub fn lit(self: &Arc<Self>, host: Host) {
        self.lock().dark.remove(host);
        for connection in self.connections() {
            connection.tell_orphans(self);
        }
    }

    /// Connections with at least one open end.
    fn connections(&self) -> Vec<Arc<Connection>> {
        let state = &mut *self.lock();
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// When a message sent now arrives.
    pub(crate) fn arrival(&self) -> Instant {
        let (shortest, longest) = self.spec.delay;
        let delay = self.random.millis(shortest.as_millis() as u64, longest.as_millis() as u64);
        Instant::now() + delay
    }

    /// Waits until `at`, and then until the link is open.
    pub(crate) async fn arrive(&self, from: Host, to: Host, at: Instant) {
        tokio::time::sleep_until(at).await;
        loop {
            let mut changes = self.changed.subscribe();
            if !self.lock().blocked.contains_key(&(from, to)) {
                return;
            }
            changes.changed().await;
        }
    }

    /// Checks again when pings sent now have timed out.
    fn watch_silence(self: &Arc<Self>) {
        if !self.spec.keepalive {
            return;
        }
        for limit in [CLIENT_KEEPALIVE, SERVER_KEEPALIVE] {
            let network = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(limit).await;
                network.drop_silent();
            });
        }
    }

    fn drop_silent(self: &Arc<Self>) {
        for connection in self.connections() {
            let (client, server) = (&connection.client, &connection.server);
            if self.silent_for(client.host, server.host) >= CLIENT_KEEPALIVE {
                connection.client_dies(self, "no answer to pings");
            }
            if self.silent_for(server.host, client.host) >= SERVER_KEEPALIVE {
                connection.server_dies(self, "no answer to pings");
            }
        }
    }

    /// For how long pings from one host to another have gone unanswered.
    fn silent_for(&self, from: Host, to: Host) -> Duration {
        let state = self.lock();
        let since = [
            state.blocked.get(&(from, to)),
            state.blocked.get(&(to, from)),
            state.mute.get(to),
            state.dark.get(to),
        ];
        since.into_iter().flatten().min().map_or(Duration::ZERO, Instant::elapsed)
    }
}
