//! KV cache on a device: a plane of keys and a plane of values per layer, in this order; with latent
//! attention only keys, which start with the values. Layers with a window may have blocks of their own, in
//! planes behind the others.

use skein_kernels::cuda::ops::block_copy::BlockPlanes;
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer};
use skein_kernels::cuda::ops::latent::key_bytes;
use skein_kernels::cuda::{CudaError, DeviceSlice};

use crate::checkpoint::quantised::KvScales;
use crate::kv_blocks::{KvBlocks, KvTokenBytes};
use crate::spec::Spec;

/// Bytes of a block of `block_size` tokens in one plane.
pub fn plane_block_bytes<K: KvElement>(spec: &Spec, block_size: u32) -> usize {
    plane_token_bytes::<K>(spec) * block_size as usize
}

/// Bytes of a token in one plane.
fn plane_token_bytes<K: KvElement>(spec: &Spec) -> usize {
    match spec.attention.latent {
        None => spec.attention.kv_width() * size_of::<K>(),
        Some(latent) => key_bytes::<K>(latent.rank, latent.rotated),
    }
}

/// Bytes of a token in the planes of all layers.
pub fn token_bytes<K: KvElement>(spec: &Spec) -> KvTokenBytes {
    let rows = spec.attention.cached_rows();
    let of = |layers: usize| (rows * layers * plane_token_bytes::<K>(spec)) as u64;
    let windowed = spec.windowed_layers();
    KvTokenBytes { main: of(spec.layers.len() - windowed), windowed: of(windowed) }
}

/// The planes of layers that share blocks.
#[derive(Debug, Clone, Copy)]
pub struct Planes {
    /// Where they are.
    pub planes: BlockPlanes,
    /// Number of planes.
    pub count: usize,
}

/// Planes of all layers.
#[derive(Debug, Clone, Copy)]
pub struct CachePlanes {
    /// Layers without a window, or all.
    pub main: Planes,
    /// Layers with a window, if they have blocks apart.
    pub windowed: Option<Planes>,
    /// Bytes of a block in one plane.
    pub block_bytes: usize,
}

impl CachePlanes {
    /// Divides `memory` among the layers of `spec`.
    pub fn new(spec: &Spec, memory: DeviceSlice<u8>, block_bytes: usize, blocks: KvBlocks) -> Self {
        let (mut start, rows) = (0, spec.attention.cached_rows());
        let mut take = |layers: usize, blocks: u32| {
            let (count, blocks) = (rows * layers, blocks as usize);
            let plane_bytes = blocks * block_bytes;
            let end = start + count * plane_bytes;
            let planes = BlockPlanes { memory: memory.slice(start..end), plane_bytes, blocks };
            start = end;
            Planes { planes, count }
        };
        let windowed_layers = blocks.window.map_or(0, |_| spec.windowed_layers());
        let main = take(spec.layers.len() - windowed_layers, blocks.blocks);
        let windowed = blocks.window.map(|window| take(windowed_layers, window.blocks));
        Self { main, windowed, block_bytes }
    }

    /// The planes of each layer, with the scales of what they store.
    ///
    /// # Errors
    /// If the kernels do not support their shape.
    pub fn layers<K: KvElement>(
        &self,
        spec: &Spec,
        block_size: u32,
        scales: &[KvScales],
    ) -> Result<Vec<KvLayer<K>>, CudaError> {
        let mut used = [0; 2];
        let layer = |(has_window, scales): (bool, &KvScales)| {
            let windowed = self.windowed.filter(|_| has_window);
            let (Planes { planes, .. }, used) = match windowed {
                Some(windowed) => (windowed, &mut used[1]),
                None => (self.main, &mut used[0]),
            };
            let mut plane = || {
                let start = *used * planes.plane_bytes;
                *used += 1;
                planes.memory.slice(start..start + planes.plane_bytes).cast::<K>()
            };
            let keys = plane();
            let layer = KvLayer {
                keys,
                values: if spec.attention.latent.is_some() { keys } else { plane() },
                blocks: planes.blocks,
                kv_heads: spec.attention.kv_heads,
                block_size: block_size as usize,
                head_dim: spec.attention.head_dim,
                key_scale: scales.key,
                value_scale: scales.value,
            };
            layer.check().map(|()| layer)
        };
        spec.layers.iter().map(|layer| layer.window.is_some()).zip(scales).map(layer).collect()
    }
}
