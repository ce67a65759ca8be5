//! The CUDA backend: weights on the device, all memory planned at start, steps queued on one stream
//! with two in flight (in a pipeline, one for each stage), decode steps replayed as graphs. It sees batches,
//! never a request; the operations are in [`skein_kernels::cuda`].
//!
//! A device that faults or hangs ends the backend ([`BackendError::Stopped`]) and with it the process: a
//! CUDA context is lost after a fault, and only a new process gets a new one. Results of a failed step
//! are never read.
//!
//! Not yet run on a GPU: tested on `skein-cuda-emulation`.

mod adapters;
mod draw;
mod dummy;
mod dummy_packed;
mod error;
mod gaps;
mod graphs;
mod layout;
mod load;
mod load_inputs;
mod memory;
mod options;
mod pack;
mod plan;
mod rank;
mod slot;
mod stage;
mod step;
mod threads;
mod upload;
mod upload_packed;
mod usable;

pub use error::CudaLoadError;
pub use gaps::StepGaps;
pub use layout::{DeviceBytes, plan_ranks};
pub use load::{LoadedRank, load, load_rank, slot_form};
pub use load_inputs::ModelDir;
pub use memory::most_rows;
pub use options::{CudaOptions, Fp8, ServedAdapters};
pub use pack::pack_step;
pub use rank::{Fits, RankLink};
pub use threads::CudaBackend;
pub use usable::{NotUsable, OpenDevice, check_heads, check_model, open};

/// The backend's [`steps_in_flight`](super::Backend::steps_in_flight) with a single stage.
const STEPS_IN_FLIGHT: usize = 2;

/// CUDA devices visible to this process; 0 without a driver or if it is too old.
pub fn visible_gpus() -> u32 {
    skein_kernels::cuda::device::visible_devices().unwrap_or(0)
}
