//! A request as the fleet sees it: its cost and the blocks it could share; and its placement at a worker.

use std::sync::Arc;

use skein_proto::TokenId;
use skein_proto::adapter::AdapterId;
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::version::Version;

use crate::policy::Demand;
use crate::worker_id::WorkerEpoch;

/// Leading prompt tokens that determine the worker under consistent hashing.
const AFFINITY_TOKENS: usize = 64;

/// Properties of a request that determine its placement.
#[derive(Debug)]
pub struct Job {
    /// Its cost at any worker.
    pub demand: Demand,
    /// Whether its prefix may come from a cache: not if the prompt's log-probabilities are requested.
    pub cacheable: bool,
    /// Grammar fingerprint that the worker must have; 0 = any, for a request without a grammar.
    pub grammar_fingerprint: u64,
    /// Version of the model that the worker must serve; unknown = the one for new requests.
    pub version: Version,
    /// Adapter that the worker must have.
    pub adapter: Option<AdapterId>,
    /// Hash of the prompt's beginning: equal for requests that share it.
    pub affinity: u64,
    /// Its block hashes, for each block size in the fleet.
    pub chains: Vec<(u32, Vec<BlockHash>)>,
    /// Worker chosen by an endpoint picker; used if it accepts requests.
    pub picked: Option<Arc<str>>,
    /// Whether its choices are to be explained.
    pub explained: bool,
}

/// A request placed at a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPlacement {
    /// The worker and its epoch.
    pub at: WorkerEpoch,
    /// Sequence number in this router's ledger of the worker; starts at one. 0 = not in the ledger.
    pub sequence: u64,
}

impl WorkerPlacement {
    /// For a stream that is only read and not in the worker's ledger.
    pub fn outside_ledger(at: WorkerEpoch) -> Self {
        Self { at, sequence: 0 }
    }
}

impl Job {
    /// The rest of a request of which `delivered` is known, for a fleet with these block sizes. `root` is the
    /// parent hash of its first block.
    pub fn new(
        root: BlockHash,
        prompt: &[TokenId],
        delivered: &[TokenId],
        block_sizes: &[u32],
        demand: Demand,
    ) -> Self {
        let chain = |&size: &u32| (size, chain(root, prompt, delivered, size as usize));
        Self {
            demand,
            cacheable: true,
            grammar_fingerprint: 0,
            version: Version::UNKNOWN,
            adapter: None,
            affinity: block_hash::extend(root, &prompt[..prompt.len().min(AFFINITY_TOKENS)]),
            chains: block_sizes.iter().map(chain).collect(),
            picked: None,
            explained: false,
        }
    }

    /// The block hashes for a worker with this block size.
    pub(super) fn chain(&self, block_size: u32) -> Option<&[BlockHash]> {
        self.chains.iter().find(|(size, _)| *size == block_size).map(|(_, chain)| chain.as_slice())
    }
}

/// The hashes of all full blocks of `prompt` followed by `delivered`. Copies only from the prompt's last full
/// block on.
fn chain(root: BlockHash, prompt: &[TokenId], delivered: &[TokenId], block_size: usize) -> Vec<BlockHash> {
    let (blocks, rest) = prompt.split_at(prompt.len() - prompt.len() % block_size);
    let mut hashes = block_hash::chain(root, blocks, block_size);
    if !delivered.is_empty() {
        let parent = hashes.last().copied().unwrap_or(root);
        hashes.extend(block_hash::chain(parent, &[rest, delivered].concat(), block_size));
    }
    hashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivered_tokens_hash_as_if_part_of_the_prompt() {
        let tokens: Vec<TokenId> = (0..50).collect();
        for prompt in 1..50 {
            for block_size in [1, 3, 16, 64] {
                let (prompt, delivered) = tokens.split_at(prompt);
                let expected = block_hash::chain(7, &tokens, block_size);
                assert_eq!(chain(7, prompt, delivered, block_size), expected, "{prompt:?}, {block_size}");
            }
        }
    }
}
