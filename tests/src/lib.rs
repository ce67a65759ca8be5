//! The harness for tests with real processes: the processes, a network that fails on command, a client that
//! records a history, a checker that compares two histories, and the scenarios that combine them.

pub mod check;
pub mod child;
pub mod client;
pub mod decrypt;
pub mod etcd;
pub mod history;
pub mod hub;
pub mod load;
pub mod nodes;
pub mod otlp;
pub mod pki;
pub mod process;
pub mod proxy;
pub mod report;
pub mod requests;
pub mod scenario;
pub mod seeded;
