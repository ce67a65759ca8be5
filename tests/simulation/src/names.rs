//! The names of hosts. They are static because every line of the log contains one.

use crate::network::Host;

/// Most workers in a run; a seed draws fewer.
pub const WORKERS: [Host; 8] = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"];
/// Most routers in a run.
pub const ROUTERS: [Host; 3] = ["r0", "r1", "r2"];
/// The host of all clients.
pub const CLIENT: Host = "c";
/// The host of etcd.
pub const ETCD: Host = "e";

/// The address that a host serves at.
pub fn address_of(host: Host) -> String {
    format!("{host}:1")
}

/// The host with this address.
pub fn host_of(address: &str) -> Option<Host> {
    let name = address.split(':').next()?;
    WORKERS.iter().chain(&ROUTERS).copied().find(|&host| host == name)
}
