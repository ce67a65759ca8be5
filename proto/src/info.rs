//! What a worker serves, constant within an epoch.

use crate::worker::v1 as wire;

/// What a worker serves.
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
}

impl From<WorkerInfo> for wire::InfoResponse {
    fn from(info: WorkerInfo) -> Self {
        Self {
            epoch: info.epoch,
            model: info.model,
            max_model_len: info.max_model_len,
            vocab_size: info.vocab_size,
            block_size: info.block_size,
            kv_blocks: info.kv_blocks,
            max_num_seqs: info.max_num_seqs,
            max_num_batched_tokens: info.max_num_batched_tokens,
            resume_exact: info.resume_exact,
            version: info.version,
            backend: info.backend,
            model_fingerprint: info.fingerprint,
        }
    }
}

impl From<wire::InfoResponse> for WorkerInfo {
    fn from(info: wire::InfoResponse) -> Self {
        Self {
            epoch: info.epoch,
            model: info.model,
            max_model_len: info.max_model_len,
            vocab_size: info.vocab_size,
            // Divided by: a worker that says nothing must not end its router.
            block_size: info.block_size.max(1),
            kv_blocks: info.kv_blocks,
            max_num_seqs: info.max_num_seqs,
            max_num_batched_tokens: info.max_num_batched_tokens,
            resume_exact: info.resume_exact,
            version: info.version,
            backend: info.backend,
            fingerprint: info.model_fingerprint,
        }
    }
}
