//! The host's side of CUDA on the emulation: graphs, waits, arena, errors, cuBLASLt's choices, kernels
//! compiled at first start.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use half::bf16;
use skein_cuda_emulation::{Fault, inject, reset};
use skein_kernels::cuda::arena::{ArenaPlan, Carver, Phase};
use skein_kernels::cuda::blaslt::{Gemm, GemmKey, Scaling, WORKSPACE_BYTES};
use skein_kernels::cuda::launch::{Args, Grid};
use skein_kernels::cuda::tensor_map::Swizzle;
use skein_kernels::cuda::{
    BlasLt, CudaError, CudaEvent, Device, DeviceBuffer, ErrorKind, Graph, Kernels, PinnedBuffer, Stream,
    TensorMap, Waited,
};

/// The emulated device, for one test at a time: faults and free memory are the process's.
struct Bench {
    device: Arc<Device>,
    stream: Stream,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    fn new() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !skein_cuda_emulation::load() {
            return None;
        }
        reset();
        let device = Device::open(0).unwrap();
        Some(Self { stream: Stream::new(&device).unwrap(), device, _alone: alone })
    }

    fn buffer(&self, values: &[u32]) -> DeviceBuffer<u32> {
        DeviceBuffer::from_slice(&self.device, &self.stream, values).unwrap()
    }
}

#[test]
fn a_graph_does_its_work_at_each_launch_and_not_at_its_capture() {
    let Some(bench) = Bench::new() else { return };
    let (from, to) = (bench.buffer(&[1, 2, 3]), bench.buffer(&[0; 3]));
    let graph = Graph::capture(&bench.stream, || to.copy_from(&bench.stream, *from)).unwrap();
    assert_eq!(to.read(&bench.stream).unwrap(), [0; 3], "captured work runs at a launch");
    graph.upload(&bench.stream).unwrap();
    for round in 0..3 {
        from.write(&bench.stream, &[round, 7, round]).unwrap();
        graph.launch(&bench.stream).unwrap();
        assert_eq!(to.read(&bench.stream).unwrap(), [round, 7, round]);
    }
}

#[test]
fn a_graph_replays_kernels_with_the_arguments_of_the_capture() {
    let Some(bench) = Bench::new() else { return };
    let kernels = Kernels::load(&bench.device).unwrap();
    let read_all = kernels.get("read_all").unwrap();
    let (data, out) = (bench.buffer(&[1, 2, 4, 8]), bench.buffer(&[0]));
    let graph = {
        let args = Args::new().slice(*out).slice(*data).u64(1);
        Graph::capture(&bench.stream, || read_all.launch(&bench.stream, Grid::new(1, 32), &args)).unwrap()
    };
    graph.launch(&bench.stream).unwrap();
    assert_eq!(out.read(&bench.stream).unwrap(), [15]);
    data.write(&bench.stream, &[16, 0, 0, 1]).unwrap();
    graph.launch(&bench.stream).unwrap();
    assert_eq!(out.read(&bench.stream).unwrap(), [17]);
}

#[test]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let Some(bench) = Bench::new() else { return };
    let buffer = bench.buffer(&[1, 2]);
    let usable = |what: &str| {
        buffer.write(&bench.stream, &[3, 4]).unwrap_or_else(|error| panic!("after {what}: {error}"));
        let graph = Graph::capture(&bench.stream, || buffer.fill_bytes(&bench.stream, 1)).unwrap();
        graph.launch(&bench.stream).unwrap();
        assert_eq!(buffer.read(&bench.stream).unwrap(), [0x0101_0101; 2], "after {what}");
    };

    let error = Graph::capture(&bench.stream, || Err(CudaError::invalid("no such shape"))).unwrap_err();
    assert_eq!(error, CudaError::invalid("no such shape"));
    usable("an error of the work's own");

    let error = Graph::capture(&bench.stream, || bench.stream.synchronize()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("CUDA_ERROR_STREAM_CAPTURE"), "{error}");
    usable("a call that capturing forbids");

    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| {
        Graph::capture(&bench.stream, || panic!("a shape that does not fit"))
    }));
    assert!(panic.is_err());
    usable("a panic");
}

