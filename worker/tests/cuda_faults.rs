//! A device that hangs, faults or is full: the backend ends with an error that names the cause. A single
//! test, because a fault affects the whole process.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "cuda_model/models.rs"]
#[allow(dead_code)]
mod models;
#[path = "cuda_model/runs.rs"]
#[allow(dead_code)]
mod runs;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use skein_cuda_emulation::{Fault, inject, reset};
use skein_kernels::cuda::Device;
use skein_node::clock;
use skein_worker::backend::cuda::CudaBackend;
use skein_worker::backend::{Backend, BackendError, Batch};
use skein_worker::check::Sequence;
use skein_worker::config::{CudaConfig, SchedulerConfig};

use models::LLAMA;
use runs::{eager, limits, on_cuda, prompt, sample, sequence_of, step, try_cuda};
use skein_proto::sampling::SamplingParams;

/// Longer than any step of this test.
const TIMEOUT: Duration = Duration::from_secs(30);

fn batch(sequence: &mut Sequence, count: usize) -> Batch {
    let mut batch = Batch::default();
    sequence.put(&mut batch, count);
    sample(sequence, &mut batch, &Arc::new(SamplingParams::default()), 0, None);
    batch
}

#[test]
fn what_a_device_can_do_to_a_backend() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = LLAMA.make(1);
    no_memory_is_taken_after_the_start(dir.path());
    a_device_without_room_is_refused_with_numbers(dir.path());
    for (fault, words) in [
        (Fault::Hang(9), &["did not end", "300ms", "--step-timeout"][..]),
        (Fault::IllegalAddress(9), &["CUDA_ERROR_ILLEGAL_ADDRESS", "700"]),
        (Fault::EccUncorrectable(9), &["CUDA_ERROR_ECC_UNCORRECTABLE", "214"]),
    ] {
        check(dir.path(), fault, words);
        fails_between_steps(dir.path(), fault);
    }
    a_refused_capture_costs_speed_only(dir.path());
    for at in [1, 2, 3, 5, 20] {
        a_start_ends(dir.path(), Fault::Hang(at), &["did not end", "300ms", "--step-timeout"]);
        a_start_ends(dir.path(), Fault::IllegalAddress(at), &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
    }
}

/// Loading waits at most as long as a step may take, and dropping never waits for the device.
fn a_start_ends(dir: &std::path::Path, fault: Fault, words: &[&str]) {
    let dir = dir.to_owned();
    inject(fault);
    let said = within_timeout(move || {
        let cuda = CudaConfig { step_timeout: Duration::from_millis(300), ..eager() };
        match try_cuda(&dir, cuda, limits(), Some(4 << 20)) {
            Err(error) if error.is_device_fault() => error.to_string(),
            Err(error) => panic!("{fault:?} is a device error: {error}"),
            Ok(_) => panic!("{fault:?} strikes during the start"),
        }
    });
    words.iter().for_each(|word| assert!(said.contains(word), "{fault:?}: {said:?} says {word:?}"));
    reset();
}

/// Graphs are captured between steps, so a failure during capture is detected without a step.
fn fails_between_steps(dir: &std::path::Path, fault: Fault) {
    let timeout = Duration::from_millis(300);
    let mut backend = on_cuda(dir, CudaConfig { step_timeout: timeout, enforce_eager: false, ..eager() });
    inject(fault);
    let (alarm, alarmed) = sync_channel(1);
    backend.on_failure(Box::new(move || alarm.send(()).unwrap()));
    alarmed.recv_timeout(TIMEOUT).expect("nobody has to ask");
    let error = backend.health().expect_err("it has failed");
    assert!(matches!(error, BackendError::Stopped { backend: "cuda", .. }), "{error}");
    within_timeout(move || drop(backend));
    reset();
}

