//! Hasher of the index's tables.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use skein_proto::block_hash::BlockHash;

/// Table keyed by block hashes, or by numbers that a client can choose.
pub(super) type ByHash<T> = HashMap<BlockHash, T, Mixed>;

/// Block hashes are uniform, but clients choose prompts and thereby hashes. Multiplication by a random number
/// prevents deliberate collisions in the table.
#[derive(Debug, Clone)]
pub(super) struct Mixed(u64);

impl Default for Mixed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u8) | 1)
    }
}

impl BuildHasher for Mixed {
    type Hasher = Mixer;
    fn build_hasher(&self) -> Mixer {
        Mixer { key: self.0, hash: 0 }
    }
}

pub(super) struct Mixer {
    key: u64,
    hash: u64,
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let wide = u128::from(self.hash ^ self.key) * u128::from(self.key);
        (wide as u64) ^ (wide >> 64) as u64
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.hash = self.hash.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, hash: u64) {
        self.hash = hash;
    }
}

/// Releases memory of a table that has become nearly empty.
pub(super) fn shrink<T>(table: &mut ByHash<T>) {
    const SMALL: usize = 64;
    if table.capacity() > SMALL && table.len() * 8 < table.capacity() {
        table.shrink_to(table.len() * 2);
    }
}
