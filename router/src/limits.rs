//! How many connections a port holds: in all, and of one client's address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default of [`ConnectionLimits::total`].
pub const MAX_CONNECTIONS: usize = 16_384;
/// Most file descriptors that connections leave for others: links to workers, files, the listener itself.
const MAX_RESERVED: u64 = 256;
/// Part of few descriptors that connections leave.
const RESERVED_PART: u64 = 8;
/// Most significant bits of an IPv6 address that name a client: providers assign 64 or fewer to a customer.
const CLIENT_BITS: u32 = 64;
/// Least time between two log lines about connections that are closed at once.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Bounds on the connections of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections at once; further ones wait in the system's queue.
    pub total: usize,
    /// Most connections of one client's address (of IPv6: of its /64); further ones are closed at once.
    /// `None` = no limit: behind a proxy all clients have its address.
    pub per_address: Option<usize>,
    /// How long a connection without a request stays open.
    pub idle_timeout: Duration,
}

impl ConnectionLimits {
    /// The same, with descriptors to spare if the process may have `descriptors`.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let reserved = (descriptors / RESERVED_PART).min(MAX_RESERVED);
        let room = usize::try_from(descriptors - reserved).unwrap_or(usize::MAX).max(1);
        Self { total: self.total.min(room), ..self }
    }
}

/// The places for connections.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    per_address: Option<usize>,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    /// Connections of each client that has any.
    by_client: HashMap<IpAddr, usize>,
    logged: Option<Timestamp>,
}

/// The place of one connection, free again when dropped.
pub(crate) struct Place {
    _of_all: Option<OwnedSemaphorePermit>,
    of_client: Option<(IpAddr, Arc<Mutex<Held>>)>,
}

impl Places {
    pub fn new(limits: &ConnectionLimits) -> Self {
        let free = Arc::new(Semaphore::new(limits.total));
        Self { free, per_address: limits.per_address, held: Arc::default() }
    }

    /// Waits for a place among all.
    pub async fn next(&self) -> Place {
        // The semaphore is never closed.
        Place { _of_all: self.free.clone().acquire_owned().await.ok(), of_client: None }
    }

    /// Gives `place` to a connection from `peer`; false if that client has its share.
    pub fn give(&self, place: &mut Place, peer: IpAddr) -> bool {
        let Some(most) = self.per_address else { return true };
        let client = client(peer);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.by_client.entry(client).or_default();
        if *count < most {
            *count += 1;
            place.of_client = Some((client, self.held.clone()));
            return true;
        }
        let now = clock::now();
        if held.logged.is_none_or(|last| now.since(last) >= LOG_INTERVAL) {
            held.logged = Some(now);
            tracing::warn!(%peer, most, "closes further connections of this client; see --max-connections-per-ip");
        }
        false
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((client, held)) = self.of_client.take() else { return };
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                held.by_client.remove(&client);
            }
        }
    }
}

/// What counts as one client: an IPv4 address, also in its IPv6 form, or the network of an IPv6 address.
fn client(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - CLIENT_BITS))).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_client_has_its_share_and_no_more_until_one_of_its_connections_ends() {
        let places = Places::new(&ConnectionLimits { total: 9, per_address: Some(2), idle_timeout: SECOND });
        let from = async |text: &str| {
            let mut place = places.next().await;
            places.give(&mut place, text.parse().unwrap()).then_some(place)
        };
        let first = from("10.0.0.1").await.unwrap();
        let _second = from("::ffff:10.0.0.1").await.unwrap();
        assert!(from("10.0.0.1").await.is_none(), "both forms of the address are one client");
        assert!(from("10.0.0.2").await.is_some());
        drop(first);
        assert!(from("10.0.0.1").await.is_some());
        let _network = [from("2001:db8::1").await.unwrap(), from("2001:db8::2").await.unwrap()];
        assert!(from("2001:db8::3").await.is_none(), "one customer has a /64");
        assert!(from("2001:db8:0:1::3").await.is_some());
        assert_eq!(places.held.lock().unwrap().by_client.len(), 2, "only clients with connections are kept");
    }

    #[test]
    fn connections_leave_descriptors_for_others() {
        let limits = ConnectionLimits { total: MAX_CONNECTIONS, per_address: None, idle_timeout: SECOND };
        for (descriptors, total) in
            [(64, 56), (1024, 896), (16_384, 16_128), (20_000, MAX_CONNECTIONS), (0, 1)]
        {
            assert_eq!(limits.within(descriptors).total, total, "{descriptors}");
        }
    }
}
