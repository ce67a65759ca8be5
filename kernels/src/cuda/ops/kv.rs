//! The KV cache's layout and a step's sequences, shared by several operations.

use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice};

/// Slot of a padding row, for which no key and value are written.
pub const NO_SLOT: u32 = u32::MAX;

/// Element types of cached keys and values.
pub trait KvElement: Element {
    /// Part of the type's kernel names.
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

/// One layer's part of the paged KV cache: keys and values, each `[blocks, kv_heads, block_size, head_dim]`.
/// With latent attention, keys and values are the same memory, and keys of e4m3 have scales and a part in
/// 16 bits ([`super::latent::key_bytes`]). A token's slot is `block * block_size +
/// offset`.
#[derive(Debug, Clone, Copy)]
pub struct KvLayer<K> {
    /// Keys of the layer.
    pub keys: DeviceSlice<K>,
    /// Values of the layer.
    pub values: DeviceSlice<K>,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Tokens per block: a power of two from 8 to 256.
    pub block_size: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Factor from stored keys to keys; 1 unless stored as e4m3.
    pub key_scale: f32,
    /// Factor from stored values to values.
    pub value_scale: f32,
}

impl<K: KvElement> KvLayer<K> {
    /// The same memory as values of another type.
    pub fn cast<T: Element>(self) -> KvLayer<T> {
        let Self { keys, values, blocks, kv_heads, block_size, head_dim, key_scale, value_scale } = self;
        let (keys, values) = (keys.cast(), values.cast());
        KvLayer { keys, values, blocks, kv_heads, block_size, head_dim, key_scale, value_scale }
    }

    /// Checks the sizes; call it once, when the cache is planned.
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

/// The sequences of a step, in device memory. A graph has a fixed capacity; entries past the step's own
/// sequences have no rows and context length 0.
#[derive(Debug, Clone, Copy)]
pub struct StepSequences {
    /// `[capacity + 1]`: sequence `s` has the rows `row_starts[s]..row_starts[s + 1]`, at consecutive
    /// positions.
    pub row_starts: DeviceSlice<u32>,
    /// `[capacity]`: tokens that the sequence's last row attends to, including itself. Row `r` has position
    /// `context_len - (row_starts[s + 1] - r)`.
    pub context_lens: DeviceSlice<u32>,
    /// `[capacity, table_stride]`: block ids.
    pub block_tables: DeviceSlice<u32>,
    /// Entries from one sequence's table to the next.
    pub table_stride: usize,
    /// Number of sequences that there is space for.
    pub capacity: usize,
    /// Number of rows that there is space for.
    pub rows: usize,
}
