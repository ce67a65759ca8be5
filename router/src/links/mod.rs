//! The connections to the workers, and the fleet behind its lock. `follow` feeds the fleet from discovery and
//! the workers' logs, `workers` holds the fleet and the connections, `worker_client` speaks
//! `skein.worker.v1`, `transport` carries it, `errands` sends messages that need no answer,
//! `totals` adds up what workers count. Nothing here
//! depends on clients, and nothing decides.

pub(crate) mod errands;
pub(crate) mod follow;
mod link_log;
pub(crate) mod totals;
pub mod transport;
pub mod worker_client;
pub(crate) mod workers;

#[cfg(test)]
mod tests;
