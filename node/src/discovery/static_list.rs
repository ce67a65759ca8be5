//! A fixed list of members, given at start.

use tokio::sync::mpsc;

use super::{Change, Member, is_host_and_port};

/// Most members of a static list.
pub const MAX_STATIC_MEMBERS: usize = 1024;

/// Why a list of members was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The address is not `host:port`.
    #[error("`{0}` is not host:port, for example 10.0.0.7:9000")]
    BadAddress(String),
    /// The address is listed twice.
    #[error("`{0}` is listed twice")]
    Duplicate(String),
    /// The list is empty or too long.
    #[error("{got} addresses are listed; give 1 to {MAX_STATIC_MEMBERS}")]
    Count {
        /// Number of addresses in the list.
        got: usize,
    },
}

/// A source from a fixed list of `host:port`; each member's id is its address.
pub fn static_list<S: AsRef<str>>(addresses: &[S]) -> Result<mpsc::Receiver<Change>, DiscoveryError> {
    if addresses.is_empty() || addresses.len() > MAX_STATIC_MEMBERS {
        return Err(DiscoveryError::Count { got: addresses.len() });
    }
    let mut seen = std::collections::BTreeSet::new();
    let (sender, receiver) = mpsc::channel(addresses.len());
    for address in addresses.iter().map(|address| address.as_ref().trim()) {
        if !is_host_and_port(address) {
            return Err(DiscoveryError::BadAddress(address.to_owned()));
        }
        if !seen.insert(address) {
            return Err(DiscoveryError::Duplicate(address.to_owned()));
        }
        let member = Member { id: address.to_owned(), address: address.to_owned() };
        sender.try_send(Change::Join(member)).expect("the channel holds the whole list");
    }
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(addresses: &[&str], expected: Result<&[&str], DiscoveryError>) {
        let got = static_list(addresses).map(|mut changes| {
            let mut joined = Vec::new();
            while let Ok(Change::Join(member)) = changes.try_recv() {
                assert_eq!(member.id, member.address);
                joined.push(member.address);
            }
            assert_eq!(changes.try_recv(), Err(mpsc::error::TryRecvError::Disconnected), "no more changes");
            joined
        });
        assert_eq!(got, expected.map(|list| list.iter().map(|&address| address.to_owned()).collect()));
    }

    #[test]
    fn a_static_list_joins_each_member_once() {
        check(&["a:1", " b:2", "[::1]:9000"], Ok(&["a:1", "b:2", "[::1]:9000"]));
        check(&["a:1", "a:1"], Err(DiscoveryError::Duplicate("a:1".into())));
        check(&[], Err(DiscoveryError::Count { got: 0 }));
        for bad in ["a", "a:", ":1", "a:0", "a:65536", "::1:80", "http://a:1", "a b:1"] {
            check(&[bad], Err(DiscoveryError::BadAddress(bad.into())));
        }
    }
}
