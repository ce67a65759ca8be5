//! The kernels embedded in the binary: the tables that `build.rs` generates from `cu/`.

/// A header included by kernels.
pub(super) struct Header {
    /// File name, as in `#include`.
    pub(super) name: &'static str,
    /// Text of the header.
    pub(super) source: &'static str,
}

/// A kernel file of `cu/`.
pub(super) struct Image {
    /// Name of the file.
    pub(super) name: &'static str,
    /// Text of the file.
    pub(super) source: &'static str,
    /// Compiled by nvcc, as `cuModuleLoadData` takes it; empty if the build had no nvcc.
    pub(super) fatbin: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));
