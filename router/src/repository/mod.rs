//! Several models behind one address. A request names its model; one that is not in memory is loaded, and
//! others leave memory for it. `residency` decides which, purely; `leases` carries that out; `loader` is
//! what it needs of whoever starts workers. `served` finds the model of a request, and `answer` keeps a model
//! in memory while its answer is sent.

mod answer;
mod leases;
mod loader;

pub mod residency;
pub mod served;
#[cfg(test)]
mod tests;

pub use leases::{InMemory, Lease, MemoryLimits, ModelStatus, Repository};
pub use loader::{Entry, FAILED_FOR, LoadedModel, Loader, Routes};
