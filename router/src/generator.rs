//! The interface between the APIs and the cluster, in three parts: tokens go in and come out ([`Generator`]),
//! a view of the workers ([`FleetView`]), and what is done with adapters ([`Adapters`]).
//!
//! `Cluster` implements them over workers, the tests of the APIs with a script. Nothing behind them handles
//! text, JSON or protobuf.

use std::sync::Arc;

use futures::Stream;
use futures::future::BoxFuture;
use skein_choice::fleet::capacity::Capacity;
use skein_choice::fleet::{KnownAdapters, WorkerStatus};
use skein_choice::limits::ModelLimits;
use skein_proto::adapter::{AdapterId, AdapterRecord};
use skein_proto::pooling::PooledModel;
use skein_proto::totals::Total;
use skein_proto::version::Version;

use crate::admission::{Rejections, Running};
use crate::links::moves::LatestMoves;
use crate::links::picks::{Endpoints, Picked};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// Generates tokens. Shared behind an `Arc`.
pub trait Generator: Send + Sync + 'static {
    /// Admits, places and starts a request. On an error nothing was started.
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>>;
    /// Prepares for the exit of this process: streams dropped from now on are not ended at their workers, so
    /// that clients can resume them through another router.
    fn leave(&self);
}

/// What the APIs and the metrics see of the workers.
pub trait FleetView: Send + Sync + 'static {
    /// Picks a worker for a request that another process will send to it: the choice that
    /// [`submit`](Generator::submit) would make now.
    fn pick(&self, request: &TokenRequest, from: &Endpoints) -> Result<Picked, Refusal>;
    /// Limits that every ready worker accepts. While none is ready, the last known limits; an error if no
    /// worker was ever ready.
    fn model_limits(&self) -> Result<ModelLimits, Refusal>;
    /// The model's vectors, if it computes these instead of tokens. While no worker is ready, as last known;
    /// an error if no worker was ever ready.
    fn pooled(&self) -> Result<Option<Arc<PooledModel>>, Refusal>;
    /// Fails if no worker would accept a request now.
    fn ready(&self) -> Result<(), Refusal>;
    /// Capacity as if it were one large worker; an error while no worker is ready.
    fn capacity(&self) -> Result<Capacity, Refusal>;
    /// Version of the model that new requests go to; unknown if no worker says what it serves.
    fn version(&self) -> Version;
    /// State of the workers, for metrics.
    fn workers(&self) -> Vec<WorkerStatus>;
    /// Sums of the workers' counters, for metrics.
    fn totals(&self) -> Vec<Total>;
    /// Requests in flight, for metrics.
    fn running(&self) -> Running;
    /// Requests refused by a limit of the queue, for metrics.
    fn rejections(&self) -> Rejections;
    /// The latest moves of requests, oldest first.
    fn moves(&self) -> LatestMoves;
    /// Orders the worker of this name to give its requests to others and take no more, or to take requests
    /// again.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] if there is no such worker, [`Refusal::Conflict`] if no other one is ready or it
    /// does not obey.
    fn drain<'a>(&'a self, worker: &'a str, on: bool) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// Adapters of all workers, and their changes at run time.
pub trait Adapters: Send + Sync + 'static {
    /// Adapters that can be requested by name.
    fn known(&self) -> Arc<KnownAdapters>;
    /// Serves the adapter in a directory of the workers' machines from now on.
    fn load<'a>(&'a self, name: &'a str, path: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>>;
    /// Takes no more requests for an adapter.
    fn unload<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;
    /// All changes at run time that count, for gateways.
    fn records(&self) -> Vec<AdapterRecord>;
    /// Identity of the adapter in a directory of the workers' machines, if all could serve it by a name.
    fn check<'a>(&'a self, name: &'a str, path: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>>;
    /// Makes a gateway's change. An unloading that is not `is_repeated` counts only if a worker has the
    /// adapter; whether one has.
    fn change(&self, record: AdapterRecord, is_repeated: bool) -> BoxFuture<'_, Result<bool, Refusal>>;
}

/// The deltas of all samples of one request. The stream ends after the last sample's finish; an error is its
/// last item. Dropping it cancels the request.
pub trait TokenSource: Stream<Item = Result<TokenDelta, Refusal>> + Send + Unpin {
    /// Ends one sample early, because its stop string was seen. The sample sends a last delta with
    /// [`crate::request::FinishReason::Abort`] or nothing more; the others continue. Unknown and ended
    /// samples are ignored.
    fn abort_sample(&mut self, sample_index: u32);
    /// The call is refused although this request was accepted: its client pays nothing for it.
    fn refuse(&mut self) {}
    /// Name of the worker that generates now or generated last.
    fn worker(&self) -> Option<Arc<str>> {
        None
    }
    /// The request's moves so far; complete once the stream has ended.
    fn journey(&self) -> Journey {
        Journey::default()
    }
}
