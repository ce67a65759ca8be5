//! What is the same in every step.

use crate::cuda::CudaError;

/// Parameters that are the same in every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Number of query heads, a multiple of the KV heads.
    pub heads: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Dimensions of a head: 64, 96 or 128; also 16, 32 and 256 unless the cache is e4m3. With latents,
    /// values of a cached key.
    pub head_dim: usize,
    /// Latent attention: keys of the only KV head start with this many values, which are also its value. Both
    /// these and the rest of a key are multiples of 8, up to 512 and 64.
    pub latent: Option<usize>,
    /// Positive factor of the scores: `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A row sees its own position and the `window - 1` before it; `None`: all before it.
    pub window: Option<u32>,
    /// Whether windows do not slide: a row sees the positions from the last multiple of the window on.
    pub is_chunked: bool,
    /// If set, scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// A row's bits depend on its sequence alone: contexts are divided at fixed positions.
    pub batch_invariant: bool,
}

impl AttentionShape {
    pub(in crate::cuda::ops) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Values of a head's output.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    pub(super) fn check(&self) -> Result<(), CudaError> {
        let Self { heads, kv_heads, scale, window, softcap, latent, .. } = *self;
        if kv_heads == 0 || heads == 0 || heads % kv_heads != 0 {
            return Err(CudaError::invalid(format!(
                "{heads} query heads over {kv_heads} KV heads; attention needs a multiple of them"
            )));
        }
        assert!(scale > 0.0, "scale {scale} is positive");
        assert!(softcap.is_none_or(|cap| cap > 0.0), "softcap {softcap:?} is positive");
        assert!(window != Some(0), "a window holds at least the row's own position");
        let is_plain = kv_heads == 1 && window.is_none() && softcap.is_none();
        assert!(latent.is_none() || is_plain, "latents have one KV head, no window and no cap");
        Ok(())
    }
}
