//! What requests are validated against.

use std::sync::Arc;

use skein_proto::info::WorkerInfo;

use crate::TokenId;

/// Facts of the model that requests are validated against.
#[derive(Debug, Clone)]
pub(crate) struct ModelFacts {
    /// Served name of the model, for spans.
    pub name: Arc<str>,
    /// The answer to `Info`.
    pub info: WorkerInfo,
    pub eos_token_ids: Vec<TokenId>,
}
