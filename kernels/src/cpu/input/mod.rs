//! Rows of activations in the encoding that a product reads. Whatever computes a row also encodes it, while
//! the row is still in the cache.

mod buffer;
mod encode;
mod encoding;

pub(super) use buffer::ColumnTasks;
pub use buffer::Input;
pub(super) use encode::Columns;
pub(super) use encoding::{CodeGroup, PARTS, ZERO};
pub use encoding::{Encoding, GROUP, INPUT_GROUP, Order};
