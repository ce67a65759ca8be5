//! Several ranks, a process each, that share one model and act as one [`Backend`](crate::backend::Backend).
//!
//! Rank 0, the leader, is the worker itself, with its engine. The other ranks act only on frames that it
//! writes: to check the loaded model, to run a step, to stop. All ranks draw every token, and no token is
//! used before all have drawn the same.
//!
//! Ranks on other nodes are reached over TCP: each node has a process that passes on the leader's frames and
//! its ranks' answers (`follower_node`), and ranks that exchange data are connected directly (`mesh`). A
//! pipeline's stages pass rows on over links, and the ranks of the last stage draw.
//!
//! Ranks end together: a rank's end, its silence, a late step or a differing token ends all of them, and the
//! worker with them. None can be spared, because only it has its part of the weights.

mod follower;
mod follower_node;
mod frame;
mod leader;
mod memory;
mod mesh;
mod nodes;
mod processes;
mod pulse;
mod rendezvous;
#[cfg(test)]
mod tests;
mod topology;
mod watch;
mod wire;
mod words;

pub use follower::{RankError, follow};
pub use follower_node::{GroupEnd, NodeSettings, serve_group};
pub use leader::Leader;
pub use memory::{GroupMemory, NodePlan};
pub use mesh::{Member, Peers, TOKEN_BYTES, connect, listen};
pub use nodes::Nodes;
pub use processes::{
    Answer, CudaWelcome, Processes, RankCommand, RankProcess, Terms, Welcome, join, this_binary,
};
pub use pulse::{BEAT, SILENCE};
pub use rendezvous::{Hello, Joined, Setting, gather, random};
pub use topology::Topology;
pub use watch::Watch;
pub use wire::Kind;
