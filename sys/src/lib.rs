//! Operating system services: regular and mapped files, memory that is filled once and then shared, memory
//! for exchange between processes, compute threads and their processors, and process termination. Knows
//! nothing of tensors or models.
//!
//! Besides `kernels`, the only crate of the product with `unsafe` code.

pub mod allocations;
pub mod descriptors;
pub mod filling;
pub mod mapped;
pub mod memory;
pub mod memory_limit;
pub mod poll;
pub mod process;
pub mod regular_file;
pub mod shared_memory;
pub mod threads;
