//! KV cache on a device: a plane of keys and a plane of values per layer, in this order.

use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::block_copy::BlockPlanes;
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer};

use crate::model::spec::Spec;

/// Number of planes of a model.
pub fn planes(spec: &Spec) -> usize {
    2 * spec.layers.len()
}

/// Bytes of a block of `block_size` tokens in one plane.
pub fn plane_block_bytes<K: KvElement>(spec: &Spec, block_size: u32) -> usize {
    spec.attention.kv_width() * block_size as usize * size_of::<K>()
}

/// The planes of each layer.
///
/// # Errors
/// If the kernels do not support their shape.
pub fn layers<K: KvElement>(
    spec: &Spec,
    block_size: u32,
    planes: BlockPlanes,
) -> Result<Vec<KvLayer<K>>, CudaError> {
    let plane = |index: usize| {
        let start = index * planes.plane_bytes;
        planes.memory.slice(start..start + planes.plane_bytes).cast::<K>()
    };
    let layer = |index: usize| {
        let layer = KvLayer {
            keys: plane(2 * index),
            values: plane(2 * index + 1),
            blocks: planes.blocks,
            kv_heads: spec.attention.kv_heads,
            block_size: block_size as usize,
            head_dim: spec.attention.head_dim,
            key_scale: 1.0,
            value_scale: 1.0,
        };
        layer.check().map(|()| layer)
    };
    (0..spec.layers.len()).map(layer).collect()
}
