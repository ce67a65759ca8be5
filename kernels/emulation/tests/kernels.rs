//! A kernel's illegal operation ends its launch with an error that says where.
#![allow(clippy::undocumented_unsafe_blocks)] // the calls are what is tested

mod common;

use common::{Arg, Launch, OK, device};
use skein_cuda_emulation::last_fault;

const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;

/// Runs `kernel`; returns the stream's error and the message.
fn fault(kernel: &str, threads: u32, args: &[Arg]) -> Option<(u32, String)> {
    let device = device()?;
    let stream = device.stream();
    assert_eq!(device.launch(kernel, Launch::of(1, threads), args, stream), OK);
    Some((device.synchronize(stream), last_fault()))
}

fn check(kernel: &str, args: &[Arg], expected: u32, said: &str) {
    let Some((code, text)) = fault(kernel, 32, args) else { return };
    assert_eq!(code, expected, "{kernel}: {text}");
    assert!(text.contains(said) && text.contains(kernel), "{kernel}: {text}");
}

#[test]
fn threads_that_wait_for_one_another_are_a_deadlock() {
    check("selftest_deadlock", &[], LAUNCH_FAILED, "deadlock");
}

#[test]
fn a_mask_names_its_caller_and_living_lanes() {
    check("selftest_wrong_mask", &[], LAUNCH_FAILED, "leaves it out");
    check("selftest_returned_lane", &[], LAUNCH_FAILED, "already returned");
}

#[test]
fn asynchronous_copies_are_aligned() {
    check("selftest_misaligned", &[Arg::Address(1 << 20)], LAUNCH_FAILED, "not 16-byte aligned");
}

#[test]
fn an_address_that_is_not_there_is_illegal() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    check("selftest_null", &[Arg::Address(0)], ILLEGAL_ADDRESS, "illegal address");
}

#[test]
fn a_write_past_the_end_of_an_allocation_is_noticed() {
    let Some(device) = device() else { return };
    let (stream, memory) = (device.stream(), device.alloc(10));
    let args = [Arg::Address(memory), Arg::Word(10)];
    assert_eq!(device.launch("selftest_past_end", Launch::of(1, 1), &args, stream), OK);
    assert_eq!(device.synchronize(stream), ILLEGAL_ADDRESS);
}

#[test]
fn a_missing_barrier_depends_on_the_order_of_threads() {
    let Some(device) = device() else { return };
    let (stream, memory) = (device.stream(), device.alloc(64));
    let mut seen = Vec::new();
    for seed in ["0", "1", "2"] {
        // SAFETY: tests of this file run one at a time, and no other thread reads the environment.
        unsafe { std::env::set_var("EMU_SEED", seed) };
        let mut got = [0; 64];
        let launch = Launch { blocks: 1, threads: 64, shared_bytes: 256 };
        assert_eq!(device.launch("selftest_race", launch, &[Arg::Address(memory)], stream), OK);
        assert_eq!(device.download(&mut got, memory, stream), OK);
        seen.push(got);
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("EMU_SEED") };
    assert!(seen[0] != seen[1] && seen[1] != seen[2]);
}

#[test]
fn shared_memory_is_poisoned_before_each_block() {
    let Some(device) = device() else { return };
    let (stream, memory) = (device.stream(), device.alloc(32));
    let launch = Launch { blocks: 3, threads: 32, shared_bytes: 128 };
    let mut got = [0; 32];
    assert_eq!(device.launch("selftest_fresh_shared", launch, &[Arg::Address(memory)], stream), OK);
    assert_eq!(device.download(&mut got, memory, stream), OK);
    assert_eq!(got, [u32::MAX; 32]);
}
