//! Starts a router before OpenAI servers.

use std::sync::Arc;

use skein_node::discovery::Change;
use skein_node::discovery::dns::{self, DnsName};
use skein_node::random;
use skein_tls::ClientTls;
use tokio::sync::mpsc;

use super::config::{HTTP_1, UpstreamConfig};
use super::link::{AddressPlaces, Link};
use super::names::MAX_ADDRESSES;
use super::servers::Servers;
use super::shared::{Shared, WAIT, name_hash};
use super::worker_url::WorkerUrl;
use super::{health, names};

/// A router before OpenAI servers; cheap to clone.
#[derive(Clone)]
pub struct Upstreams(pub(super) Arc<Shared>);

impl Upstreams {
    /// Starts the health checks and looks names up. Needs a tokio runtime.
    pub fn start(config: UpstreamConfig) -> Self {
        Self::start_with(config, |name| names::resolved(name, random::seed()))
    }

    /// As [`start`](Self::start), with another source of the addresses of each name.
    pub fn start_with(
        mut config: UpstreamConfig,
        addresses: impl Fn(DnsName) -> mpsc::Receiver<Change>,
    ) -> Self {
        if config.workers.iter().any(WorkerUrl::is_tls) {
            config.tls.get_or_insert_with(|| ClientTls::of_system().offering(HTTP_1));
        }
        let (mut links, mut named) = (Vec::new(), Vec::new());
        for url in &config.workers {
            let first = links.len();
            let places = if url.is_name() { MAX_ADDRESSES } else { 1 };
            links.extend((0..places).map(|_| Link::new(url, config.tls.as_ref())));
            if url.is_name() {
                named.push(AddressPlaces { url: url.clone(), places: first as u32..links.len() as u32 });
            }
        }
        let names = links.iter().map(|link| name_hash(&link.name()));
        let mut servers = Servers::new(names, config.router.policy, config.router.recovery.max_index_bytes);
        named.iter().flat_map(|named| named.places.clone()).for_each(|at| servers.vanished(at));
        let shared = Arc::new(Shared::new(config, links, servers));
        health::start(&shared);
        for named in named {
            let (host, port) = named.url.endpoint();
            let name = DnsName { host: host.to_owned(), port, interval: dns::INTERVAL };
            names::follow(&shared, named, addresses(name));
        }
        Self(shared)
    }

    /// Waits until some worker is up.
    pub async fn wait_ready(&self) {
        while !self.0.servers(|servers| servers.is_up()) {
            tokio::time::sleep(WAIT).await;
        }
    }
}
