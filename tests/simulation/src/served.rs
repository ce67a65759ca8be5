//! What a process serves: the worker's protocol, client requests, or both.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use skein_proto::version::Version;
use skein_router::refusal::Refusal;
use skein_router::request::{TokenDelta, TokenRequest};
use skein_worker::service::WorkerService;

/// A stream of tokens to a client, or the refusal that ended it.
pub type Tokens = BoxStream<'static, Result<Part, Refusal>>;

/// Part of an answer.
#[derive(Debug, Clone)]
pub struct Part {
    /// The new tokens.
    pub delta: TokenDelta,
    /// Version of the model that they are from.
    pub version: Version,
}

/// A request as a client sends it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The request itself.
    pub request: TokenRequest,
    /// By sample: number of tokens after which a stop string ends its text.
    pub stop_after: Vec<Option<u32>>,
    /// By sample: number of tokens that the client already has.
    pub has: Vec<u32>,
}

/// The part of a router that clients call; stands for the gateway.
pub trait Front: Send + Sync {
    /// Starts a request.
    fn submit(&self, ask: Ask) -> BoxFuture<'static, Result<Tokens, Refusal>>;
}

/// The services of one process.
#[derive(Default)]
pub struct Served {
    /// Service `skein.worker.v1.Worker`; `None` if the process is not a worker.
    pub worker: Option<WorkerService>,
    /// Service for clients; `None` if the process is not a router.
    pub front: Option<Arc<dyn Front>>,
}
