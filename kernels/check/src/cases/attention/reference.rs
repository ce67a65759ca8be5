//! The expected result of the attention kernels: the CPU's attention over the same values in f32.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::attention::{Attention, Scratch, SequenceRows, attend};
use skein_kernels::cpu::kv_cache::{KvCache, KvShape, KvType};

/// Slots per block of the CPU's cache.
const BLOCK_SIZE: usize = 16;

/// Parameters of attention that are the same for all sequences.
pub(crate) struct Reference<'a> {
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<u32>,
    pub(crate) is_chunked: bool,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: Option<&'a [f32]>,
}

impl Reference<'_> {
    /// The last rows of a sequence: `q` is `[rows, heads * head_dim]`, `kv` `[context, 2 * kv_heads *
    /// head_dim]`, each position its keys and then its values.
    pub(crate) fn attend(&self, q: &[f32], kv: &[f32]) -> Vec<f32> {
        let &Self { kv_heads, head_dim, scale, window, is_chunked, softcap, sinks, .. } = self;
        let (heads, kv_width) = (kv_heads * self.group, 2 * kv_heads * head_dim);
        let stride = heads * head_dim;
        let (rows, context) = (q.len() / stride, kv.len() / kv_width);
        if rows == 0 {
            return Vec::new();
        }
        let blocks = context.div_ceil(BLOCK_SIZE);
        let shape = KvShape {
            layers: 1,
            kv_heads,
            head_dim,
            latent: None,
            block_size: BLOCK_SIZE,
            blocks,
            kind: KvType::F32,
        };
        let mut cache = KvCache::new(shape).expect("address space for one sequence");
        let cpu = &mut Cpu::new(1);
        let slots: Vec<u32> = (0..context as u32).collect();
        cache.write(cpu, 0, kv, kv_width, 0, &slots);
        let table: Vec<u32> = (0..blocks as u32).collect();
        let (group, skipped) = (heads / kv_heads, 0);
        let a = Attention {
            cache: &cache,
            layer: 0,
            q,
            stride,
            heads,
            group,
            skipped,
            scale,
            window,
            is_chunked,
            ahead: 0,
            softcap,
            sinks,
        };
        let mut out = vec![0.0; q.len()];
        let rows = SequenceRows { rows: 0..rows, position: context - rows, end: context, blocks: &table };
        attend(cpu, &a, &[rows], &mut out, &mut Scratch::default());
        out
    }
}
