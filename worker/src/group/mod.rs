//! Several ranks, one process each, that share a model and act as one [`Backend`](crate::backend::Backend).
//!
//! Rank 0, the leader, is the worker itself, with its engine. It writes frames: check the loaded model,
//! check, read or forget an adapter, run a step, stop. The other ranks only execute frames. All ranks draw
//! every token, and a token is used only after all have drawn the same one.
//!
//! Ranks on other nodes are reached over TCP. Each node has a process that relays the leader's frames and its
//! ranks' answers (`follower_node`); ranks that exchange data connect directly (`mesh`). The stages of a
//! pipeline pass rows over links, and the ranks of the last stage draw tokens.
//!
//! Ranks end together: an exit, a missed heartbeat, a late step or a differing token ends all of them, and
//! the worker with them. No rank is replaceable, because only it holds its part of the weights.

mod adapters;
mod connection;
mod doorway;
mod follower;
mod follower_node;
mod frame;
mod heartbeat;
pub(crate) mod hello;
mod leader;
mod memory;
mod mesh;
mod nodes;
mod processes;
mod rendezvous;
mod sender;
mod stranger;
#[cfg(test)]
mod tests;
mod topology;
mod watch;
mod wire;
pub(crate) mod words;

pub use adapters::{Followed, RankAdapters, RankReader};
pub use follower::{RankError, follow};
pub use follower_node::{GroupEnd, NodeSettings, serve_group};
pub use heartbeat::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT};
pub use hello::{Hello, random};
pub use leader::Leader;
pub use memory::{GroupMemory, NodePlan};
pub use mesh::{Member, Peers, TOKEN_BYTES, connect, listen};
pub use nodes::Nodes;
pub use processes::{Answer, Processes, RankProcess, Terms, Welcome, join, this_binary};
pub use rendezvous::{Lock, gather};
pub use sender::FrameSender;
pub use stranger::Joined;
pub use topology::Topology;
pub use watch::Watch;
pub use wire::Kind;
