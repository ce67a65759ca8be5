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
    pub(super) fatbin: &'static Aligned<[u8]>,
}

/// Bytes where nvcc's own tools would place them: they align the section of fatbins to 8 bytes and its
/// cubins, which are ELF files, to 64. `include_bytes!` alone aligns to 1.
#[repr(C, align(64))]
pub(super) struct Aligned<T: ?Sized>(pub(super) T);

include!(concat!(env!("OUT_DIR"), "/images.rs"));
