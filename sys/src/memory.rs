//! Returns freed memory from the allocator to the system.

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
