//! A whole cluster in one thread: the product's routers, workers, engines and membership, with simulated
//! time, network, etcd, devices and crashes. A seed determines one run, and reproduces it byte for byte.
//!
//! # How a seed runs
//!
//! [`run::run_seed`] draws a [`plan`] from the seed: one to four workers, one to three routers, their sizes
//! and speeds, and the kinds of [`faults`]. The [`executor`] runs everything in one thread. When no task can
//! run, time jumps to the next timer.
//!
//! The [`world`] starts a [`process`] for each member. A [`worker`] is the product's service and engine over
//! a [`device`] that computes nothing; a [`router`] is the product's cluster. The tasks that they spawn
//! belong to their process: they are suspended while it is stopped, and are dropped at any await point when
//! it is killed. Processes talk over the [`network`], which delays, blocks and loses messages, and discover
//! each other through an [`etcd`] that may be down.
//!
//! Each [`client`] has a request from the [`workload`] and the expected answer from the [`reference`], which
//! computed it alone beforehand. [`reading`] checks every message against it: each position once, in order,
//! with the same token. If its router dies, the client retries with the same id. When the faults are over and
//! the clients are done, [`quiescence`] checks that nothing is left.
//!
//! A [`scenario`] is a run of chosen sizes and requests: the failures of other routers, each by its name.
//!
//! Every event is a line of the [`report`]. A violated invariant ends the run, and its seed reproduces the
//! bug.

pub mod client;
pub mod device;
pub mod etcd;
pub mod executor;
pub mod faults;
pub mod model;
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
pub mod run;
pub mod scenario;
pub mod served;
pub mod worker;
pub mod workload;
pub mod world;
