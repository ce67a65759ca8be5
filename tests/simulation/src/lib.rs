//! A whole cluster in one thread: the product's routers, workers, engines, membership, with simulated time, network,
//! etcd, devices and deaths. One seed is one life, and lives it again byte for byte.
//!
//! # How a seed lives
//!
//! [`life::live`] draws a [`plan`] from the seed: one to four workers, one to three routers, how large, how fast, which
//! kinds of [`faults`] this life has. The [`executor`] runs it all in one thread, where time jumps to the next timer
//! whenever nothing can run.
//!
//! The [`world`] starts a [`process`] for each: a [`worker`] is the product's service and engine over a [`device`] that
//! never computes for real, a [`router`] the product's cluster. What they spawn belongs to their process, stands still
//! when that is stopped, and is dropped wherever it stands when that is killed. They reach each other over the
//! [`network`], which delays, holds back and loses, and find each other through an [`etcd`] that may be away.
//!
//! Each [`client`] has a request from the [`workload`] and its whole answer from the [`reference`], computed alone
//! beforehand. It checks every message against it ([`reading`]): each position once, in order, the same token. When its
//! router dies it comes back under the same id. When the faults are over and the clients are gone, [`quiescence`] looks
//! whether anything is left.
//!
//! Everything that happens is a line of the [`report`]. What does not hold ends the life, and its seed is the bug's name.

pub mod client;
pub mod device;
pub mod etcd;
pub mod executor;
pub mod faults;
pub mod life;
pub mod names;
pub mod network;
pub mod plan;
pub mod probe;
pub mod process;
pub mod quiescence;
pub mod random;
pub mod reading;
pub mod reference;
pub mod report;
pub mod router;
pub mod served;
pub mod worker;
pub mod workload;
pub mod world;
