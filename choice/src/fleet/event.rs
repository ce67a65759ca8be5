//! Inputs and outputs of the fleet.

use skein_node::discovery::{Change, Member};
use skein_proto::info::WorkerInfo;
use skein_proto::runs::RunStored;
use skein_proto::version::Version;
use skein_proto::watch::WatchEvent;

use super::job::WorkerPlacement;
use super::loss::Loss;
use super::worker::NotReady;
use crate::breaker::Outcome;
use crate::prefix_index::Desync;
use crate::worker_id::{WorkerEpoch, WorkerId};

/// An input of the fleet.
#[derive(Debug)]
pub enum Event {
    /// Discovery reports a member's join or leave.
    Member(Change),
    /// A link has read its worker's info.
    Connected(WorkerId, WorkerInfo),
    /// A link has read an event of its worker's log.
    Watched(WorkerId, WatchEvent),
    /// More runs of a snapshot whose first part the link has already delivered, parents before children.
    SnapshotPart(WorkerEpoch, Vec<RunStored>),
    /// A link has lost its worker.
    Lost(WorkerId),
    /// A placement has sent its first token.
    FirstToken(WorkerPlacement),
    /// The outcome of a dispatch to a worker.
    Dispatched(WorkerEpoch, Outcome),
    /// A draining worker has handed a request back.
    HandedBack(WorkerEpoch),
    /// Time has passed.
    Tick,
}

impl Event {
    /// Worker that the event concerns; `None` = several, or a member by name.
    pub(super) fn worker(&self) -> Option<WorkerId> {
        match self {
            Self::Connected(id, _) | Self::Watched(id, _) | Self::Lost(id) => Some(*id),
            Self::SnapshotPart(at, _) | Self::Dispatched(at, _) | Self::HandedBack(at) => Some(at.worker),
            Self::FirstToken(placement) => Some(placement.at.worker),
            Self::Member(_) | Self::Tick => None,
        }
    }
}

/// What the caller must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a link to a new worker at this address.
    Follow(WorkerId, String),
    /// Close the link to a worker that left.
    Unfollow(WorkerId),
    /// Reopen the watch, from [`super::Fleet::watch_from`].
    Resubscribe(WorkerId),
    /// Reconnect and read `Info`: the worker has restarted.
    Reconnect(WorkerId),
    /// Retry a broken connection at once: discovery has just announced the worker again.
    Hurry(WorkerId),
    /// A worker has become ready: wake the waiting requests.
    Wake,
    /// A full worker now has a free seat: call a request that waits for one.
    SeatFree,
    /// A worker is lost, for now or for good, or hands its streams back: its streams should check
    /// [`super::Fleet::is_stuck`] and [`super::Fleet::should_leave`].
    Recheck(WorkerId),
    /// A worker is silent, unreachable, or its engine is stuck: its supervisor, if any, should replace it.
    Lost(Member),
    /// Write this to the log.
    Log(Notice),
}

/// News of a worker for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The named worker is not used, for this reason.
    NotUsed(String, NotReady),
    /// The named worker serves a version of the model that no other worker of the fleet serves.
    Version(String, Version),
    /// The named worker cannot constrain answers: its tokenizer or its release is not the router's.
    OtherGrammars(String),
    /// The named worker is lost.
    Lost(String, Loss),
    /// The named worker has drained and is gone.
    Left(String),
    /// The prefix index does not match the worker's log; a snapshot is requested.
    OutOfStep(WorkerId, Desync),
}
