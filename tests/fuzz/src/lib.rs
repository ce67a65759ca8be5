//! Fuzz targets: what each parser of outside input must do with any bytes, namely return. Where more is known
//! (any cut of a stream gives the same, what is written is read again), the target asserts it.
//!
//! A target is a function of bytes with seeds that say something to its parser. Seeds come from the golden
//! files or are written here. `tests/fuzz/run` gives the targets to libFuzzer; `tests/replay.rs` runs all of
//! them on their seeds, on the corpus (inputs that once failed or were hard to find), and on changes of both.

mod files;
mod grammars;
mod input;
mod membership;
mod mutate;
mod requests;
mod streams;
mod text;
mod wire;

pub use input::join;
pub use mutate::Mutator;

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

/// All targets.
pub fn targets() -> Vec<Target> {
    [
        files::targets(),
        text::targets(),
        grammars::targets(),
        requests::targets(),
        streams::targets(),
        wire::targets(),
        membership::targets(),
    ]
    .concat()
}

/// The target `name`.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}

/// Folder of the inputs that are kept for `target`.
pub fn corpus(target: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}
