//! Endpoints among which a proxy lets a picker choose.

use std::net::{IpAddr, SocketAddr};

/// An endpoint that a proxy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    ip: IpAddr,
    /// `None` = every port.
    port: Option<u16>,
}

impl Allowed {
    /// Endpoints of a list separated by commas, each an address with or without a port. Other entries are
    /// left out, because no worker has them.
    ///
    /// Source: protocol of the Gateway API inference extension (proposal 004), and its own small picker,
    /// which also takes addresses without a port.
    pub fn of_list(list: &str) -> impl Iterator<Item = Self> {
        list.split(',').filter_map(|entry| Self::of_entry(entry.trim()))
    }

    fn of_entry(entry: &str) -> Option<Self> {
        if let Ok(endpoint) = entry.parse::<SocketAddr>() {
            return Some(Self { ip: endpoint.ip(), port: Some(endpoint.port()) });
        }
        let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')).unwrap_or(entry);
        Some(Self { ip: bare.parse().ok()?, port: None })
    }

    /// Whether `endpoint` is meant.
    pub fn contains(self, endpoint: SocketAddr) -> bool {
        self.ip == endpoint.ip() && self.port.is_none_or(|port| port == endpoint.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_addresses_with_and_without_ports() {
        let check = |list: &str, endpoint: &str, expected| {
            let endpoint = endpoint.parse().unwrap();
            assert_eq!(Allowed::of_list(list).any(|allowed| allowed.contains(endpoint)), expected, "{list}");
        };
        check("10.0.0.1:8000,10.0.0.7:8000", "10.0.0.7:8000", true);
        check("10.0.0.1:8000, 10.0.0.7", "10.0.0.7:8000", true);
        check("[fd00::7]:8000", "[fd00::7]:8000", true);
        check("[fd00::7]", "[fd00::7]:8000", true);
        check("fd00::7", "[fd00::7]:8000", true);
        check("10.0.0.7:9000", "10.0.0.7:8000", false);
        check("worker-0:8000,,10.0.0.70", "10.0.0.7:8000", false);
        check("", "10.0.0.7:8000", false);
    }
}
