//! The emulated driver guarantees only what the real one does: work runs late, and errors persist.
#![allow(clippy::undocumented_unsafe_blocks)] // the calls are what is tested

mod common;

use common::{Launch, OK, bind, code, device};
use cudarc::driver::sys;
use skein_cuda_emulation::{Fault, inject, reset};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const ECC: u32 = 214;
const NOT_READY: u32 = 600;
const ILLEGAL_ADDRESS: u32 = 700;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;
const CAPTURE_UNJOINED: u32 = 904;

#[test]
fn an_upload_reads_pinned_memory_late_and_pageable_memory_at_once() {
    let Some(device) = device() else { return };
    let (stream, memory, pinned) = (device.stream(), device.alloc(1), device.pinned(1));
    pinned[0] = 1;
    assert_eq!(device.upload(memory, pinned, stream), OK);
    pinned[0] = 2; // too early
    let mut got = [0];
    assert_eq!(device.download(&mut got, memory, stream), OK);
    assert_eq!(got, [2]);

    let mut pageable = [3];
    assert_eq!(device.upload(memory, &pageable, stream), OK);
    pageable[0] = 4;
    assert_eq!(device.download(&mut got, memory, stream), OK);
    assert_eq!((got, pageable), ([3], [4]));
}

#[test]
fn a_download_into_pinned_memory_is_poison_until_it_is_waited_for() {
    let Some(device) = device() else { return };
    let (stream, memory, pinned) = (device.stream(), device.alloc(8), device.pinned(8));
    assert_eq!(device.count(memory, 5, 8, stream), OK);
    pinned.fill(0);
    assert_eq!(device.download(pinned, memory, stream), OK);
    assert_eq!(pinned, [u32::MAX; 8], "read too early");
    assert_eq!(device.synchronize(stream), OK);
    assert_eq!(pinned, [5, 6, 7, 8, 9, 10, 11, 12]);
}

#[test]
fn a_stream_that_waits_for_an_event_comes_after_it() {
    let Some(device) = device() else { return };
    let (first, second, event, memory) = (device.stream(), device.stream(), device.event(), device.alloc(4));
    assert_eq!(device.count(memory, 1, 4, first), OK);
    let mut got = [0; 4];
    unsafe {
        assert_eq!(code(sys::cuEventRecord(event, first)), OK);
        assert_eq!(code(sys::cuEventQuery(event)), NOT_READY);
        assert_eq!(code(sys::cuStreamWaitEvent(second, event, 0)), OK);
    }
    assert_eq!(device.download(&mut got, memory, second), OK);
    assert_eq!(got, [1, 2, 3, 4]);
    assert_eq!(code(unsafe { sys::cuEventQuery(event) }), OK);
}

#[test]
fn a_query_sees_the_device_come_on() {
    let Some(device) = device() else { return };
    let (stream, memory) = (device.stream(), device.alloc(4));
    (0..3).for_each(|_| assert_eq!(device.count(memory, 1, 4, stream), OK));
    assert_eq!(code(unsafe { sys::cuStreamQuery(stream) }), NOT_READY);
    let polls = (0..100).take_while(|_| code(unsafe { sys::cuStreamQuery(stream) }) == NOT_READY).count();
    assert!(polls < 100);
}

#[test]
fn a_graph_replays_with_the_arguments_of_its_capture() {
    let Some(device) = device() else { return };
    let (stream, memory) = (device.stream(), device.alloc(3));
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let mut got = [0; 3];
    unsafe {
        assert_eq!(code(sys::cuStreamBeginCapture_v2(stream, mode)), OK);
        assert_eq!(device.count(memory, 10, 3, stream), OK);
        assert_eq!(device.count(memory, 100, 3, stream), OK);
        assert_eq!(code(sys::cuStreamEndCapture(stream, &mut graph)), OK);
        assert_eq!(code(sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)), OK);
        assert_eq!(code(sys::cuGraphDestroy(graph)), OK);
        assert_eq!(device.download(&mut got, memory, stream), OK);
        assert_eq!(got, [u32::MAX; 3], "capturing runs nothing");
        for _ in 0..2 {
            assert_eq!(code(sys::cuGraphLaunch(executable, stream)), OK);
        }
        assert_eq!(code(sys::cuGraphExecDestroy(executable)), OK);
    }
    assert_eq!(device.download(&mut got, memory, stream), OK);
    assert_eq!(got, [220, 224, 228]);
}

#[test]
fn a_capture_refuses_to_wait_and_to_leave_streams_behind() {
    let Some(device) = device() else { return };
    let (stream, other, event, memory) = (device.stream(), device.stream(), device.event(), device.alloc(3));
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let mut graph = std::ptr::null_mut();
    let mut address = 0;
    unsafe {
        assert_eq!(code(sys::cuStreamBeginCapture_v2(stream, mode)), OK);
        assert_eq!(device.synchronize(stream), CAPTURE_UNSUPPORTED);
        assert_eq!(code(sys::cuStreamEndCapture(stream, &mut graph)), CAPTURE_INVALIDATED);

        assert_eq!(code(sys::cuStreamBeginCapture_v2(stream, mode)), OK);
        assert_eq!(code(sys::cuMemAlloc_v2(&mut address, 4)), CAPTURE_UNSUPPORTED);
        assert_eq!(code(sys::cuStreamEndCapture(stream, &mut graph)), CAPTURE_INVALIDATED);

        assert_eq!(code(sys::cuStreamBeginCapture_v2(stream, mode)), OK);
        assert_eq!(code(sys::cuEventRecord(event, stream)), OK);
        assert_eq!(code(sys::cuStreamWaitEvent(other, event, 0)), OK);
        assert_eq!(device.count(memory, 1, 3, other), OK);
        assert_eq!(code(sys::cuStreamEndCapture(stream, &mut graph)), CAPTURE_UNJOINED);
    }
    assert_eq!(device.synchronize(stream), OK, "the stream is usable again");
}

