//! Workers by a name: each of its addresses is a worker of its own. A name has a fixed number of places among
//! the workers; an address takes one and gives it back when the name no longer has it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skein_node::discovery::dns::{self, DnsName};
use skein_node::discovery::{CHANGES_IN_FLIGHT, Change};
use tokio::sync::mpsc;

use super::link::AddressPlaces;
use super::shared::Shared;

/// Most addresses of a name that get requests at a time.
pub const MAX_ADDRESSES: usize = 64;

/// Pause before addresses without a place are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Changes of a name's addresses, by the system's resolver.
pub fn resolved(name: DnsName, seed: u64) -> mpsc::Receiver<Change> {
    let (sender, changes) = mpsc::channel(CHANGES_IN_FLIGHT);
    tokio::spawn(dns::follow(name, seed, sender));
    changes
}

/// Gives the addresses in `changes` places of `named`, until the process drops `shared`. Those for which
/// there is none wait for one.
pub fn follow(shared: &Arc<Shared>, named: AddressPlaces, mut changes: mpsc::Receiver<Change>) {
    let weak = Arc::downgrade(shared);
    tokio::spawn(async move {
        let mut waiting: Vec<SocketAddr> = Vec::new();
        let mut told = 0;
        loop {
            let next = if waiting.is_empty() {
                Ok(changes.recv().await)
            } else {
                tokio::time::timeout(RETRY, changes.recv()).await
            };
            let (Ok(Some(_)) | Err(_)) = next else { return };
            let Some(shared) = weak.upgrade() else { return };
            match next.ok().flatten() {
                Some(Change::Join(member)) => waiting.extend(parsed(&member.address)),
                Some(Change::Leave(address)) => {
                    let gone = parsed(&address);
                    waiting.retain(|known| Some(*known) != gone);
                    gone.inspect(|&address| shared.vanished(&named, address));
                }
                None => {}
            }
            waiting.retain(|&address| !shared.appeared(&named, address));
            if waiting.len() > told {
                let (name, most) = (named.to_string(), MAX_ADDRESSES);
                tracing::warn!(
                    name,
                    most,
                    waiting = waiting.len(),
                    "a name has more addresses than get requests"
                );
            }
            told = waiting.len();
        }
    });
}

fn parsed(address: &str) -> Option<SocketAddr> {
    address.parse().inspect_err(|_| tracing::warn!(address, "not an address; it is not used")).ok()
}
