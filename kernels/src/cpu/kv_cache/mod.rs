//! Keys and values of all layers, in blocks of `block_size` slots.

mod encode;
mod layout;
mod slots;

use std::io;

pub(super) use encode::{SMALLEST_IN_PAIRS, to_bf16};
pub(super) use layout::{Layout, TILE};
use slots::Slots;

use super::shared::Shared;
use super::{Cpu, for_each_row};
use skein_sys::mapped::ZeroedBytes;

/// How keys and values are kept. Roundings are to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// As computed.
    #[default]
    F32,
    /// bfloat16; magnitudes below 2^-55 become zero. Queries and the softmax's weights are rounded likewise.
    Bf16,
    /// IEEE half; finite values beyond its range become its largest, 65504.
    F16,
    /// 8-bit integers, with an `f32` scale for each token's key and value of each head: `max|x| / 127`.
    Int8,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::F16, Self::Int8];

    /// Bytes of one token's key, or value, of one head.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        Layout::new(self, head_dim).slot_bytes() / 2
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
    /// Bytes of one block in all layers; `None` if that overflows.
    pub fn block_bytes(&self) -> Option<u64> {
        let slot = Layout::new(self.kind, self.head_dim).slot_bytes();
        let factors = [slot, self.block_size, self.kv_heads, self.layers];
        factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor as u64))
    }

    /// Tiles of one head in one layer; `None` if that overflows.
    fn tiles(&self) -> Option<usize> {
        Some(self.blocks.checked_mul(self.block_size)?.div_ceil(TILE))
    }
}

/// The cache. A block takes memory once it is written.
///
/// Slots go in tiles of sixteen, whatever the block size: `[layers][tiles][kv_heads]`, each as [`Layout`] says. Where the
/// block size is a multiple of sixteen, a block is some whole tiles.
pub struct KvCache {
    memory: ZeroedBytes,
    shape: KvShape,
    layout: Layout,
    /// Tiles of one head in one layer.
    tiles: usize,
}

impl KvCache {
    /// An empty cache; an error if there is no address space for it.
    pub fn new(shape: KvShape) -> io::Result<Self> {
        let layout = Layout::new(shape.kind, shape.head_dim);
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let tiles = shape.tiles().ok_or_else(too_large)?;
        let factors = [shape.layers, shape.kv_heads, layout.bytes()];
        let bytes = factors.iter().try_fold(tiles, |product, factor| product.checked_mul(*factor));
        Ok(Self { memory: ZeroedBytes::new(bytes.ok_or_else(too_large)?)?, shape, layout, tiles })
    }

    /// Its shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// How its tiles are laid out.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of a tile with all heads.
    fn tile_bytes(&self) -> usize {
        self.shape.kv_heads * self.layout.bytes()
    }

    /// Where a layer starts.
    fn layer_start(&self, layer: usize) -> usize {
        assert!(layer < self.shape.layers, "the cache has layer {layer}");
        layer * self.tiles * self.tile_bytes()
    }

    /// Slots `16 * tile..` with one head.
    #[inline]
    pub(super) fn tile(&self, layer: usize, tile: usize, head: usize) -> &[u8] {
        assert!(tile < self.tiles && head < self.shape.kv_heads, "a block table names blocks of the cache");
        let bytes = self.layout.bytes();
        &self.memory[self.layer_start(layer) + tile * self.tile_bytes() + head * bytes..][..bytes]
    }

    /// Writes row `i`'s key and value to slot `slots[i]`. Rows of `x` have `stride` values; the keys of all heads start at
    /// `key`, the values follow them. Slots are distinct.
    ///
    /// # Panics
    /// If the shapes disagree or a slot is not one of the cache's.
    pub fn write(
        &mut self,
        cpu: &mut Cpu,
        layer: usize,
        x: &[f32],
        stride: usize,
        key: usize,
        slots: &[u32],
    ) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        assert!(x.len() == slots.len() * stride && key + 2 * width <= stride, "x is [slots, stride]");
        let (isa, slots_of) = (cpu.isa, self.slots(layer));
        for_each_row(cpu, slots.len(), |row| {
            let x = &x[row * stride + key..][..2 * width];
            // SAFETY: slots are distinct, and each row is in one task.
            isa.run(unsafe { slots_of.write(slots[row], x) });
        });
    }

    /// The slots of a layer, to be written by several tasks.
    pub(super) fn slots(&mut self, layer: usize) -> Slots<'_> {
        let (start, bytes) = (self.layer_start(layer), self.tiles * self.tile_bytes());
        let KvShape { kv_heads, head_dim, blocks, block_size, .. } = self.shape;
        Slots {
            count: blocks * block_size,
            kv_heads,
            head_dim,
            layout: self.layout,
            memory: Shared::new(&mut self.memory[start..start + bytes]),
        }
    }

    /// Copies a block's keys and values, all layers.
    ///
    /// # Panics
    /// If one of them is not a block of the cache.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        assert!(from.max(to) < self.shape.blocks, "blocks {from} and {to} are the cache's");
        let size = self.shape.block_size;
        for layer in 0..self.shape.layers {
            if size.is_multiple_of(TILE) {
                let bytes = size / TILE * self.tile_bytes();
                let start = self.layer_start(layer);
                self.memory.copy_within(start + from * bytes..start + (from + 1) * bytes, start + to * bytes);
            } else {
                (0..size).for_each(|i| self.copy_slot(layer, from * size + i, to * size + i));
            }
        }
    }

    fn copy_slot(&mut self, layer: usize, from: usize, to: usize) {
        let (layout, bytes) = (self.layout, self.layout.bytes());
        for head in 0..self.shape.kv_heads {
            let place =
                |slot: usize| self.layer_start(layer) + slot / TILE * self.tile_bytes() + head * bytes;
            let (from_tile, to_tile) = (place(from), place(to));
            layout.for_each_number(from % TILE, to % TILE, |from, to, bytes| {
                self.memory.copy_within(from_tile + from..from_tile + from + bytes, to_tile + to);
            });
        }
    }
}

#[cfg(test)]
mod tests;
