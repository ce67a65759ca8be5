//! What happens to a fleet, and what it wants done about it.

use skein_node::discovery::Change;
use skein_proto::info::WorkerInfo;
use skein_proto::watch::WatchEvent;

use super::breaker::Outcome;
use super::job::Placement;
use super::prefix_index::Desync;
use super::worker::Refused;
use super::worker_id::{WorkerEpoch, WorkerId};

/// What happens to a fleet.
#[derive(Debug)]
pub enum Event {
    /// Discovery says who belongs.
    Member(Change),
    /// A link has read what its worker serves.
    Connected(WorkerId, WorkerInfo),
    /// A link has an entry of its worker's log.
    Watched(WorkerId, WatchEvent),
    /// A link has lost its worker.
    Lost(WorkerId),
    /// A placement has given its first token.
    FirstToken(Placement),
    /// A dispatch to a worker went so.
    Dispatched(WorkerEpoch, Outcome),
    /// A worker has given a request back: it drains.
    HandedBack(WorkerEpoch),
    /// Time has passed.
    Tick,
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a link to a new worker.
    Follow(WorkerId, String),
    /// End the link to one that left.
    Unfollow(WorkerId),
    /// Open the watch again, from where [`super::Fleet::watch_from`] says.
    Resubscribe(WorkerId),
    /// Connect again and read `Info`: the worker has started anew.
    Reconnect(WorkerId),
    /// Do not wait before the next try to connect: discovery has just named the worker again.
    Hurry(WorkerId),
    /// A worker takes requests that did not before: wake those who wait.
    Wake,
    /// A worker is lost, for now or for good, or asks for its streams to go elsewhere: its streams should ask
    /// [`super::Fleet::is_stuck`] and [`super::Fleet::should_leave`].
    Recheck(WorkerId),
    /// Write this to the log.
    Log(Notice),
}

/// What an operator should read about a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The named worker is not used.
    NotUsed(String, Refused),
    /// The named worker is silent, or its engine stands still.
    Lost(String),
    /// The prefix index does not match the worker's log; a snapshot is asked for.
    OutOfStep(WorkerId, Desync),
}
