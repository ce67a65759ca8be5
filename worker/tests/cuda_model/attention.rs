//! Selection of the attention kernel.

use half::{bf16, f16};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::AttentionShape;
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::{Device, Kernels};
use skein_model::on_cuda::attention::StepAttention;

const SHAPE: AttentionShape = AttentionShape {
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    latent: None,
    scale: 0.125,
    window: None,
    is_chunked: false,
    softcap: None,
    batch_invariant: false,
};

fn prefill_rows<T: Activation, K: KvElement>(kernels: &Kernels, shape: AttentionShape) -> Option<usize> {
    StepAttention::<T, K>::new(kernels, shape).unwrap().prefill_rows()
}

#[test]
fn long_chunks_have_their_own_kernel_where_it_fits() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let kernels = &Kernels::load(&Device::open(0).unwrap()).unwrap();
    assert_eq!(prefill_rows::<bf16, bf16>(kernels, SHAPE), Some(32), "a tile of 128 is 32 rows of 4 heads");
    assert_eq!(prefill_rows::<f16, f16>(kernels, AttentionShape { heads: 2, ..SHAPE }), Some(128));
    let wide = AttentionShape { heads: 6, head_dim: 128, window: Some(64), ..SHAPE };
    assert_eq!(prefill_rows::<bf16, bf16>(kernels, wide), Some(43), "less than a tile is not a tile");
    for (what, other) in [
        ("heads of 96 values", AttentionShape { head_dim: 96, ..SHAPE }),
        ("attention within chunks", AttentionShape { window: Some(64), is_chunked: true, ..SHAPE }),
        ("latents", AttentionShape { kv_heads: 1, latent: Some(48), ..SHAPE }),
        ("batch-invariant", AttentionShape { batch_invariant: true, ..SHAPE }),
    ] {
        assert_eq!(prefill_rows::<bf16, bf16>(kernels, other), None, "{what}");
    }
    assert_eq!(prefill_rows::<bf16, E4m3>(kernels, SHAPE), None, "an e4m3 cache");
}
