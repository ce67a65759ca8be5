//! The operations on CUDA devices. [`device`], [`memory`], [`stream`] and [`launch`] wrap the driver API and
//! return its errors as values. [`ops`] has typed launchers, one file per operation, beside `cu/*.cu`; the
//! crate `skein-kernel-check` compares each with its CPU reference and times it.
//!
//! Nothing of CUDA is linked: the driver library is found at run time, and [`device::Device::open`] reports
//! what is missing. In tests the same calls go to `skein-cuda-emulation`, a driver whose device is the CPU.

pub mod arena;
pub mod blaslt;
mod cache;
pub mod device;
pub mod error;
pub mod graph;
mod images;
pub mod launch;
pub mod memory;
pub mod module;
pub mod nccl;
mod nvrtc;
pub mod ops;
pub mod peer;
pub mod roofline;
pub mod stream;
pub mod tensor_map;

pub use arena::{Arena, ArenaPlan};
pub use blaslt::BlasLt;
pub use cache::KERNEL_CACHE_VARIABLE;
pub use device::{Device, Unavailable};
pub use error::{CudaError, ErrorKind};
pub use graph::Graph;
pub use memory::{DeviceBuffer, DeviceSlice, Element, PinnedBuffer};
pub use module::{KernelSource, Kernels};
pub use nccl::{Communicator, Nccl};
pub use peer::Peers;
pub use stream::{CudaEvent, Stream, Waited};
pub use tensor_map::TensorMap;
