//! Keys and values of all layers, in blocks of `block_size` slots.

use std::io;

use super::shared::Shared;
use super::{Cpu, for_each_row};
use crate::mapped::ZeroedF32;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// As computed.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// 8-bit integers, with an `f32` scale for each token's key and value of each head.
    Int8,
}

impl KvType {
    /// Bytes of one token's key, or value, of one head.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::Bf16 | Self::F16 => 2 * head_dim,
            Self::Int8 => head_dim + 4,
        }
    }
}

/// Shape of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Slots of a block.
    pub block_size: usize,
    /// Blocks.
    pub blocks: usize,
    /// How keys and values are kept.
    pub kind: KvType,
}

impl KvShape {
    /// Values of one block's part for one head: its keys, then its values.
    fn head_values(&self) -> usize {
        2 * self.head_dim * self.block_size
    }

    /// Values of one block in one layer.
    fn block_values(&self) -> usize {
        self.kv_heads * self.head_values()
    }

    /// Bytes of one block in all layers; `None` if that overflows.
    pub fn block_bytes(&self) -> Option<u64> {
        let values = [2, self.kind.head_bytes(self.head_dim), self.block_size, self.kv_heads, self.layers];
        values.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor as u64))
    }
}

/// The cache, `f32`. A block takes memory once it is written.
///
/// Layout `[layers][blocks][kv_heads]`, in each the keys `[head_dim][block_size]` and then the values
/// `[block_size][head_dim]`: keys lie across, so that one vector holds the same dimension of sixteen positions and a
/// score needs no sum over lanes.
pub struct KvCache {
    memory: ZeroedF32,
    shape: KvShape,
}

impl KvCache {
    /// An empty cache; an error if there is no address space for it.
    pub fn new(shape: KvShape) -> io::Result<Self> {
        let bytes = shape.block_bytes().and_then(|bytes| bytes.checked_mul(shape.blocks as u64));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { memory: ZeroedF32::new(bytes / size_of::<f32>())?, shape })
    }

    /// Its shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    fn start(&self, layer: usize, block: usize, head: usize) -> usize {
        let shape = &self.shape;
        assert!(layer < shape.layers && block < shape.blocks, "a block table names blocks of the cache");
        (layer * shape.blocks + block) * shape.block_values() + head * shape.head_values()
    }

    /// Keys `[head_dim][block_size]` and values `[block_size][head_dim]` of a block.
    #[inline]
    pub(super) fn keys_values(&self, layer: usize, block: usize, head: usize) -> (&[f32], &[f32]) {
        let start = self.start(layer, block, head);
        self.memory[start..start + self.shape.head_values()].split_at(self.shape.head_values() / 2)
    }

    /// Writes row `i`'s key and value to slot `slots[i]`. Rows of `x` have `stride` values; the keys of all heads start at
    /// `key`, the values follow them. Slots are distinct.
    pub fn write(
        &mut self,
        cpu: &mut Cpu,
        layer: usize,
        x: &[f32],
        stride: usize,
        key: usize,
        slots: &[u32],
    ) {
        let KvShape { kv_heads, head_dim, block_size, .. } = self.shape;
        let width = kv_heads * head_dim;
        assert!(x.len() == slots.len() * stride && key + 2 * width <= stride, "x is [slots, stride]");
        let starts = self.start(layer, 0, 0);
        let all = self.shape.blocks * self.shape.block_values();
        let (shape, layer) = (self.shape, Shared::new(&mut self.memory[starts..starts + all]));
        for_each_row(cpu, slots.len(), |row| {
            let (block, offset) = (slots[row] as usize / block_size, slots[row] as usize % block_size);
            let (keys, values) = x[row * stride + key..][..2 * width].split_at(width);
            for head in 0..kv_heads {
                let at = block * shape.block_values() + head * shape.head_values();
                let (keys, values) =
                    (&keys[head * head_dim..][..head_dim], &values[head * head_dim..][..head_dim]);
                // One value at a time, as other tasks write other slots of the same block.
                for (i, key) in keys.iter().enumerate() {
                    // SAFETY: slots are distinct, so no other row writes these values.
                    unsafe { layer.part(at + i * block_size + offset, 1)[0] = *key };
                }
                let at = at + head_dim * block_size + offset * head_dim;
                // SAFETY: as above.
                unsafe { layer.part(at, head_dim).copy_from_slice(values) };
            }
        });
    }

    /// Copies a block's keys and values, all layers.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        for layer in 0..self.shape.layers {
            let (from, to) = (self.start(layer, from, 0), self.start(layer, to, 0));
            self.memory.copy_within(from..from + self.shape.block_values(), to);
        }
    }
}
