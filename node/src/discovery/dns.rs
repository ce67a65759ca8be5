//! Membership by DNS: a name with one address per worker, such as a Kubernetes headless service. Each address
//! is a member, and also its id.
//!
//! DNS cannot distinguish "no workers" from "unknown": a service without ready pods, an unreachable resolver
//! and a mistyped name look alike. A lookup that fails or finds nothing therefore changes nothing. When a
//! lookup finds addresses, new ones join at once, and those missing from [`MISSES`] answers in a row leave:
//! answers may be truncated, and servers of a name may be out of date.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use super::backoff::Backoff;
use super::{Change, Member};
use crate::trace::Connecting;

/// Default interval between lookups.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Answers in a row without an address before it leaves.
pub const MISSES: u32 = 3;
/// Most addresses taken from one answer.
pub const MAX_ADDRESSES: usize = 1024;
/// Timeout of one lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// A name to look up, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsName {
    /// The name, which may have many addresses.
    pub host: String,
    /// Port of every worker.
    pub port: u16,
    /// Longest pause between lookups; the actual one is random, at least half of it.
    pub interval: Duration,
}

/// Sends changes until the receiver is dropped. `seed` determines the jitter.
pub async fn follow(name: DnsName, seed: u64, changes: mpsc::Sender<Change>) {
    let (host, port) = (name.host.clone(), name.port);
    follow_with(|| resolve(host.clone(), port), &name, seed, changes).await;
}

async fn resolve(host: String, port: u16) -> Result<Vec<SocketAddr>, String> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Ok(found) => found.map(Iterator::collect).map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {LOOKUP_TIMEOUT:?}")),
    }
}

async fn follow_with<F: Future<Output = Result<Vec<SocketAddr>, String>>>(
    resolve: impl Fn() -> F,
    name: &DnsName,
    seed: u64,
    changes: mpsc::Sender<Change>,
) {
    let mut jitter = Backoff::new(seed);
    let mut answers = Answers::default();
    let mut failing = false;
    let mut connecting = Connecting::begin("dns", &name.host);
    while !changes.is_closed() {
        let found = resolve().await.and_then(|found| {
            if found.is_empty() { Err("it has no addresses".to_owned()) } else { Ok(found) }
        });
        if found.is_err() {
            connecting.failed();
        }
        match found {
            Ok(found) => {
                connecting.works();
                if std::mem::take(&mut failing) {
                    tracing::info!(name = name.host, "the name resolves again");
                }
                for change in answers.take(&found) {
                    tracing::info!(?change, "membership");
                    if changes.send(change).await.is_err() {
                        return;
                    }
                }
            }
            Err(reason) if failing => {
                tracing::debug!(name = name.host, reason, "the name still does not resolve")
            }
            Err(reason) => {
                failing = true;
                tracing::warn!(name = name.host, reason, "the name does not resolve; known workers stay");
            }
        }
        let pause = jitter.jitter(name.interval);
        tokio::select! {
            biased;
            () = changes.closed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Interprets the answers. Pure.
#[derive(Debug, Default)]
struct Answers {
    /// Known addresses, with the number of consecutive answers that lacked each.
    known: BTreeMap<SocketAddr, u32>,
}

impl Answers {
    /// Applies an answer with at least one address; returns the changes.
    fn take(&mut self, found: &[SocketAddr]) -> Vec<Change> {
        let found = &found[..found.len().min(MAX_ADDRESSES)];
        let mut changes = Vec::new();
        for address in found {
            if self.known.insert(*address, 0).is_none() {
                let address = address.to_string();
                changes.push(Change::Join(Member { id: address.clone(), address }));
            }
        }
        self.known.retain(|address, misses| {
            *misses += u32::from(!found.contains(address));
            let stays = *misses < MISSES;
            if !stays {
                changes.push(Change::Leave(address.to_string()));
            }
            stays
        });
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Abbreviates a change: `1` = 10.0.0.1 joined, `-1` = it left.
    fn short(change: &Change) -> i32 {
        let last = |address: &str| address.split(['.', ':']).nth(3).unwrap().parse::<i32>().unwrap();
        match change {
            Change::Join(member) => last(&member.address),
            Change::Leave(id) => -last(id),
        }
    }

    fn addresses(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([10, 0, 0, *last], 9000))).collect()
    }

    #[test]
    fn an_address_missing_for_long_enough_leaves() {
        let mut answers = Answers::default();
        let mut check = |found: &[u8], expected: &[i32]| {
            let changes: Vec<i32> = answers.take(&addresses(found)).iter().map(short).collect();
            assert_eq!(changes, expected, "{found:?}");
        };
        check(&[2, 1, 2], &[2, 1]);
        check(&[1], &[]);
        check(&[1, 3], &[3]);
        check(&[1, 2], &[]);
        check(&[1, 2], &[]);
        check(&[1, 2], &[-3]);
        check(&[3, 1, 2], &[3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_does_not_resolve_removes_no_member() {
        let none = || Err("no such name".to_owned());
        let script =
            vec![none(), Ok(vec![]), Ok(addresses(&[1])), none(), Ok(vec![]), none(), none(), none()];
        let script = Mutex::new(script.into_iter());
        let resolve = || std::future::ready(script.lock().unwrap().next().unwrap_or(Ok(addresses(&[2]))));
        let name = DnsName { host: "workers".into(), port: 9000, interval: INTERVAL };
        let (sender, mut receiver) = mpsc::channel(8);
        let watch = async {
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(short(&receiver.recv().await.unwrap()));
            }
            drop(receiver);
            seen
        };
        let ((), seen) = tokio::join!(follow_with(resolve, &name, 1, sender), watch);
        assert_eq!(seen, [1, 2, -1]);
        assert!(script.lock().unwrap().next().is_none(), "all failures came before the leave");
    }

    #[tokio::test]
    async fn the_system_resolver_is_asked() {
        let (sender, mut receiver) = mpsc::channel(8);
        let name = DnsName { host: "127.0.0.1".into(), port: 9000, interval: INTERVAL };
        let take = async {
            let first = receiver.recv().await;
            drop(receiver);
            first
        };
        let ((), first) = tokio::join!(follow(name, 1, sender), take);
        let address = "127.0.0.1:9000".to_owned();
        assert_eq!(first, Some(Change::Join(Member { id: address.clone(), address })));
    }
}
