//! The memory plan of a worker on a GPU.

use skein_worker::backend::Backend;
use skein_worker::config::{BackendKind, WorkerConfig};
use skein_worker::service::plan;

use crate::models::{COHERE2, DEEPSEEK_V3, LLAMA, MISTRAL};
use crate::runs::{eager, limits, try_cuda_with};

const KV_BYTES: u64 = 1 << 20;

/// With a window in one layer of two, in all, and in none; and with latents.
#[test]
fn the_planned_blocks_are_allocated() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (tiny, has_windows) in [(COHERE2, true), (MISTRAL, true), (LLAMA, false), (DEEPSEEK_V3, false)] {
        let dir = tiny.make(13);
        let config = WorkerConfig {
            backend: BackendKind::Cuda,
            scheduler: limits(),
            kv_cache_memory_bytes: Some(KV_BYTES),
            ..WorkerConfig::new(dir.path(), "m")
        };
        let plan = plan(&config).unwrap();
        let backend = try_cuda_with((dir.path(), true), eager(), limits(), Some(KV_BYTES)).unwrap();
        let (blocks, windows) = (backend.kv_blocks(), backend.window_blocks());
        assert_eq!((plan.kv_blocks, plan.window_blocks), (blocks, windows), "{}", tiny.model_type);
        assert_eq!(windows.is_some(), has_windows, "{}", tiny.model_type);
        let [main, windowed] = plan.ranks[0].token_bytes;
        let tokens = |blocks: u32| u64::from(blocks * limits().block_size);
        let bytes = main * tokens(blocks) + windowed * tokens(windows.map_or(0, |windows| windows.blocks));
        assert_eq!(plan.ranks[0].allocated.kv_cache, bytes, "{}", tiny.model_type);
        // A block of all layers is at most 16 KiB.
        assert!((KV_BYTES - (16 << 10)..=KV_BYTES).contains(&bytes), "{}: {bytes}", tiny.model_type);
    }
}
