//! Takes part in a cluster: a router follows a source of members; a worker registers in etcd when it is
//! ready, and unregisters before it drains.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use skein_node::discovery::etcd::{
    self, EtcdClient, EtcdSettings, FollowerConfig, Record, Registration, register,
};
use skein_node::discovery::{Change, MembershipSource, dns, in_process};
use skein_node::random;
use skein_node::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::exit::{Failure, USAGE};
use crate::settings::{DiscoverySettings, RegistrationSettings};

/// Starts to follow `source`. An outage of the source is not an error: this waits for its end.
///
/// # Errors
/// If an address or a certificate cannot be used.
pub async fn follow(
    source: MembershipSource,
    settings: EtcdSettings,
) -> Result<mpsc::Receiver<Change>, Failure> {
    let (changes, receiver) = in_process();
    let seed = random::seed();
    match source {
        MembershipSource::Dns(name) => drop(tokio::spawn(dns::follow(name, seed, changes))),
        MembershipSource::Etcd { cluster, .. } => {
            let client = connect(settings, seed).await?;
            let config = FollowerConfig::new(&cluster, seed);
            tokio::spawn(async move { etcd::follow(&client, config, changes).await });
        }
    }
    Ok(receiver)
}

/// A worker's registration in etcd, if it has one.
#[derive(Debug, Default)]
pub struct Presence {
    entry: Option<EtcdEntry>,
    stop: Shutdown,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct EtcdEntry {
    client: Arc<EtcdClient>,
    cluster: String,
    model: String,
    settings: RegistrationSettings,
}

impl Presence {
    /// Prepares the registration; does nothing for sources other than etcd.
    ///
    /// # Errors
    /// If an address or a certificate cannot be used.
    pub async fn prepare(
        discovery: DiscoverySettings,
        settings: RegistrationSettings,
        model: &str,
    ) -> Result<Self, Failure> {
        let Some(MembershipSource::Etcd { cluster, .. }) = discovery.source else {
            return Ok(Self::default());
        };
        let client = Arc::new(connect(discovery.etcd, random::seed()).await?);
        let entry = Some(EtcdEntry { client, cluster, model: model.to_owned(), settings });
        Ok(Self { entry, ..Self::default() })
    }

    /// Whether the worker registers nowhere.
    pub fn is_none(&self) -> bool {
        self.entry.is_none()
    }

    /// Registers the worker, which serves at `address`.
    pub fn enter(&self, address: SocketAddr) {
        let Some(entry) = &self.entry else { return };
        let registration = entry.registration(address);
        let (client, stopped) = (entry.client.clone(), self.stop.requested());
        let task = tokio::spawn(async move { register(&*client, registration, stopped).await });
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Unregisters the worker, within a short time even if etcd is down. Calling it again does nothing.
    pub async fn leave(&self) {
        self.stop.request();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the registration panicked; this is a bug");
        }
    }

    /// Waits for `shutdown` and then unregisters: afterwards no router finds the worker, and it can drain.
    pub async fn leave_after(&self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.leave().await;
    }
}

impl EtcdEntry {
    fn registration(&self, listening: SocketAddr) -> Registration {
        let settings = &self.settings;
        let address = settings.advertise.clone().unwrap_or_else(|| listening.to_string());
        if settings.advertise.is_none() && listening.ip().is_loopback() {
            tracing::warn!(
                address,
                "only routers on this machine can reach this worker; see --listen and --advertise"
            );
        }
        let record = Record {
            id: settings.worker_id.clone().unwrap_or_else(|| address.clone()),
            address,
            model: self.model.clone(),
            epoch: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leaving: false,
        };
        Registration { cluster: self.cluster.clone(), record, ttl: settings.lease_ttl, seed: random::seed() }
    }
}

async fn connect(settings: EtcdSettings, seed: u64) -> Result<EtcdClient, Failure> {
    let connected = EtcdClient::new(settings, seed).await;
    connected.map_err(|error| Failure::new(USAGE, format!("--discovery: {error}")))
}
