//! Replacing the workers by others with another version of the model, on request of an operator. Who started
//! the workers implements it.

use futures::future::BoxFuture;
use skein_proto::version::Version;

use crate::refusal::Refusal;

/// Where a new version of the model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Beside the running one: there is memory for both, and no request waits.
    Beside,
    /// In the place of the running one, whose workers end first. Generation must stand still.
    Instead,
}

/// Replaces the workers' model.
pub trait ModelSwaps: Send + Sync + 'static {
    /// Loads the model in the directory, or by the name, `model` and moves new requests to it. `None` = reads
    /// the model that runs again. Returns when new requests go to the new version; beside it, the old one
    /// ends its own. The swap goes on if the future is dropped.
    ///
    /// # Errors [`Refusal::Conflict`] during another swap, or if generation would have to stand still, and
    /// [`Refusal::Invalid`] with the reason if the model cannot be served; then the running version serves
    /// on.
    fn swap(&self, model: Option<String>, place: Place) -> BoxFuture<'_, Result<Swapped, Refusal>>;
}

/// A finished swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swapped {
    /// Version that new requests go to.
    pub version: Version,
    /// False if the files are those of the version that ran already.
    pub changed: bool,
    /// Requests that end on the old version.
    pub running_on_old: usize,
}
