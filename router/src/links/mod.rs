//! Connections to the workers, and the fleet behind its lock. `follow` updates the fleet from discovery and
//! the workers' logs, `workers` holds the fleet and the connections, `worker_client` implements
//! `skein.worker.v1`, `transport` carries it, `exchanges` many requests over one stream, `encrypted` over
//! TLS, `errands` sends messages that need no answer, and `totals` sums the workers' counters,
//! `requests_by_version` counts requests by the model's version. Nothing here depends on clients or makes
//! decisions.

mod adapter_changes;
pub(crate) mod adapters;
pub mod allowed;
pub(crate) mod drains;
mod encrypted;
pub(crate) mod errands;
pub mod exchanges;
pub(crate) mod follow;
mod link_log;
pub mod moves;
pub mod picks;
pub(crate) mod requests_by_version;
pub(crate) mod seats;
mod snapshot_parts;
pub(crate) mod totals;
pub mod transport;
pub mod worker_client;
pub(crate) mod workers;

#[cfg(test)]
mod tests;
