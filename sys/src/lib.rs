//! The operating system: mapped files, memory that is filled once and then shared, memory that processes
//! exchange data through, compute threads and the processors they run on, and ending a process. Has no notion
//! of tensors or models.
//!
//! With `kernels`, the only crate of the product where `unsafe` may live.

pub mod allocations;
pub mod filling;
pub mod mapped;
pub mod memory;
pub mod memory_limit;
pub mod poll;
pub mod process;
pub mod shared_memory;
pub mod threads;
