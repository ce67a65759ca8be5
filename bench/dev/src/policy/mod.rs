//! `skein-dev policy`: replays a recorded trace over simulated workers with each policy and with an oracle.

pub mod command;
mod figures;
mod news;
mod simulation;
mod stepping;
mod steps;
mod trace;
mod worker;

#[cfg(test)]
mod tests;
