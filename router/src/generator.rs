//! The seam between the edges (HTTP, gRPC) and the cluster: tokens go in, tokens come out.
//!
//! `Cluster` implements it over workers; the tests of the edges implement it with a script. Nothing on the far
//! side of this seam knows text, JSON or protobuf.

use futures::Stream;
use futures::future::BoxFuture;

use crate::capacity::Capacity;
use crate::refusal::Refusal;
use crate::request::{Journey, ModelLimits, TokenDelta, TokenRequest};

/// What generates tokens. Cheap to share behind an `Arc`.
pub trait Generator: Send + Sync + 'static {
    /// Admits, places and starts a request. An error here means that nothing was started.
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>>;
    /// What the model's workers can take; an error while none is ready.
    fn model_limits(&self) -> Result<ModelLimits, Refusal>;
    /// Whether a request would find a worker now.
    fn ready(&self) -> Result<(), Refusal>;
    /// What it is, seen as one large worker; an error while no worker is ready.
    fn capacity(&self) -> Result<Capacity, Refusal>;
    /// This process is about to leave: streams dropped from now on are not ended at their workers, so that clients take
    /// them up again through another router.
    fn leave(&self) {}
}

/// The deltas of all samples of one request. It ends after the last sample's finish; an error is its last item.
/// Dropping it cancels the request.
pub trait TokenSource: Stream<Item = Result<TokenDelta, Refusal>> + Send + Unpin {
    /// Ends one sample early (its stop string was seen). That sample sends a last delta with
    /// [`crate::request::FinishReason::Abort`] or nothing more; the others go on. Unknown and ended samples
    /// are ignored.
    fn abort_sample(&mut self, sample_index: u32);
    /// What happened on the way so far. Complete once the stream has ended.
    fn journey(&self) -> Journey {
        Journey::default()
    }
}
