//! What a worker serves. Constant within an epoch.

use crate::Malformed;
use crate::pooling::PooledModel;
use crate::same_fields::same_fields;
use crate::version::Version;
use crate::worker::v1 as wire;

/// Backend of a router that speaks for the workers behind it.
pub const ROUTER: &str = "router";

/// What a worker serves, and its limits.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as in skein.worker.v1.InfoResponse
pub struct WorkerInfo {
    pub epoch: u64,
    pub model: String,
    pub max_model_len: u32,
    pub vocab_size: u32,
    pub block_size: u32,
    pub kv_blocks: u32,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub resume_exact: bool,
    pub version: String,
    pub backend: String,
    pub fingerprint: u64,
    pub grammar_fingerprint: u64,
    pub tokenizer_fingerprint: u64,
    pub serving_since_ms: u64,
    /// The model's vectors, if it gives these instead of tokens.
    pub pooled: Option<PooledModel>,
}

impl WorkerInfo {
    /// Version of the model that it serves.
    pub fn model_version(&self) -> Version {
        Version(self.fingerprint)
    }
}

impl From<WorkerInfo> for wire::InfoResponse {
    fn from(info: WorkerInfo) -> Self {
        same_fields!(info:
            epoch, model, max_model_len, vocab_size, kv_blocks, max_num_seqs, max_num_batched_tokens, resume_exact, version,
            backend, grammar_fingerprint, tokenizer_fingerprint, serving_since_ms;
            block_size: info.block_size, model_fingerprint: info.fingerprint, pooled: info.pooled.map(Into::into)
        )
    }
}

impl TryFrom<wire::InfoResponse> for WorkerInfo {
    type Error = Malformed;

    fn try_from(info: wire::InfoResponse) -> Result<Self, Malformed> {
        // We divide by it: a worker that leaves it out must not crash its router.
        let block_size = info.block_size.max(1);
        let pooled = info.pooled.map(PooledModel::try_from).transpose()?;
        Ok(same_fields!(info:
            epoch, model, max_model_len, vocab_size, kv_blocks, max_num_seqs, max_num_batched_tokens, resume_exact, version,
            backend, grammar_fingerprint, tokenizer_fingerprint, serving_since_ms;
            block_size: block_size, fingerprint: info.model_fingerprint, pooled: pooled
        ))
    }
}
