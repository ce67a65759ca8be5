//! The kernels as they travel in the binary: the table that `build.rs` makes of `cu/`.

/// A header that kernels include.
pub(super) struct Header {
    /// As it is included.
    pub(super) name: &'static str,
    /// Its text.
    pub(super) source: &'static str,
}

/// One `cu/*.cu`.
pub(super) struct Image {
    /// Its file's name.
    pub(super) name: &'static str,
    /// Its text.
    pub(super) source: &'static str,
    /// What `cuModuleLoadData` takes: made by nvcc, or empty when there was none.
    pub(super) fatbin: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));
