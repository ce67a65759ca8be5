//! The paged KV cache: keys and values of all layers, in blocks of `block_size` slots.

mod encode;
mod kind;
mod layout;
mod slots;

use std::io;

pub(super) use encode::{SMALLEST_IN_PAIRS, to_bf16};
pub use kind::KvType;
pub(super) use layout::{Layout, TILE};
use slots::Slots;

use super::disjoint::DisjointMut;
use super::{Cpu, for_each_row};
use skein_sys::mapped::ZeroedBytes;

/// Dimensions and number type of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of layers.
    pub layers: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// In a latent cache, the dimensions at the start of a key that are its value; `None` if values are
    /// stored.
    pub latent: Option<usize>,
    /// Slots per block.
    pub block_size: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Type of the cached numbers.
    pub kind: KvType,
}

impl KvShape {
    /// Bytes of one block in all layers; `None` on overflow.
    pub fn block_bytes(&self) -> Option<u64> {
        let slot = self.layout().slot_bytes();
        let factors = [slot, self.block_size, self.kv_heads, self.layers];
        factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor as u64))
    }

    /// Size of a whole cache, in bytes; `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let tile = self.layout().bytes();
        let factors = [self.layers, self.kv_heads, tile];
        let tiles = self.tiles()? as u64;
        factors.iter().try_fold(tiles, |product, factor| product.checked_mul(*factor as u64))
    }

    /// Dimensions of a value.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Numbers that are written to a slot: the keys of all heads, and the values that are stored.
    pub(super) fn written(&self) -> usize {
        self.kv_heads * self.head_dim * if self.latent.is_some() { 1 } else { 2 }
    }

    fn layout(&self) -> Layout {
        assert!(self.latent.is_none_or(|dims| dims <= self.head_dim), "a value is a part of its key");
        Layout { latent: self.latent, ..Layout::new(self.kind, self.head_dim) }
    }

    /// Tiles of one head in one layer; `None` on overflow.
    fn tiles(&self) -> Option<usize> {
        Some(self.blocks.checked_mul(self.block_size)?.div_ceil(TILE))
    }
}

/// The KV cache. A block uses physical memory once written.
///
/// Slots are grouped in tiles of sixteen at any block size: `[layers][tiles][kv_heads]`, each tile as
/// [`Layout`] describes. If the block size is a multiple of sixteen, a block consists of whole tiles.
pub struct KvCache {
    memory: ZeroedBytes,
    shape: KvShape,
    layout: Layout,
    /// Tiles of one head in one layer.
    tiles: usize,
}

impl KvCache {
    /// An empty cache. Fails if there is not enough address space.
    pub fn new(shape: KvShape) -> io::Result<Self> {
        let layout = shape.layout();
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let tiles = shape.tiles().ok_or_else(too_large)?;
        let bytes = shape.bytes().and_then(|bytes| usize::try_from(bytes).ok());
        Ok(Self { memory: ZeroedBytes::new(bytes.ok_or_else(too_large)?)?, shape, layout, tiles })
    }

    /// Size of the cache, in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Dimensions and number type.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Layout of the tiles.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of a tile in all heads.
    fn tile_bytes(&self) -> usize {
        self.shape.kv_heads * self.layout.bytes()
    }

    /// Byte offset of a layer.
    fn layer_start(&self, layer: usize) -> usize {
        assert!(layer < self.shape.layers, "layer {layer} is outside the cache");
        layer * self.tiles * self.tile_bytes()
    }

    /// The tile of one head with slots `16 * tile..`.
    #[inline]
    pub(super) fn tile(&self, layer: usize, tile: usize, head: usize) -> &[u8] {
        assert!(tile < self.tiles && head < self.shape.kv_heads, "the block table points outside the cache");
        let bytes = self.layout.bytes();
        &self.memory[self.layer_start(layer) + tile * self.tile_bytes() + head * bytes..][..bytes]
    }

    /// Writes row `i`'s key and value to slot `slots[i]`. A row of `x` has `stride` values; the keys of all
    /// heads start at `key`, and the values follow, unless the cache is latent. All slots must be different.
    ///
    /// # Panics
    /// If the shapes disagree or a slot is outside the cache.
    pub fn write(
        &mut self,
        cpu: &mut Cpu,
        layer: usize,
        x: &[f32],
        stride: usize,
        key: usize,
        slots: &[u32],
    ) {
        let written = self.shape.written();
        assert!(x.len() == slots.len() * stride && key + written <= stride, "x is [slots, stride]");
        let (isa, slots_of) = (cpu.isa, self.slots(layer));
        for_each_row(cpu, slots.len(), |row| {
            let x = &x[row * stride + key..][..written];
            // SAFETY: slots are distinct, and each row is in one task.
            isa.run(unsafe { slots_of.write(slots[row], x) });
        });
    }

    /// The slots of a layer, for several tasks to write.
    pub(super) fn slots(&mut self, layer: usize) -> Slots<'_> {
        let (start, bytes) = (self.layer_start(layer), self.tiles * self.tile_bytes());
        let KvShape { kv_heads, head_dim, blocks, block_size, .. } = self.shape;
        Slots {
            count: blocks * block_size,
            kv_heads,
            head_dim,
            layout: self.layout,
            memory: DisjointMut::new(&mut self.memory[start..start + bytes]),
        }
    }

    /// Copies a block's keys and values in all layers.
    ///
    /// # Panics
    /// If `from` or `to` is outside the cache.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        assert!(
            from.max(to) < self.shape.blocks,
            "blocks {from} and {to} are within {} blocks",
            self.shape.blocks
        );
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
