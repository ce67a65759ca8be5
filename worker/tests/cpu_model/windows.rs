//! Models with layers that attend to a window, with their keys in window blocks. `overlap`, `resume` and
//! `speculation` run them.

use safetensors::Dtype;
use serde_json::json;
use skein_model::config::ModelConfig;
use skein_worker::backend::{KvBlocks, WindowBlocks};
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use skein_worker::load::plan;

use crate::batches::{SMALL_BLOCK, golden};
use crate::long_context::{LONG, check_plan};
use crate::ranks::make;

/// Models in which some layers have a window, with softcaps, two rotations, sinks, chunks, heads of another
/// size, keys of earlier layers, and those in which all have one.
pub const WINDOWED: [&str; 10] = [
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-moe",
    "gemma4-per-layer",
    "gpt-oss-mxfp4",
    "llama4",
    "qwen2-window",
    "mistral-window",
    "starcoder2",
];

/// Blocks, and window blocks of a model for `sequences` sequences.
pub fn with_windows(model: &str, blocks: u32, sequences: u32) -> KvBlocks {
    let window = ModelConfig::from_dir(&golden(model)).unwrap().spec.longest_window().unwrap();
    let windows = WindowBlocks { window, blocks: 0 };
    let window = WindowBlocks { blocks: sequences * windows.of_sequence(SMALL_BLOCK), ..windows };
    KvBlocks { window: Some(window), ..blocks.into() }
}

/// Five layers of six with a window of 1024 tokens, as in Gemma 3.
#[test]
fn a_long_context_holds_the_planned_bytes() {
    check_long("gemma3", json!({"num_hidden_layers": 12, "sliding_window_pattern": 6}));
}

/// The same with heads of two sizes, and with layers that have no keys.
#[test]
fn a_long_context_of_heads_of_two_sizes_holds_the_planned_bytes() {
    check_long("gemma4-per-layer", json!({"num_hidden_layers": 12, "global_head_dim": 48}));
}

fn check_long(name: &str, mut changes: serde_json::Value) {
    (changes["sliding_window"], changes["max_position_embeddings"]) = (json!(1024), json!(LONG));
    let model = make(name, Dtype::F32, changes);
    let scheduler = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::default() };
    let config = WorkerConfig {
        backend: BackendKind::Cpu,
        threads: 1,
        scheduler: scheduler.clone(),
        ..WorkerConfig::new(model.path(), "m")
    };
    check_plan(&plan(&config).unwrap(), &scheduler);
}
