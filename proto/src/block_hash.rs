//! The hash that names a prefix block. Router and worker must compute the same one, bit for bit.
//!
//! `h_i = XXH3-64(tokens_i as little-endian u32, seed = h_{i-1})` over blocks of `block_size` tokens, where
//! `h_{-1}` hashes (model, adapter, cache salt). XXH3 is not collision resistant. A collision may mislead a
//! router, so a worker's cache also compares the tokens before it shares a block.
//!
//! Specification: XXH3-64 of xxHash 0.8 with a seed. The golden vectors in `testdata/block_hash.json` come
//! from the Python `xxhash` package.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The chained hash of a full block and everything before it.
pub type BlockHash = u64;

/// Hash before the first block. It depends on model, adapter and salt, so that equal tokens with different
/// ones have different hashes.
pub fn root(model: &str, adapter: &str, cache_salt: &str) -> BlockHash {
    let mut bytes = Vec::with_capacity(model.len() + adapter.len() + cache_salt.len() + 2);
    bytes.extend_from_slice(model.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(adapter.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(cache_salt.as_bytes());
    xxh3_64_with_seed(&bytes, 0)
}

/// The hash of the block that follows `parent` and holds `tokens`.
pub fn extend(parent: BlockHash, tokens: &[u32]) -> BlockHash {
    // 64 tokens cover every block size in use; larger blocks go to the heap.
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

/// The hash of every full block of `tokens`, in order. A partial last block has none.
pub fn chain(root: BlockHash, tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    tokens
        .chunks_exact(block_size)
        .scan(root, |parent, block| {
            *parent = extend(*parent, block);
            Some(*parent)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors were made with the Python `xxhash` package by `tests/golden/make.py`.
    #[test]
    fn agrees_with_the_golden_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../testdata/block_hash.json")).unwrap();
        let vectors = vectors["vectors"].as_array().or_else(|| vectors.as_array()).unwrap();
        assert!(vectors.len() >= 5);
        let number = |value: &serde_json::Value| value.as_str().unwrap().parse::<u64>().unwrap();
        for vector in vectors {
            let field = |name: &str| vector[name].as_str().unwrap();
            let root = root(field("model"), field("adapter"), field("cache_salt"));
            assert_eq!(root, number(&vector["root"]));
            let tokens: Vec<u32> = vector["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(|token| token.as_u64().unwrap() as u32)
                .collect();
            let hashes: Vec<u64> = vector["hashes"].as_array().unwrap().iter().map(number).collect();
            assert_eq!(chain(root, &tokens, 16), hashes);
        }
    }

    #[test]
    fn a_long_block_hashes_like_its_bytes() {
        let tokens: Vec<u32> = (0..100).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        assert_eq!(extend(7, &tokens), xxh3_64_with_seed(&bytes, 7));
        assert_eq!(extend(7, &tokens[..64]), xxh3_64_with_seed(&bytes[..256], 7));
    }
}