#[test]
fn arguments_that_do_not_fit_the_kernel_are_refused() {
    let Some(bench) = Bench::new() else { return };
    let kernels = Kernels::load(&bench.device).unwrap();
    let read_all = kernels.get("read_all").unwrap();
    let out = bench.buffer(&[0]);
    for args in [Args::new().slice(*out).slice(*out), Args::new().slice(*out).slice(*out).u32(1)] {
        let launch = || read_all.launch(&bench.stream, Grid::new(1, 32), &args);
        let panic = std::panic::catch_unwind(AssertUnwindSafe(launch)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("arguments of read_all"), "{text}");
    }
    assert!(
        matches!(kernels.get("no_such_kernel"), Err(CudaError::NoKernel { name }) if name == "no_such_kernel")
    );
}

#[test]
fn downloads_are_there_after_the_event() {
    let Some(bench) = Bench::new() else { return };
    let values: Vec<u32> = (0..1000).collect();
    let mut pinned = PinnedBuffer::new(&bench.device, values.len()).unwrap();
    pinned.copy_from_slice(&values);
    let buffer = DeviceBuffer::new(&bench.device, values.len()).unwrap();
    buffer.upload(&bench.stream, &pinned, 0..1000).unwrap();
    let mut back = PinnedBuffer::new(&bench.device, values.len()).unwrap();
    buffer.download(&bench.stream, &mut back, 0..1000).unwrap();
    let event = CudaEvent::untimed(&bench.device).unwrap();
    event.record(&bench.stream).unwrap();
    assert_eq!(event.wait(Duration::from_secs(10)).unwrap(), Waited::Done);
    assert_eq!(&*back, values.as_slice());
}

#[test]
fn a_stream_waits_for_another_streams_event() {
    let Some(bench) = Bench::new() else { return };
    let other = Stream::new(&bench.device).unwrap();
    let (first, second) = (bench.buffer(&[0; 64]), bench.buffer(&[0; 64]));
    let event = CudaEvent::untimed(&bench.device).unwrap();
    first.fill_bytes(&bench.stream, 2).unwrap();
    event.record(&bench.stream).unwrap();
    other.wait_for(&event).unwrap();
    second.copy_from(&other, *first).unwrap();
    other.synchronize().unwrap();
    assert_eq!(second.read(&other).unwrap(), [0x0202_0202; 64]);
}

#[test]
fn a_stuck_device_is_noticed() {
    let Some(bench) = Bench::new() else { return };
    let kernels = Kernels::load(&bench.device).unwrap();
    let read_all = kernels.get("read_all").unwrap();
    let (data, out) = (bench.buffer(&[1, 2, 4, 8]), bench.buffer(&[0]));
    let event = CudaEvent::untimed(&bench.device).unwrap();
    inject(Fault::Hang(1));
    read_all.launch(&bench.stream, Grid::new(1, 32), &Args::new().slice(*out).slice(*data).u64(1)).unwrap();
    event.record(&bench.stream).unwrap();
    assert_eq!(event.wait(Duration::from_millis(50)).unwrap(), Waited::TimedOut);
    reset();
}

