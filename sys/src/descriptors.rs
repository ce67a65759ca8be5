//! How many files and sockets this process may have open.

/// Most descriptors that this process may have; `None` if unlimited or unknown.
pub fn limit() -> Option<u64> {
    let limit = read()?;
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Raises that number to the most that the system allows this process. Returns it, as [`limit`] does.
///
/// The usual 1,024 is for programs that call `select`, which knows no more; ours do not. Child processes
/// inherit what is raised.
pub fn raise_limit() -> Option<u64> {
    if let Some(limit) = read().filter(|limit| limit.rlim_cur < limit.rlim_max) {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: reads two numbers from `raised`. If the system refuses, the number stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    }
    limit()
}

fn read() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes two numbers to `limit`.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_allows_is_raised_to_and_no_more() {
        let before = read().unwrap();
        let half = libc::rlimit { rlim_cur: before.rlim_max / 2, ..before };
        // SAFETY: reads two numbers from `half`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const half) }, 0);
        assert_eq!(limit(), Some(half.rlim_cur));
        assert_eq!(raise_limit(), Some(before.rlim_max).filter(|most| *most != libc::RLIM_INFINITY));
        assert_eq!(read().unwrap().rlim_max, before.rlim_max);
    }
}
