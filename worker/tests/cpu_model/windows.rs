//! Models with layers that attend to a window, with their keys in window blocks. `overlap`, `resume` and
//! `speculation` run them.

use safetensors::Dtype;
use serde_json::json;
use skein_model::config::ModelConfig;
use skein_worker::backend::WindowBlocks;
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use skein_worker::load::plan;

use crate::batches::{SMALL_BLOCK, golden};
use crate::long_context::{LONG, check_plan};
use crate::ranks::make;

/// Models in which some layers have a window, with softcaps, two rotations, sinks, chunks, and those in which
/// all have one.
pub const WINDOWED: [&str; 7] =
    ["gemma2", "gemma3", "gpt-oss-mxfp4", "llama4", "qwen2-window", "mistral-window", "starcoder2"];

/// Window blocks of a model for `sequences` sequences.
pub fn windows_of(model: &str, sequences: u32) -> WindowBlocks {
    let window = ModelConfig::from_dir(&golden(model)).unwrap().spec.longest_window().unwrap();
    let windows = WindowBlocks { window, blocks: 0 };
    WindowBlocks { blocks: sequences * windows.of_sequence(SMALL_BLOCK), ..windows }
}

/// Five layers of six with a window of 1024 tokens, as in Gemma 3.
#[test]
fn a_long_context_holds_the_planned_bytes() {
    let changes = json!({
        "num_hidden_layers": 12, "sliding_window": 1024, "sliding_window_pattern": 6,
        "max_position_embeddings": LONG,
    });
    let model = make("gemma3", Dtype::F32, changes);
    let scheduler = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::default() };
    let config = WorkerConfig {
        backend: BackendKind::Cpu,
        threads: 1,
        scheduler: scheduler.clone(),
        ..WorkerConfig::new(model.path(), "m")
    };
    check_plan(&plan(&config).unwrap(), &scheduler);
}
