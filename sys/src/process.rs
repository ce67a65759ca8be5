//! Terminates a process whose threads may be stuck or whose parent has ended.

/// Ends this process at once: no exit handlers, no destructors, no wait for other threads.
///
/// A hung device's driver may block in its exit handlers, and then whatever waits for this process blocks,
/// too.
pub fn exit_without_handlers(code: i32) -> ! {
    // SAFETY: takes a number and does not return; the system reclaims memory and files as it does after a
    // signal.
    unsafe { libc::_exit(code) }
}

/// Makes the system kill this process when its parent `parent` ends. Returns false if the parent has already
/// ended.
///
/// This works even on a stopped process, which cannot watch its parent itself. The parent must have started
/// this process from a thread that lives as long as the parent.
pub fn die_with_parent(parent: u32) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
    }
    std::os::unix::process::parent_id() == parent
}

/// Limits this process to `bytes` of address space, which includes each thread's whole stack, and disables
/// core files. An allocation beyond the limit fails, which ends the process.
///
/// # Errors
/// If the system does not accept the limit.
pub fn limit_address_space(bytes: u64) -> std::io::Result<()> {
    for (resource, most) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_AS, bytes)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads two numbers from `limit`.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Most address space that this process may have, bytes (`ulimit -v`); `None` if unlimited or unknown.
pub fn address_space_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes two numbers to `limit`.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
