//! Results that were saved as JSON: read, compared as a table, drawn as plots.

mod comparison;
mod error;
mod file;
mod plots;

pub use comparison::{Row, comparison, side_by_side};
pub use error::SavedError;
pub use file::{Saved, read_all, read_json, stem};
pub use plots::plots;

#[cfg(test)]
mod tests;
