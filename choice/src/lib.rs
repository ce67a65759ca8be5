//! Which worker gets a request. Pure: events and the time go in, choices and actions come out; no task, no
//! socket, no clock of its own.
//!
//! `policy` picks among workers by what `ledger` (with `backlog`, its queue) and `prefix_index` know of
//! them, `breaker` keeps requests away from a worker that keeps failing, `receipt` says why a worker was
//! picked, `calibration` learns what predictions leave out. `fleet` has all of it for workers that report
//! what they cache and carry; a front before servers of others takes the parts that need no reports.
//! Nothing here depends on clients or on a request's content.
//!
//! A choice is generic in its generator, so it is compiled in the crate that makes it. What it calls for each
//! worker is `#[inline]`: without link-time optimisation, nothing else crosses crates.

pub(crate) mod backlog;
pub mod breaker;
pub(crate) mod calibration;
pub mod fleet;
pub mod ledger;
pub mod limits;
pub mod policy;
pub mod prefix_index;
pub mod receipt;
pub mod worker_id;
