//! Models with layers that attend to a window, with their keys in window blocks. `overlap`, `resume` and
//! `speculation` run them.

use skein_worker::backend::WindowBlocks;
use skein_worker::model::config::ModelConfig;

use crate::batches::{SMALL_BLOCK, golden};

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
