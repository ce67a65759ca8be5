//! The wires to the workers, and the picture of them behind its lock. `follow` feeds the picture from discovery and
//! from the workers' logs, `workers` keeps it with the connections, `worker_client` speaks `skein.worker.v1`,
//! `transport` carries it, `errands` tells workers what nobody waits for. It knows no clients and decides nothing.

pub(crate) mod errands;
pub(crate) mod follow;
mod link_log;
pub mod transport;
pub mod worker_client;
pub(crate) mod workers;

#[cfg(test)]
mod tests;
