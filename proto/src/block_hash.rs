//! The identity of a prefix block, the same in router and worker, bit for bit.
//!
//! `h_i = XXH3-64(tokens_i as little-endian u32, seed = h_{i-1})` over blocks of `block_size` tokens, where
//! `h_{-1}` hashes (model, adapter, cache salt). XXH3 is not collision resistant: a router may be misled by a
//! collision, so a worker's cache compares the tokens too before it shares a block.
//!
//! Specification: XXH3-64 of xxHash 0.8 with a seed; golden vectors in `testdata/block_hash.json` come from the
//! Python `xxhash` package.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The chained hash of a full block and of everything before it.
pub type BlockHash = u64;

/// The hash before the first block. Equal tokens under another model, adapter or salt share nothing.
pub fn root(model: &str, adapter: &str, cache_salt: &str) -> BlockHash {
    let mut bytes = Vec::with_capacity(model.len() + adapter.len() + cache_salt.len() + 2);
    bytes.extend_from_slice(model.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(adapter.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(cache_salt.as_bytes());
    xxh3_64_with_seed(&bytes, 0)
}

/// The hash of the block that holds `tokens` and follows `parent`.
pub fn extend(parent: BlockHash, tokens: &[u32]) -> BlockHash {
    // 64 tokens cover every block size in use; longer ones take the heap.
    let mut buffer = [0u8; 256];
    if tokens.len() * 4 <= buffer.len() {
        for (chunk, token) in buffer.chunks_exact_mut(4).zip(tokens) {
            chunk.copy_from_slice(&token.to_le_bytes());
        }
        xxh3_64_with_seed(&buffer[..tokens.len() * 4], parent)
    } else {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, parent)
    }
}

/// The hashes of every full block of `tokens`, first to last; a partial last block has none.
pub fn chain(root: BlockHash, tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    tokens
        .chunks_exact(block_size)
        .scan(root, |parent, block| {
            *parent = extend(*parent, block);
            Some(*parent)
        })
        .collect()
}
