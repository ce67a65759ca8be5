//! Fuzz targets: what each parser of outside input must do with any bytes, namely return. Where more is known
//! (any cut of a stream gives the same, what is written is read again), the target asserts it.
//!
//! A target is a function of bytes with seeds that say something to its parser. Seeds come from the golden
//! files or are written here. `tests/fuzz/run` gives the targets to libFuzzer; `tests/replay.rs` runs all of
//! them on their seeds, on the corpus (inputs that once failed or were hard to find), and on changes of both.

mod exchange;
mod files;
mod grammars;
mod input;
mod membership;
mod mutate;
mod requests;
mod streams;
mod target;
mod text;
mod wire;

pub use input::join;
pub use mutate::Mutator;
pub use target::Target;

/// All targets.
pub fn targets() -> Vec<Target> {
    [
        files::targets(),
        text::targets(),
        grammars::targets(),
        requests::targets(),
        streams::targets(),
        wire::targets(),
        exchange::targets(),
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
