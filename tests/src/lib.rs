//! What the tests over real processes share: the processes, a network that fails on command, a client that keeps
//! a history, the checker that compares two histories, and the scenarios in which all of it meets.

pub mod check;
pub mod child;
pub mod client;
pub mod etcd;
pub mod etcd_process;
pub mod history;
pub mod load;
pub mod nodes;
pub mod process;
pub mod proxy;
pub mod report;
pub mod requests;
pub mod scenario;
pub mod seeded;