#[test]
fn memory_ends_and_is_given_back() {
    let Some(_device) = device() else { return };
    let (mut free, mut total, mut address, mut other) = (0, 0, 0, 0);
    unsafe {
        assert_eq!(code(sys::cuMemGetInfo_v2(&mut free, &mut total)), OK);
        let before = free;
        assert_eq!(code(sys::cuMemAlloc_v2(&mut address, free + 1)), OUT_OF_MEMORY);
        assert_eq!(code(sys::cuMemAlloc_v2(&mut address, 1 << 20)), OK);
        assert_eq!(code(sys::cuMemGetInfo_v2(&mut free, &mut total)), OK);
        assert_eq!(before - free, 1 << 20);
        assert_eq!(code(sys::cuMemFree_v2(address)), OK);
        assert_eq!(code(sys::cuMemFree_v2(address)), INVALID_VALUE, "freed twice");
        assert_eq!(code(sys::cuMemsetD8Async(address, 0, 4, std::ptr::null_mut())), INVALID_VALUE);
        inject(Fault::NoMemory(2));
        assert_eq!(code(sys::cuMemAlloc_v2(&mut address, 4)), OK);
        assert_eq!(code(sys::cuMemAlloc_v2(&mut other, 4)), OUT_OF_MEMORY);
    }
}

#[test]
fn a_thread_without_a_context_is_refused() {
    let Some(_device) = device() else { return };
    let in_a_thread = |bound: bool| {
        let call = move || {
            if bound {
                bind();
            }
            code(unsafe { sys::cuCtxSynchronize() })
        };
        std::thread::spawn(call).join().unwrap()
    };
    assert_eq!((in_a_thread(false), in_a_thread(true)), (INVALID_CONTEXT, OK));
}

#[test]
fn launches_that_a_device_would_refuse() {
    let Some(device) = device() else { return };
    let stream = device.stream();
    let launch = |blocks, threads, shared_bytes| {
        device.launch("selftest_deadlock", Launch { blocks, threads, shared_bytes }, &[], stream)
    };
    assert_eq!(launch(0, 32, 0), INVALID_VALUE);
    assert_eq!(launch(1, 1025, 0), INVALID_VALUE);
    assert_eq!(launch(1, 32, 49 << 10), INVALID_VALUE, "shared memory that was not asked for");
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let function = device.function("selftest_race");
    let allow = |bytes| code(unsafe { sys::cuFuncSetAttribute(function, attribute, bytes) });
    assert_eq!((allow(228 << 10), allow(100 << 10)), (INVALID_VALUE, OK));
}

#[test]
fn injected_faults_strike_their_launch_and_stick() {
    for (fault, expected) in [(Fault::IllegalAddress(2), ILLEGAL_ADDRESS), (Fault::EccUncorrectable(2), ECC)]
    {
        let Some(device) = device() else { return };
        let (stream, memory) = (device.stream(), device.alloc(4));
        inject(fault);
        assert_eq!(device.count(memory, 1, 4, stream), OK);
        assert_eq!(device.synchronize(stream), OK);
        assert_eq!(device.count(memory, 1, 4, stream), OK, "the launch itself cannot know");
        assert_eq!(device.synchronize(stream), expected);
        assert_eq!(code(unsafe { sys::cuStreamQuery(stream) }), expected);
        assert_eq!(code(unsafe { sys::cuMemAlloc_v2(&mut 0, 4) }), expected);
        reset();
        assert_eq!(device.count(memory, 1, 4, stream), OK);
        assert_eq!(device.synchronize(stream), OK);
    }
}

#[test]
fn a_hanging_device_is_never_ready() {
    let Some(device) = device() else { return };
    let (stream, memory, event) = (device.stream(), device.alloc(4), device.event());
    inject(Fault::Hang(1));
    assert_eq!(device.count(memory, 1, 4, stream), OK);
    unsafe {
        assert_eq!(code(sys::cuEventRecord(event, stream)), OK);
        assert!((0..200).all(|_| code(sys::cuEventQuery(event)) == NOT_READY));
        assert_eq!(code(sys::cuStreamQuery(stream)), NOT_READY);
    }
    let address = stream as usize;
    let waiter = std::thread::spawn(move || {
        bind();
        code(unsafe { sys::cuStreamSynchronize(address as sys::CUstream) })
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waiter.is_finished(), "waiting for a hanging device does not end");
    reset();
    assert_eq!(waiter.join().unwrap(), OK);
}

#[test]
fn a_tensor_map_has_limits() {
    let Some(device) = device() else { return };
    #[repr(align(64))]
    struct Map(sys::CUtensorMap);
    let mut map = Map(unsafe { std::mem::zeroed() });
    let memory = device.alloc(64 * 64);
    let mut encode = |stride: u64, inner: u32, base: u64| unsafe {
        code(sys::cuTensorMapEncodeTiled(
            &mut map.0,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            base as *mut _,
            [64, 64].as_ptr(),
            [stride].as_ptr(),
            [inner, 16].as_ptr(),
            [1, 1].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ))
    };
    assert_eq!(encode(128, 64, memory), OK);
    assert_eq!(encode(136, 64, memory), INVALID_VALUE, "a stride that is no multiple of 16");
    assert_eq!(encode(128, 128, memory), INVALID_VALUE, "a box wider than its swizzle");
    assert_eq!(encode(128, 64, memory + 8), INVALID_VALUE, "an address that is not aligned");
}
