//! Several ranks, a process each, that share one model and act as one [`Backend`](crate::backend::Backend).
//!
//! Rank 0 is the worker itself, with its engine; it leads. Whatever makes a rank exchange data with the
//! others is a frame that the leader writes: the check of the loaded model, every step, the end. All ranks
//! draw every token, and no token is used before all have drawn the same.
//!
//! Ranks end together: a rank's end, its silence, a late step or a differing token ends all of them, and the
//! worker with them. A rank alone is of no use, as nobody else has its part of the weights.

mod follower;
mod frame;
mod leader;
mod memory;
mod processes;
mod pulse;
#[cfg(test)]
mod tests;
mod watch;
mod words;

pub use follower::{RankError, follow};
pub use leader::Leader;
pub use memory::GroupMemory;
pub use processes::{Answer, Processes, RankCommand, Terms, Welcome, join, this_binary};
pub use pulse::{BEAT, SILENCE};
pub use watch::Watch;