#[test]
fn a_fault_is_a_fault_for_every_later_call() {
    for (fault, name) in [
        (Fault::IllegalAddress(1), "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (Fault::EccUncorrectable(1), "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ] {
        let Some(bench) = Bench::new() else { return };
        let kernels = Kernels::load(&bench.device).unwrap();
        let read_all = kernels.get("read_all").unwrap();
        let (data, out) = (bench.buffer(&[1, 2, 4, 8]), bench.buffer(&[0]));
        inject(fault);
        let args = Args::new().slice(*out).slice(*data).u64(1);
        let first =
            read_all.launch(&bench.stream, Grid::new(1, 32), &args).and_then(|()| bench.stream.synchronize());
        let error = first.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceFault, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        let later = bench.device.memory_info().and_then(|_| out.fill_bytes(&bench.stream, 0)).unwrap_err();
        assert_eq!(later.kind(), ErrorKind::DeviceFault, "{later}");
        reset();
    }
}

#[test]
fn an_arena_hands_out_the_planned_regions() {
    let Some(bench) = Bench::new() else { return };
    let mut plan = ArenaPlan::new(&bench.device).unwrap();
    plan.add::<u8>("weights", 3_000_001, Phase::Always, "take a smaller model");
    plan.add::<f32>("staging", 500_000, Phase::Load, "");
    plan.add::<f32>("activations", 100_000, Phase::Step, "lower --max-num-batched-tokens");
    plan.add::<f32>("logits", 1000, Phase::Step, "lower --max-num-seqs");
    plan.add::<u8>("graphs", 0, Phase::Reserved, "set --enforce-eager");
    let aligned = 3_000_064u64 + 2_000_128;
    assert_eq!((plan.arena_bytes(), plan.total_bytes()), (aligned, aligned), "the larger phase counts");
    let left = plan.left(0.5);
    // Tests beside this one hold some of the device's memory too.
    let others = bench.device.memory_bytes - plan.free_bytes();
    assert_eq!(left, bench.device.memory_bytes / 2 - others - aligned);
    let table = plan.to_string();
    assert!(
        table.contains("weights") && table.contains("2.9 MiB") && table.contains("while loading"),
        "{table}"
    );

    let arena = plan.allocate().unwrap();
    let [weights, staging] = [arena.slice::<u8>("weights"), arena.slice::<u8>("staging")];
    let [activations, logits] = [arena.slice::<u8>("activations"), arena.slice::<u8>("logits")];
    for slice in [weights, staging, activations, logits] {
        assert_eq!(slice.address() % 256, 0);
    }
    assert_eq!(staging.address(), activations.address(), "phases share memory");
    assert!(weights.address() + 3_000_001 <= staging.address());
    assert_eq!(logits.address(), activations.address() + 400_128);
    assert_eq!((weights.len(), arena.slice::<f32>("logits").len()), (3_000_001, 1000));
    logits.fill_bytes(&bench.stream, 5).unwrap();
    bench.stream.synchronize().unwrap();
    let usage = arena.usage().unwrap();
    assert!(usage.deviation().abs() < 0.01, "{usage}");

    let mut carver = Carver::new(weights);
    let (first, second) = (carver.take::<f32>(3), carver.take::<u8>(7));
    assert_eq!((first.len(), second.len(), second.address() - first.address()), (3, 7, 256));
    assert_eq!(carver.used(), Carver::bytes_for::<f32>(3) + Carver::bytes_for::<u8>(7));
}

#[test]
fn a_plan_that_does_not_fit_names_what_to_change() {
    let Some(bench) = Bench::new() else { return };
    let plan = |bytes: usize| {
        let mut plan = ArenaPlan::new(&bench.device).unwrap();
        plan.add::<u8>("weights", 1 << 20, Phase::Always, "take a smaller model");
        plan.add::<u8>("KV cache", bytes, Phase::Always, "lower --max-model-len");
        plan.add::<u8>("workspace", 4 << 20, Phase::Step, "lower --max-num-seqs");
        plan
    };
    let too_large = plan(bench.device.memory_bytes as usize).allocate().unwrap_err();
    assert_eq!(too_large.kind(), ErrorKind::OutOfMemory);
    let text = too_large.to_string();
    let cache = text.find("KV cache 1.00 GiB (lower --max-model-len)").unwrap_or_else(|| panic!("{text}"));
    let workspace = text.find("workspace 4.0 MiB (lower --max-num-seqs)").unwrap_or_else(|| panic!("{text}"));
    assert!(cache < workspace, "{text}");

    inject(Fault::NoMemory(1));
    let refused = plan(1 << 20).allocate().unwrap_err();
    assert!(matches!(&refused, CudaError::OutOfMemory { what } if what.contains("largest")), "{refused}");
    reset();
    plan(1 << 20).allocate().unwrap();
}

#[test]
fn the_driver_takes_tensor_maps_that_pass_our_checks() {
    let Some(bench) = Bench::new() else { return };
    let memory = DeviceBuffer::<bf16>::new(&bench.device, 4 * 32 * 128).unwrap();
    let map = TensorMap::new(*memory, &[4, 32, 128], &[1, 16, 64], Swizzle::Bytes128).unwrap();
    assert_eq!((map.as_bytes().len(), map.as_bytes().as_ptr() as usize % 64), (128, 0));
    let strided =
        TensorMap::strided(*memory, &[4, 32, 64], &[32 * 128, 128, 1], &[1, 16, 64], Swizzle::Bytes128);
    assert_ne!(strided.unwrap().as_bytes(), map.as_bytes());
    let error = TensorMap::new(*memory, &[4, 33, 128], &[1, 16, 64], Swizzle::Bytes128).unwrap_err();
    assert!(error.to_string().contains("are more than the 16384"), "{error}");
}

#[test]
fn one_algorithm_is_chosen_and_kept() {
    let Some(bench) = Bench::new() else { return };
    let Some(blas) = BlasLt::open(&bench.device).unwrap() else { return };
    assert!(blas.version() >= 130_000, "the emulation says it is of CUDA 13");
    let key = GemmKey::new::<bf16, bf16>(20, 96, 64, Scaling::None, false);
    assert_eq!(key.rows, 24, "rows of a bucket share an algorithm");
    assert!(blas.supports(key).unwrap());
    let workspace = DeviceBuffer::<u8>::new(&bench.device, WORKSPACE_BYTES).unwrap();
    let ones = |count: usize| {
        DeviceBuffer::from_slice(&bench.device, &bench.stream, &vec![bf16::from_f32(1.0); count]).unwrap()
    };
    let (x, weight, out) = (ones(24 * 64), ones(96 * 64), ones(24 * 96));
    let product = |rows| {
        out.fill_bytes(&bench.stream, 0xff).unwrap();
        let gemm = Gemm::new(*out, *x, *weight, rows, 96, 64);
        blas.matmul(&bench.stream, gemm, *workspace).unwrap();
        let all = out.read(&bench.stream).unwrap();
        assert!(all[..rows * 96].iter().all(|value| value.to_f32() == 64.0), "{rows} rows");
        assert!(all[rows * 96..].iter().all(|value| value.is_nan()), "{rows} rows and no more");
    };
    [17, 20, 24].into_iter().for_each(product);

    let scratch = DeviceBuffer::<u8>::new(&bench.device, BlasLt::tuning_bytes(&key)).unwrap();
    let tuned = blas.tune(&bench.stream, key, *scratch).unwrap().unwrap();
    assert!(tuned.candidates >= 1 && tuned.best_milliseconds <= tuned.first_milliseconds, "{tuned:?}");
    [17, 24].into_iter().for_each(product);

    let graph = Graph::capture(&bench.stream, || {
        blas.matmul(&bench.stream, Gemm::new(*out, *x, *weight, 24, 96, 64), *workspace)
    })
    .unwrap();
    out.fill_bytes(&bench.stream, 0xff).unwrap();
    graph.launch(&bench.stream).unwrap();
    assert!(out.read(&bench.stream).unwrap().iter().all(|value| value.to_f32() == 64.0), "from a graph");
}

#[test]
#[ignore = "a child process of `a_machine_without_cublaslt_has_none`"]
fn open_blas() {
    let device = Device::open(0).unwrap();
    println!("cuBLASLt {:?}", BlasLt::open(&device).unwrap().map(|blas| blas.version() / 10_000));
}

#[test]
fn a_machine_without_cublaslt_has_none() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    let directory = scratch("no-blas");
    std::os::unix::fs::symlink(emulation.join("libcuda.so.1"), directory.join("libcuda.so.1")).unwrap();
    assert!(child("open_blas", Some(&directory), &[]).contains("cuBLASLt None"));
    assert!(child("open_blas", Some(&emulation), &[]).contains("cuBLASLt Some(13)"));
    std::fs::remove_dir_all(directory).unwrap();
}

