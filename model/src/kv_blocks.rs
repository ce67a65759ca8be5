//! Blocks of a KV cache: how many there are, and how many bytes their tokens take.

use serde::{Deserialize, Serialize};

/// Number of blocks in a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBlocks {
    /// Blocks, each with the keys of all layers, or of all that are not in window blocks.
    pub blocks: u32,
    /// Blocks of the layers that attend to a window; `None` = none apart.
    pub window: Option<WindowBlocks>,
    /// Slots for the states of recurrent layers; `None` = the model has no such layers.
    pub states: Option<u32>,
}

impl From<u32> for KvBlocks {
    fn from(blocks: u32) -> Self {
        Self { blocks, window: None, states: None }
    }
}

/// Blocks of the layers that attend to a window. A sequence holds those that its next row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowBlocks {
    /// Most tokens that a row attends to in these layers, itself included.
    pub window: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl WindowBlocks {
    /// Most blocks of `block_size` tokens that a sequence holds while it decodes.
    pub fn of_sequence(&self, block_size: u32) -> u32 {
        self.window.saturating_sub(1).div_ceil(block_size) + 1
    }
}

/// KV cache of a token on one rank, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvTokenBytes {
    /// In layers without a window.
    pub main: u64,
    /// In layers with a window.
    pub windowed: u64,
}

impl KvTokenBytes {
    /// In all layers.
    pub fn all(&self) -> u64 {
        self.main + self.windowed
    }
}
