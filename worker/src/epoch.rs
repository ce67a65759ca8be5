//! The number of a start.

use std::hash::{BuildHasher, RandomState};

use skein_node::clock;

/// A random epoch, different at each start: std seeds every `RandomState` from the system's generator.
pub(crate) fn draw_epoch() -> u64 {
    RandomState::new().hash_one((std::process::id(), clock::unix_time())).max(1)
}
