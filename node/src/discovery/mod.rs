//! Who belongs to the cluster: membership *changes* and nothing else. How a member fares is what its own reports
//! say, so a source of membership may be away without anybody noticing.
//!
//! A source is whatever sends [`Change`]s into a bounded channel: a [static list](static_list()), a supervisor in the
//! [same process](in_process()), [etcd] or [DNS](dns). A closed channel means that no more changes come; it makes
//! nobody leave.

mod backoff;
pub mod dns;
pub mod etcd;
mod in_process;
mod source;
mod static_list;

pub use in_process::in_process;
pub use source::{DEFAULT_CLUSTER, MAX_ENDPOINTS, Source};
pub use static_list::{DiscoveryError, MAX_STATIC_MEMBERS, static_list};

/// Changes that may wait to be taken in; the sender waits beyond that.
pub const CHANGES_IN_FLIGHT: usize = 256;

/// A process that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Stable name. A member that joins again under its id replaces the earlier one.
    pub id: String,
    /// `host:port` of its gRPC service.
    pub address: String,
}

/// One step of the cluster's membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// New, or at a new address.
    Join(Member),
    /// Gone for good, by its id.
    Leave(String),
}

/// Whether `address` is `host:port` with a port to connect to; a v6 address stands in brackets.
pub fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.contains([':', '/', '@', ' ', '[', ']']);
    !host.is_empty() && (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
}
