//! Where keys and values lie, and which sequences a step has: what several operations share.

use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice};

/// Marks a row of padding: it writes no key and no value.
pub const NO_SLOT: u32 = u32::MAX;

/// Types that keys and values may be stored as.
pub trait KvElement: Element {
    /// Part of the names of its kernels.
    const SUFFIX: &'static str;
}

impl KvElement for half::bf16 {
    const SUFFIX: &'static str = "bf16";
}

impl KvElement for half::f16 {
    const SUFFIX: &'static str = "f16";
}

impl KvElement for E4m3 {
    const SUFFIX: &'static str = "e4m3";
}

/// One layer's part of the paged KV cache: keys and values each `[blocks, kv_heads, block_size, head_dim]`. Slot
/// `block * block_size + offset` names a token's place.
#[derive(Debug, Clone, Copy)]
pub struct KvLayer<K> {
    /// Keys.
    pub keys: DeviceSlice<K>,
    /// Values.
    pub values: DeviceSlice<K>,
    /// Blocks.
    pub blocks: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Tokens in a block: a power of two from 8 to 256.
    pub block_size: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// A stored key times this is the key (1 unless stored as e4m3).
    pub key_scale: f32,
    /// The same of values.
    pub value_scale: f32,
}

impl<K: KvElement> KvLayer<K> {
    /// Checks the sizes once, where the cache is planned.
    pub fn check(&self) -> Result<(), CudaError> {
        let Self { blocks, kv_heads, block_size, head_dim, .. } = *self;
        let values = blocks * kv_heads * block_size * head_dim;
        if self.keys.len() < values || self.values.len() < values {
            return Err(CudaError::invalid(format!(
                "a KV layer of {blocks} blocks x {kv_heads} heads x {block_size} tokens x {head_dim} needs {values} \
                 keys and values, and has {} and {}",
                self.keys.len(),
                self.values.len()
            )));
        }
        if !block_size.is_power_of_two() || !(8..=256).contains(&block_size) {
            return Err(CudaError::invalid(format!(
                "block size {block_size}: CUDA kernels take a power of two from 8 to 256; set --block-size 16"
            )));
        }
        Ok(())
    }
}

/// The sequences of a step, in device memory. Entries past the step's own sequences (a graph has room for a fixed number)
/// have no rows and context length 0.
#[derive(Debug, Clone, Copy)]
pub struct StepSequences {
    /// `[capacity + 1]`: the rows of sequence `s` are `row_starts[s]..row_starts[s + 1]`, consecutive positions.
    pub row_starts: DeviceSlice<u32>,
    /// `[capacity]`: tokens its last row attends to, itself included. Row `r` has position
    /// `context_len - (row_starts[s + 1] - r)`.
    pub context_lens: DeviceSlice<u32>,
    /// `[capacity, table_stride]`: block ids.
    pub block_tables: DeviceSlice<u32>,
    /// Entries between the tables of two sequences.
    pub table_stride: usize,
    /// Sequences there is room for.
    pub capacity: usize,
    /// Rows there is room for.
    pub rows: usize,
}
