//! A request as the fleet sees it: what it costs and which blocks it could share; and its entry at a worker.

use skein_proto::TokenId;
use skein_proto::block_hash::{self, BlockHash};

use super::policy::Demand;
use super::worker_id::WorkerEpoch;

/// A request as the fleet sees it.
#[derive(Debug)]
pub struct Job {
    /// What its tokens ask of any worker.
    pub demand: Demand,
    /// Whether its prefix may be found in a cache. Not so when the prompt's log-probabilities are asked for.
    pub cacheable: bool,
    /// Its block hashes, for each block size in the fleet.
    pub chains: Vec<(u32, Vec<BlockHash>)>,
}

/// A request on its way to a worker.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// Where to.
    pub at: WorkerEpoch,
    /// This router's number for it; accounts count from one.
    pub sequence: u64,
}

impl Placement {
    /// A stream that is only read: nothing of it is in the worker's account.
    pub(crate) fn nothing(at: WorkerEpoch) -> Self {
        Self { at, sequence: 0 }
    }
}

impl Job {
    /// What is left of a request of which `delivered` is known, for a fleet with these block sizes. `root` is the hash
    /// before its first block.
    pub fn new(
        root: BlockHash,
        prompt: &[TokenId],
        delivered: &[TokenId],
        block_sizes: &[u32],
        demand: Demand,
    ) -> Self {
        let chain = |&size: &u32| (size, chain(root, prompt, delivered, size as usize));
        Self { demand, cacheable: true, chains: block_sizes.iter().map(chain).collect() }
    }

    /// Its block hashes for a worker with blocks of this size.
    pub(super) fn chain(&self, block_size: u32) -> Option<&[BlockHash]> {
        self.chains.iter().find(|(size, _)| *size == block_size).map(|(_, chain)| chain.as_slice())
    }
}

/// The hashes of every full block of `prompt` and then `delivered`. Only what follows the prompt's last full block is
/// copied.
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
    fn delivered_tokens_hash_as_if_they_stood_in_the_prompt() {
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
