//! Returns freed memory from the allocator to the system.

/// Allocations of at least this many bytes get a mapping of their own, which is unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING_BYTES: libc::c_int = 1024 * 1024;

/// Lets large allocations return to the system as soon as they are freed. Call it once, at the start of a
/// process that handles requests of very different sizes.
///
/// By default glibc raises both of its thresholds, up to 32 and 64 MiB, when a large allocation is freed.
/// Each thread's arena may then keep that much at its top, which [`give_back`] does not release. No effect
/// with other allocators.
pub fn unmap_large_allocations() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes numbers, and only sets the allocator's own parameters, under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, OWN_MAPPING_BYTES);
    }
}

/// Returns the allocator's free memory to the system. Walks the whole heap, which takes about a millisecond
/// per hundred MiB.
///
/// glibc keeps freed memory that is below memory still in use, in each thread's arena. After a burst of large
/// requests that is nearly all of it. Does nothing with other allocators.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes a number, and only touches the allocator's own free memory, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
