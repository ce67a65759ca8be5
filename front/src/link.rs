//! A worker's address and connections.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_tls::ClientTls;
use tokio::sync::Notify;

use super::pool::Pool;
use super::worker_url::WorkerUrl;

/// A worker's address and connections, or a place for an address of a name.
pub(super) struct Link {
    pub url: WorkerUrl,
    pub pool: Pool,
    /// Wakes the health checks of a place that gets an address.
    pub appeared: Arc<Notify>,
    pub lost: AtomicBool,
    spot: Mutex<Spot>,
}

/// What a link leads to now.
#[derive(Clone)]
pub(super) struct Spot {
    /// Name for logs and metrics.
    pub name: Arc<str>,
    /// Address, if the URL is that of a name.
    pub address: Option<SocketAddr>,
}

/// Places of a name's addresses among the workers.
#[derive(Debug, Clone)]
pub(super) struct AddressPlaces {
    pub url: WorkerUrl,
    pub places: Range<u32>,
}

impl fmt::Display for AddressPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl Link {
    /// A link that nobody has tried; `tls` for an `https` URL.
    pub fn new(url: &WorkerUrl, tls: Option<&ClientTls>) -> Self {
        Self {
            url: url.clone(),
            pool: Pool::new(url.clone(), tls.cloned()),
            appeared: Arc::default(),
            lost: AtomicBool::new(false),
            spot: Mutex::new(Spot { name: url.to_string().into(), address: None }),
        }
    }

    /// What it leads to now, for changes.
    pub fn spot(&self) -> MutexGuard<'_, Spot> {
        self.spot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name for logs and metrics.
    pub fn name(&self) -> Arc<str> {
        self.spot().name.clone()
    }

    /// Address, if the URL is that of a name.
    pub fn address(&self) -> Option<SocketAddr> {
        self.spot().address
    }

    /// Whether health checks found the worker lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
