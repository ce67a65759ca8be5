//! The number of a start.

use skein_node::random;

/// A random epoch, different at each start.
pub(crate) fn draw_epoch() -> u64 {
    random::seed().max(1)
}
