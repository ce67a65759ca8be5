//! What all stages are told, and their names.

use skein_kernel_check::cases::{self, Part, Scale};

/// Name of the command.
pub const GPU_CHECK: &str = "gpu-check";
/// Stage of kernels against the CPU.
pub(super) const KERNELS: &str = "kernels";
/// Stage of exchanges between GPUs.
pub(super) const RANKS: &str = "ranks";

/// Flags that all stages read.
pub(super) struct CheckOptions {
    pub scale: Scale,
    pub only: String,
    pub seed: u64,
    pub ordinal: u32,
    pub as_json: bool,
}

impl CheckOptions {
    pub(super) fn scale_name(&self) -> &'static str {
        if self.scale == Scale::Full { "full" } else { "small" }
    }

    pub(super) fn of_cases(&self, part: Part) -> cases::Options {
        cases::Options { scale: self.scale, seed: self.seed, filter: self.only.clone(), part }
    }
}
