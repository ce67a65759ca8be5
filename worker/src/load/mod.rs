//! From a configuration to a loaded backend: the number types, each rank's part, what fits in memory, and the
//! processes of a group. It knows no request.

mod cpu;
mod cpu_ranks;
mod cuda;
mod cuda_options;
mod cuda_ranks;
mod device;
mod draft_model;
mod fake;
mod group;
mod kv_blocks;
mod limits;
mod loaded_backend;
mod member;
mod memory_plan;
pub(crate) mod model_files;
mod plan;
pub(crate) mod precision;
mod rank_process;
mod served_adapters;
mod shards;
pub(crate) mod sizing;
mod terms;

pub(crate) use device::load;
pub use group::follow_leader;
pub(crate) use limits::check_settings;
pub use loaded_backend::LoadedBackend;
pub use model_files::grammars;
pub use plan::{MemoryPlan, RankPlan, plan};
pub use rank_process::run_rank;
