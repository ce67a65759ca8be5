//! A fuzz target.

/// What one parser must do with any bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name on the command line, and of its folder of the corpus.
    pub name: &'static str,
    /// What it reads, and from whom.
    pub about: &'static str,
    /// Panics if an invariant is broken.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Cost class: how many changed inputs a test of a second runs.
    pub replays: u32,
}
