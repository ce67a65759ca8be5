//! Cluster membership: joins and leaves, nothing else. A member's health comes from its own reports, so an
//! outage of the membership source disturbs nothing.
//!
//! A source sends [`Change`]s into a bounded channel: a [static list](static_list()), a supervisor in the
//! [same process](in_process()), [etcd] or [DNS](dns). A closed channel means that no more changes come;
//! members stay.

mod backoff;
pub mod dns;
pub mod etcd;
mod in_process;
mod source;
mod static_list;

pub use in_process::in_process;
pub use source::{DEFAULT_CLUSTER, MAX_ENDPOINTS, MembershipSource};
pub use static_list::{DiscoveryError, MAX_STATIC_MEMBERS, static_list};

/// Most changes queued; the sender then waits.
pub const CHANGES_IN_FLIGHT: usize = 256;

/// A process that serves requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Stable id. A member that joins under a known id replaces the earlier one.
    pub id: String,
    /// `host:port` of its gRPC service.
    pub address: String,
}

/// One change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A new member, or one at a new address.
    Join(Member),
    /// The member with this id has left.
    Leave(String),
}

/// Whether `address` is `host:port` with a nonzero port; IPv6 addresses must be in brackets.
pub fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.contains([':', '/', '@', ' ', '[', ']']);
    !host.is_empty() && (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
}
