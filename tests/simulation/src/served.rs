//! What a process answers to: the worker's protocol, a client's requests, or both.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use skein_router::links::transport::Transport;
use skein_router::refusal::Refusal;
use skein_router::request::{TokenDelta, TokenRequest};

/// Tokens on their way to a client, or what ended them.
pub type Tokens = BoxStream<'static, Result<TokenDelta, Refusal>>;

/// A request as a client sends it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The request.
    pub request: TokenRequest,
    /// By sample: after so many tokens a stop string would have been seen; its text ends there.
    pub stop_after: Vec<Option<u32>>,
    /// By sample: tokens the client has already.
    pub has: Vec<u32>,
}

/// The front of a router, as the gateway would serve it.
pub trait Front: Send + Sync {
    /// Starts a request.
    fn submit(&self, ask: Ask) -> BoxFuture<'static, Result<Tokens, Refusal>>;
}

/// See the module's description.
#[derive(Default)]
pub struct Served {
    /// `skein.worker.v1.Worker`.
    pub worker: Option<Arc<dyn Transport>>,
    /// What clients call.
    pub front: Option<Arc<dyn Front>>,
}
