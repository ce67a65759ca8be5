//! The model that all workers serve.

/// Its name.
pub const MODEL: &str = "m";
/// Small, so that stop tokens are drawn.
pub const VOCAB_SIZE: u32 = 100;
/// The highest stop token.
pub const LAST_STOP_TOKEN: u32 = 17;
