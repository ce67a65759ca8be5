//! The memory plan of a worker on a GPU.

use skein_worker::backend::Backend;
use skein_worker::backend::cuda::{CudaOptions, ServedAdapters};
use skein_worker::config::{
    AdaptersConfig, BackendKind, KvCacheDtype, Precision, SchedulerConfig, WorkerConfig,
};
use skein_worker::load::plan;

use crate::long_context::check_plan;
use crate::models::{COHERE2, DEEPSEEK_V3, DEEPSEEK_V3_SHARED, LLAMA, MISTRAL, Tiny};
use crate::runs::{eager, limits, load, options, try_cuda_with};

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
        assert_eq!(plan.ranks[0].allocated.adapters, 0, "{}", tiny.model_type);
        assert!((KV_BYTES - (16 << 10)..=KV_BYTES).contains(&bytes), "{}: {bytes}", tiny.model_type);
    }
}

/// 48 codes, four scales, and 16 rotated values in 16 bits, in two layers.
#[test]
fn latents_in_8_bits_have_scales_and_a_rotated_part_in_16() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = DEEPSEEK_V3_SHARED.make(13);
    let token_bytes = [KvCacheDtype::Auto, KvCacheDtype::Fp8].map(|kv_cache_dtype| {
        let config = WorkerConfig {
            backend: BackendKind::Cuda,
            scheduler: limits(),
            kv_cache_memory_bytes: Some(KV_BYTES),
            precision: Precision { kv_cache_dtype, ..Precision::default() },
            ..WorkerConfig::new(dir.path(), "m")
        };
        plan(&config).unwrap().ranks[0].token_bytes
    });
    assert_eq!(token_bytes, [[2 * 2 * (48 + 16), 0], [2 * (48 + 16 + 2 * 16), 0]]);
}

/// Five layers of six with a window of 1024 tokens, as in Gemma 3. The device allocates what is planned.
#[test]
fn a_long_context_holds_the_planned_bytes() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let tiny = Tiny {
        model_type: "gemma3_text",
        tied: true,
        hidden: 64,
        layers: 12,
        inner: 64,
        head_dim: 32,
        fields: r#"{"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 1024,
            "sliding_window_pattern": 6, "max_position_embeddings": 32768}"#,
        ..LLAMA
    };
    let dir = tiny.make(13);
    let scheduler = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::default() };
    let kv_bytes = Some(64 << 20);
    let config = WorkerConfig {
        backend: BackendKind::Cuda,
        scheduler: scheduler.clone(),
        kv_cache_memory_bytes: kv_bytes,
        ..WorkerConfig::new(dir.path(), "m")
    };
    let plan = plan(&config).unwrap();
    check_plan(&plan, &scheduler);
    let backend = try_cuda_with((dir.path(), true), eager(), scheduler, kv_bytes).unwrap();
    assert_eq!((plan.kv_blocks, plan.window_blocks), (backend.kv_blocks(), backend.window_blocks()));
}

/// The slots of adapters, and what their steps need.
#[test]
fn the_slots_of_adapters_are_part_of_the_plan() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(13);
    let planned = |is_enabled| {
        let config = WorkerConfig {
            backend: BackendKind::Cuda,
            scheduler: limits(),
            kv_cache_memory_bytes: Some(KV_BYTES),
            adapters: AdaptersConfig {
                is_enabled,
                max_loras: 3,
                max_lora_rank: 8,
                ..AdaptersConfig::default()
            },
            ..WorkerConfig::new(dir.path(), "m")
        };
        plan(&config).unwrap()
    };
    let (without, with) = (planned(false), planned(true));
    let served = Some(ServedAdapters { slots: 3, max_rank: 8 });
    let backend =
        load(dir.path(), CudaOptions { served, ..options(eager(), limits(), Some(KV_BYTES)) }).unwrap();
    assert_eq!(with.kv_blocks, backend.kv_blocks());
    let [without, with] = [without, with].map(|plan| plan.ranks[0].allocated);
    // Two layers of query to down of 128, 256, 128, 192 inputs and outputs, and the head; ranks of 16.
    let of_layer = 3 * 128 + 256 + 2 * 128 + 192 + (256 + 2 * 128) + 128 + 2 * 192 + 128;
    let values = 3 * 16 * (2 * of_layer + 128 + 304);
    assert!(
        (values * 2..values * 2 + 3 * 20 * 256).contains(&with.adapters),
        "{} of {values}",
        with.adapters
    );
    assert_eq!(without.adapters, 0);
    assert!(with.activations > without.activations && with.kv_cache == without.kv_cache);
}
