//! Freed memory is returned to the system. A separate process, because an expected panic in another test
//! reads the debug information, tens of megabytes.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used)] // helpers of tests panic like tests

use skein_sys::memory::give_back;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn memory_freed_below_memory_in_use_goes_back() {
    const PIECES: usize = 100_000;
    let before = resident();
    let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 1000]).collect();
    let full = resident();
    // The last piece keeps the top of the heap.
    let last = pieces.pop();
    drop(pieces);
    give_back();
    let after = resident();
    assert!(full - before > 80_000_000, "{before} {full}");
    assert!(after.saturating_sub(before) < 20_000_000, "{before} {full} {after}");
    assert_eq!(last.map(|piece| piece.len()), Some(1000));
}
