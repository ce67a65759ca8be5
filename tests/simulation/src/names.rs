//! Who takes part. Names are static: they are in every line of the log.

use crate::network::Host;

/// Most workers of a life.
pub const WORKERS: [Host; 4] = ["w0", "w1", "w2", "w3"];
/// Most routers of a life.
pub const ROUTERS: [Host; 3] = ["r0", "r1", "r2"];
/// The machine of all clients.
pub const CLIENT: Host = "c";
/// The machine of etcd.
pub const ETCD: Host = "e";

/// The address under which a host serves.
pub fn address_of(host: Host) -> String {
    format!("{host}:1")
}

/// The host at an address.
pub fn host_of(address: &str) -> Option<Host> {
    let name = address.split(':').next()?;
    WORKERS.iter().chain(&ROUTERS).copied().find(|&host| host == name)
}