/// Runs the ignored test `name` of this file in a process of its own; its standard output.
fn child(name: &str, libraries: Option<&Path>, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env_remove("LD_LIBRARY_PATH");
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
#[ignore = "a child process of `a_machine_without_a_usable_device_says_what_it_has`"]
fn probe() {
    match Device::open(0) {
        Ok(device) => println!("opened {}", device.name),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_machine_without_a_usable_device_says_what_it_has() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    let check = |libraries: Option<&Path>, variables: &[(&str, &str)], says: &str| {
        let text = child("probe", libraries, variables);
        assert!(text.contains(says), "{text:?} does not say {says:?}");
    };
    check(None, &[], "no NVIDIA driver: libcuda.so.1 was not found");
    check(
        Some(&emulation),
        &[("EMU_DEVICES", "0")],
        "the NVIDIA driver works (CUDA 13.0), but no device is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES",
    );
    check(
        Some(&emulation),
        &[("EMU_DRIVER", "12040")],
        "the NVIDIA driver supports CUDA 12.4, and Skein needs 13.0 (driver 580) or newer; update the driver",
    );
    check(
        Some(&emulation),
        &[("EMU_CAPABILITY", "75")],
        "has compute capability 7.5, and the kernels need 8.0 (Ampere) or newer",
    );
    check(Some(&emulation), &[], "opened Skein emulated device");
}

#[test]
#[ignore = "a child process of `kernels_are_compiled_once`"]
fn load_kernels() {
    let device = Device::open(0).unwrap();
    match Kernels::load(&device) {
        Ok(kernels) => println!("kernels {}", kernels.kernel_source()),
        Err(error) => println!("{error}"),
    }
}

fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("skein-cuda-host-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn kernels_are_compiled_once() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    let directory = scratch("kernels");
    let start = |cache: &Path| {
        child("load_kernels", Some(&emulation), &[("SKEIN_KERNEL_CACHE", cache.to_str().unwrap())])
    };
    let first = start(&directory);
    if first.contains("built into this binary") {
        println!("SKIPPED: built with nvcc, nothing is compiled at first start");
        return;
    }
    let count = std::fs::read_dir(&directory).unwrap().count();
    assert!(count > 0 && first.contains(&format!("{count} files now, 0 earlier")), "{first}");
    assert!(start(&directory).contains(&format!("0 files now, {count} earlier")));

    // A damaged file is rebuilt.
    let one = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&one).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&one, bytes).unwrap();
    assert!(start(&directory).contains(&format!("1 files now, {} earlier", count - 1)));
    assert!(start(&directory).contains(&format!("0 files now, {count} earlier")));

    // Another driver gets its own.
    let variables = [("SKEIN_KERNEL_CACHE", directory.to_str().unwrap()), ("EMU_DRIVER", "13010")];
    let other = child("load_kernels", Some(&emulation), &variables);
    assert!(other.contains(&format!("{count} files now, 0 earlier")), "{other}");

    // A directory that cannot be written costs time only.
    let in_the_way = directory.join("file");
    std::fs::write(&in_the_way, b"").unwrap();
    let unkept = in_the_way.join("below");
    for _ in 0..2 {
        assert!(start(&unkept).contains(&format!("{count} files now, 0 earlier")));
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn without_nvcc_and_nvrtc_the_error_says_what_to_install() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    let directory = scratch("no-nvrtc");
    std::os::unix::fs::symlink(emulation.join("libcuda.so.1"), directory.join("libcuda.so.1")).unwrap();
    let text =
        child("load_kernels", Some(&directory), &[("SKEIN_KERNEL_CACHE", directory.to_str().unwrap())]);
    if !text.contains("built into this binary") {
        for part in ["NVRTC", "was not found", "libnvrtc.so.13", "build with nvcc (set NVCC)"] {
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
#[ignore = "a child process of `kernels_without_waits_never_overlap`"]
fn overlaps() {
    let device = Device::open(0).unwrap();
    let kernels = Kernels::load(&device).unwrap();
    let kernel = kernels.get("attention_plan").unwrap();
    println!("overlaps: {}", kernel.may_overlap());
}

/// Before compute capability 9.0, kernels have no `griddepcontrol.wait`.
#[test]
fn kernels_without_waits_never_overlap() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    for (capability, overlaps) in [("80", false), ("89", false), ("90", true), ("120", true)] {
        let text = child("overlaps", Some(&emulation), &[("EMU_CAPABILITY", capability)]);
        assert!(text.contains(&format!("overlaps: {overlaps}")), "{capability}: {text}");
    }
}

#[test]
#[ignore = "a child process of `a_search_that_fails_is_a_product_that_there_is_not`"]
fn search() {
    let device = Device::open(0).unwrap();
    let blas = BlasLt::open(&device).unwrap().unwrap();
    for rows in [32, 48] {
        let key = GemmKey::new::<bf16, bf16>(rows, 64, 64, Scaling::None, false);
        println!("{rows} rows: {}", blas.supports(key).unwrap());
    }
    println!("{:?}", blas.refusals());
}

/// The library returns `CUBLAS_STATUS_INTERNAL_ERROR` where it should say "not supported".
#[test]
fn a_search_that_fails_is_a_product_that_there_is_not() {
    let Some(emulation) = skein_cuda_emulation::directory() else { return };
    // A choice that an earlier run has kept would need no search.
    let kept = scratch("search");
    let variables = [("EMU_BLAS_SEARCH_FAULT", "32"), ("SKEIN_KERNEL_CACHE", kept.to_str().unwrap())];
    let text = child("search", Some(&emulation), &variables);
    std::fs::remove_dir_all(kept).unwrap();
    for said in ["32 rows: false", "48 rows: true", "cublasLtMatmulAlgoGetHeuristic", "INTERNAL_ERROR"] {
        assert!(text.contains(said), "{text:?} does not say {said:?}");
    }
}
