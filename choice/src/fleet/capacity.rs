//! Total capacity of all ready workers, for gateways in front of several routers. Pure.

use skein_proto::info::WorkerInfo;
use skein_proto::pooling::PooledModel;

use super::WorkerStatus;
use crate::limits::ModelLimits;

/// Limits, sizes and load of the ready workers, as of one large worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// Limits that every ready worker accepts.
    pub limits: ModelLimits,
    /// The model's vectors, if it computes these instead of tokens.
    pub pooled: Option<PooledModel>,
    /// Fingerprint of the grammars if equal on all workers; otherwise 0.
    pub grammar_fingerprint: u64,
    /// Whether every worker resumes requests bit for bit.
    pub resume_exact: bool,
    /// Smallest KV block size, tokens.
    pub block_size: u32,
    /// Sum of KV blocks.
    pub kv_blocks: u32,
    /// Sum of sequences that run at once.
    pub max_num_seqs: u32,
    /// Sum of tokens in one step.
    pub max_num_batched_tokens: u32,
    /// Sum of blocks available to new requests.
    pub free_blocks: u32,
    /// Sum of queued prompt tokens that no cache holds.
    pub queued_uncached_tokens: u64,
    /// Sum of sequences running and waiting.
    pub sequences: u32,
    /// Sum of measured prefill rates, tokens a second; 0 = none measured.
    pub prefill_tokens_per_second: f32,
    /// Sum of measured decode rates, tokens a second; 0 = none measured.
    pub decode_tokens_per_second: f32,
}

impl Capacity {
    /// Sums up the ready workers; `None` if there are none.
    pub fn of(workers: &[WorkerStatus]) -> Option<Self> {
        let ready = workers.iter().filter(|worker| worker.is_ready());
        ready.filter_map(|worker| Some(Self::of_one(worker, worker.info.as_ref()?))).reduce(Self::with)
    }

    fn of_one(worker: &WorkerStatus, info: &WorkerInfo) -> Self {
        let load = &worker.load;
        Self {
            limits: ModelLimits::of(info),
            pooled: info.pooled.clone(),
            grammar_fingerprint: info.grammar_fingerprint,
            resume_exact: info.resume_exact,
            block_size: info.block_size,
            kv_blocks: info.kv_blocks,
            max_num_seqs: info.max_num_seqs,
            max_num_batched_tokens: info.max_num_batched_tokens,
            free_blocks: load.free_blocks,
            queued_uncached_tokens: load.queued_uncached_tokens,
            sequences: load.sequences,
            prefill_tokens_per_second: load.prefill_tokens_per_second,
            decode_tokens_per_second: load.decode_tokens_per_second,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            limits: self.limits.and(other.limits),
            pooled: self.pooled.or(other.pooled),
            grammar_fingerprint: if self.grammar_fingerprint == other.grammar_fingerprint {
                self.grammar_fingerprint
            } else {
                0
            },
            resume_exact: self.resume_exact && other.resume_exact,
            block_size: self.block_size.min(other.block_size),
            kv_blocks: self.kv_blocks.saturating_add(other.kv_blocks),
            max_num_seqs: self.max_num_seqs.saturating_add(other.max_num_seqs),
            max_num_batched_tokens: self.max_num_batched_tokens.saturating_add(other.max_num_batched_tokens),
            free_blocks: self.free_blocks.saturating_add(other.free_blocks),
            queued_uncached_tokens: self.queued_uncached_tokens.saturating_add(other.queued_uncached_tokens),
            sequences: self.sequences.saturating_add(other.sequences),
            prefill_tokens_per_second: self.prefill_tokens_per_second + other.prefill_tokens_per_second,
            decode_tokens_per_second: self.decode_tokens_per_second + other.decode_tokens_per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_proto::load::Load;

    use super::*;
    use crate::fleet::NotReady;
    use crate::ledger::CurrentLoad;

    fn worker(refuses: Option<NotReady>, max_model_len: u32, resume_exact: bool) -> WorkerStatus {
        let info = WorkerInfo {
            epoch: 1,
            model: "m".into(),
            max_model_len,
            vocab_size: 300,
            block_size: 16,
            kv_blocks: 100,
            max_num_seqs: 8,
            max_num_batched_tokens: 512,
            resume_exact,
            version: String::new(),
            backend: "fake".into(),
            fingerprint: 7,
            grammar_fingerprint: 9,
            tokenizer_fingerprint: 0,
            serving_since_ms: 0,
            pooled: None,
        };
        let load = CurrentLoad {
            queued_uncached_tokens: 5,
            sequences: 2,
            free_blocks: 40,
            prefill_tokens_per_second: 10.0,
            decode_tokens_per_second: 1.0,
        };
        let (id, address) = ("w".to_owned(), String::new());
        WorkerStatus {
            id,
            address,
            refuses,
            info: Some(info),
            load,
            reported: Load::default(),
            cached_blocks: 0,
        }
    }

    #[test]
    fn limits_are_the_least_and_capacity_the_sum_over_ready_workers() {
        let workers =
            vec![worker(None, 64, true), worker(None, 32, true), worker(Some(NotReady::Draining), 8, false)];
        let capacity = Capacity::of(&workers).unwrap();
        assert_eq!((capacity.limits.max_model_len, capacity.resume_exact), (32, true));
        assert_eq!((capacity.kv_blocks, capacity.max_num_seqs, capacity.free_blocks), (200, 16, 80));
        assert_eq!((capacity.sequences, capacity.decode_tokens_per_second), (4, 2.0));
        let mixed = vec![worker(None, 64, true), worker(None, 64, false)];
        assert!(!Capacity::of(&mixed).unwrap().resume_exact);
        assert_eq!(Capacity::of(&[worker(Some(NotReady::Silent), 64, true)]), None);
    }
}
