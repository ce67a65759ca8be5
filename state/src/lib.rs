//! Stored answers of the Responses API. A client names the answer that its next turn continues; a [`Store`]
//! returns that answer and all turns before it.
//!
//! A turn belongs to an owner, and only the owner finds it. Turns that continue each other form a tree, which
//! is kept or removed as a whole: after its last use has expired, or when the store is full and its owner has
//! the most bytes.
//!
//! Knows SQLite, files and threads. Knows nothing of HTTP, models, keys or what an answer contains.

mod counts;
mod error;
mod files;
pub mod limits;
mod order;
mod room;
mod schema;
mod store;
#[cfg(test)]
mod tests;
mod turn;
mod turns;
mod writer;

pub use counts::Counts;
pub use error::StateError;
pub use files::lock_file;
pub use limits::Limits;
pub use order::Clock;
pub use schema::check_file;
pub use store::Store;
pub use turn::{NewTurn, Turn, Unanswered};
