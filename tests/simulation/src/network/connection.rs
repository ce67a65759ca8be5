//! A connection and its two ends. Each is open until it learns otherwise, so they may disagree.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::{CONNECT_TIMEOUT, Host, Network};
use crate::process::Process;
use crate::served::Served;

/// A connection from one process to another.
pub struct Connection {
    pub(super) client: End,
    pub(super) server: End,
    pub(super) served: Arc<Served>,
}

pub(super) struct End {
    pub(super) host: Host,
    pub(super) process: Process,
    dead: Mutex<Option<&'static str>>,
    ended: Notify,
}

impl End {
    fn new(host: Host, process: Process) -> Self {
        Self { host, process, dead: Mutex::default(), ended: Notify::new() }
    }

    /// Why this end is dead; `None` = it is not.
    pub(super) fn dead(&self) -> Option<&'static str> {
        *self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection at this end.
    pub(super) fn die(&self, why: &'static str) {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.ended.notify_waiters();
    }

    /// Waits until this end is dead.
    pub(super) async fn died(&self) -> &'static str {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(why) = self.dead() {
                return why;
            }
            ended.await;
        }
    }
}

impl Connection {
    /// Whether the connection is between these two hosts.
    pub(super) fn joins(&self, one: Host, other: Host) -> bool {
        let ends = (self.client.host, self.server.host);
        ends == (one, other) || ends == (other, one)
    }

    /// Whether the client may use the connection.
    pub fn is_open(&self) -> bool {
        self.client.dead().is_none()
    }

    pub(super) fn client_dies(self: &Arc<Self>, network: &Arc<Network>, why: &'static str) {
        self.client.die(why);
        let (network, connection) = (network.clone(), self.clone());
        tokio::spawn(async move {
            network.arrive(connection.client.host, connection.server.host, network.arrival()).await;
            connection.server.die("its client closed it");
        });
    }

    pub(super) fn server_dies(self: &Arc<Self>, network: &Arc<Network>, why: &'static str) {
        self.server.die(why);
        let (network, connection) = (network.clone(), self.clone());
        tokio::spawn(async move {
            network.arrive(connection.server.host, connection.client.host, network.arrival()).await;
            connection.client.die("its server closed it");
        });
    }

    pub(super) fn process_ended(self: &Arc<Self>, network: &Arc<Network>, process: &Process, dark: bool) {
        if self.client.process.is(process) {
            if dark { self.client.die("dark") } else { self.client_dies(network, "its process ended") }
        }
        if self.server.process.is(process) {
            if dark { self.server.die("dark") } else { self.server_dies(network, "its process ended") }
        }
    }

    /// Resets the connection after a power failure, once the machine is up again.
    pub(super) fn tell_orphans(self: &Arc<Self>, network: &Arc<Network>) {
        if self.client.process.is_gone() {
            self.client_dies(network, "its process ended");
        }
        if self.server.process.is_gone() {
            self.server_dies(network, "its process ended");
        }
    }
}

impl Network {
    /// Opens a connection; the error says why it failed.
    pub async fn connect(
        self: &Arc<Self>,
        from: Host,
        process: &Process,
        to: Host,
    ) -> Result<Arc<Connection>, String> {
        let handshake = async {
            self.arrive(from, to, self.arrival()).await;
            if self.lock().dark.contains_key(to) {
                return std::future::pending().await;
            }
            let listener = self.lock().listeners.get(to).cloned();
            self.arrive(to, from, self.arrival()).await;
            listener.ok_or_else(|| format!("{to} refuses connections"))
        };
        let listener = tokio::time::timeout(CONNECT_TIMEOUT, handshake)
            .await
            .unwrap_or_else(|_| Err(format!("{to} does not answer")))?;
        let connection = Arc::new(Connection {
            client: End::new(from, process.clone()),
            server: End::new(to, listener.process.clone()),
            served: listener.served,
        });
        self.lock().connections.push(Arc::downgrade(&connection));
        if listener.process.is_gone() {
            connection.server_dies(self, "its process ended");
        }
        Ok(connection)
    }
}