/// A driver that captures no overlapping launches, captures nothing, or launches no graph: steps have the
/// results of eager ones, and the backend says what was refused.
fn a_refused_capture_costs_speed_only(dir: &std::path::Path) {
    let drawn = |backend: &mut CudaBackend| {
        let mut sequence = sequence_of(prompt(1, 32), 0);
        let counts = [29, 1, 1, 1];
        counts.map(|count| format!("{:?}", step(backend, batch(&mut sequence, count)))).concat()
    };
    let expected = drawn(&mut on_cuda(dir, eager()));
    for (fault, captures, code) in [
        (Fault::NoOverlapInCapture, true, "CUDA_ERROR_INVALID_HANDLE"),
        (Fault::NoCapture, false, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
        (Fault::NoGraphLaunch, false, "CUDA_ERROR_INVALID_VALUE"),
    ] {
        let mut backend = on_cuda(dir, CudaConfig { enforce_eager: false, ..eager() });
        inject(fault);
        let until = clock::now() + TIMEOUT;
        while backend.capture_refusal().is_none() || captures && backend.captured_graphs() == 0 {
            assert!(clock::now() < until, "{fault:?}: {} graphs", backend.captured_graphs());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(backend.capture_refusal().unwrap().contains(code), "{:?}", backend.capture_refusal());
        assert_eq!(drawn(&mut backend), expected, "{fault:?}");
        assert_eq!(backend.captured_graphs() > 0, captures, "{fault:?}");
        backend.health().unwrap();
        drop(backend);
        reset();
    }
}

/// Result of `work`, which must not hang.
fn within_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (answer, answered) = sync_channel(1);
    std::thread::spawn(move || answer.send(work()));
    answered.recv_timeout(TIMEOUT).expect("it ends")
}

fn check(dir: &std::path::Path, fault: Fault, words: &[&str]) {
    let cuda = CudaConfig { step_timeout: Duration::from_millis(300), ..eager() };
    let mut backend = on_cuda(dir, cuda);
    let mut sequence = sequence_of(prompt(1, 30), 0);
    step(&mut backend, batch(&mut sequence, 10));
    inject(fault);
    let outcome = backend.launch(batch(&mut sequence, 10)).and_then(|step| backend.collect(step));
    let error = outcome.expect_err("a step that failed has no tokens");
    let said = error.to_string();
    assert!(matches!(error, BackendError::Stopped { backend: "cuda", .. }), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    assert!(backend.launch(batch(&mut sequence, 1)).and_then(|step| backend.collect(step)).is_err());
    drop(backend); // at once: it does not wait for the device
    reset();
}

fn no_memory_is_taken_after_the_start(dir: &std::path::Path) {
    let mut backend = on_cuda(dir, CudaConfig { enforce_eager: false, ..eager() });
    let device = Device::open(0).unwrap();
    let (before, _) = device.memory_info().unwrap();
    // From now on every allocation fails.
    inject(Fault::NoMemory(1));
    let mut sequence = sequence_of(prompt(1, 100), 0);
    for count in [40, 1, 1, 40, 1, 1] {
        step(&mut backend, batch(&mut sequence, count));
    }
    assert_eq!(device.memory_info().unwrap().0, before);
    drop(backend);
    reset();
    let (after, total) = device.memory_info().unwrap();
    assert!(after > before && after <= total, "a backend gives its memory back");
}

fn a_device_without_room_is_refused_with_numbers(dir: &std::path::Path) {
    let refused = |limits: SchedulerConfig, kv_bytes| {
        try_cuda(dir, eager(), limits, kv_bytes).err().map(|error| error.to_string()).unwrap()
    };
    // 2 layers x 2 heads x 64 values, keys and values in bf16: 1 KiB a token.
    let said = refused(limits(), Some(100 << 10));
    for word in
        ["hold 96 tokens", "may have 128", "1024 bytes a token", "--max-model-len", "weights", "KV cache"]
    {
        assert!(said.contains(word), "{said:?} says {word:?}");
    }
    let huge = refused(limits(), Some(3 << 30));
    for word in ["3.", "GiB", "1.00 GiB are free", "KV cache", "--kv-cache-memory-bytes"] {
        assert!(huge.contains(word), "{huge:?} says {word:?}");
    }
}
