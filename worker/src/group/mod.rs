//! Several ranks, a process each, that share one model and act as one [`Backend`](crate::backend::Backend).
//!
//! Rank 0, the leader, is the worker itself, with its engine. The other ranks act only on frames that it
//! writes: to check the loaded model, to run a step, to stop. All ranks draw every token, and no token is
//! used before all have drawn the same.
//!
//! Ranks end together: a rank's end, its silence, a late step or a differing token ends all of them, and the
//! worker with them. None can be spared, because only it has its part of the weights.

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
