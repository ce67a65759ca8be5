//! Ending a process whose threads may be stuck.

/// Ends this process at once: no exit handlers, no destructors, no wait for other threads.
///
/// A hung device's driver may block in its exit handlers, and then whatever waits for this process blocks,
/// too.
pub fn exit_without_handlers(code: i32) -> ! {
    // SAFETY: takes a number and does not return; the system reclaims memory and files as it does after a
    // signal.
    unsafe { libc::_exit(code) }
}
