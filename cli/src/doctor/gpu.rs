//! GPUs: whether the driver is found, and if not, why; the libraries that GPUs need, and the kernels.

use std::fs;
use std::path::Path;

use skein_kernels::cuda::device::visible_devices;
use skein_kernels::cuda::{BlasLt, Device, Nccl, Unavailable, module};
use skein_worker::config::BackendKind;

use super::report::{Report, size};
use crate::settings::EngineSettings;

/// Shared memory that exchanges between GPUs of one machine take at least; Docker gives 64 MB.
const LEAST_SHM: u64 = 1 << 30;
const DRIVER_FIX: &str = "install NVIDIA's driver 580 or newer; in a container, start it with --gpus all (NVIDIA \
                          Container Toolkit) or ask for nvidia.com/gpu in Kubernetes";

/// Checks what `engine` may compute on.
pub fn check(report: &mut Report, engine: &EngineSettings) {
    match engine.worker.backend {
        BackendKind::Cpu => return report.ok("GPU", "not used: --device cpu"),
        BackendKind::Fake => return report.ok("GPU", "not used: --device fake"),
        BackendKind::Auto | BackendKind::Cuda => {}
    }
    match visible_devices() {
        Ok(count) => devices(report, count, engine.device.ordinal.unwrap_or(0)),
        Err(why) => without(report, &why, engine.worker.backend == BackendKind::Cuda),
    }
}

/// Without a usable GPU: fine on a machine that has none, unless one is demanded.
fn without(report: &mut Report, why: &Unavailable, is_demanded: bool) {
    let traces = traces_of_a_gpu();
    match why {
        Unavailable::NoDriver if traces.is_empty() && !is_demanded => {
            report.ok("GPU", "no NVIDIA driver and no device: the CPU computes");
        }
        Unavailable::NoDriver => {
            let seen = if traces.is_empty() {
                "--device cuda demands one".to_owned()
            } else {
                format!("there is {}", traces.join(", "))
            };
            let fix = if cfg!(target_env = "musl") {
                "this static binary cannot load a driver: take the build for -linux-gnu"
            } else {
                "the loader must find libcuda.so.1 (LD_LIBRARY_PATH, ldconfig -p | grep libcuda); "
            };
            let fix = if cfg!(target_env = "musl") { fix.to_owned() } else { format!("{fix}{DRIVER_FIX}") };
            fail_or_warn(report, is_demanded, format!("{why}, and {seen}"), fix);
        }
        _ => fail_or_warn(report, is_demanded, why.to_string(), DRIVER_FIX.to_owned()),
    }
}

/// `--device auto` then computes on the CPU, which works, and surprises.
fn fail_or_warn(report: &mut Report, is_demanded: bool, found: String, fix: String) {
    if is_demanded {
        report.fail("GPU", found, format!("{fix}; or --device cpu"));
    } else {
        report.warn("GPU", format!("{found}; the CPU computes instead"), fix);
    }
}

/// What a GPU leaves on a machine, with or without its driver's library.
fn traces_of_a_gpu() -> Vec<&'static str> {
    ["/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version"]
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .collect()
}

fn devices(report: &mut Report, count: u32, ordinal: u32) {
    let device = match Device::open(ordinal) {
        Ok(device) => device,
        Err(why) => {
            return report.fail("GPU", why.to_string(), "see nvidia-smi; --device cpu computes without it");
        }
    };
    let (major, minor) = device.capability;
    report.ok(
        "GPU",
        format!(
            "{count} visible; {}: compute capability {major}.{minor}, {}, driver for CUDA {}.{}",
            device.name,
            size(device.memory_bytes),
            device.driver / 1000,
            device.driver % 1000 / 10
        ),
    );
    match module::origin() {
        Ok(origin) => report.ok("GPU kernels", origin),
        Err(why) => {
            report.fail("GPU kernels", why.to_string(), "see above; --device cpu computes without them")
        }
    }
    match BlasLt::open(&device) {
        Ok(Some(blas)) => report.ok("cuBLASLt", format!("version {}", blas.version())),
        Ok(None) => report.warn(
            "cuBLASLt",
            "libcublasLt.so.13 was not found: long prompts are computed by slower kernels",
            "install CUDA 13's libcublas, or nvidia-cublas of PyPI, where the loader finds it (LD_LIBRARY_PATH)",
        ),
        Err(why) => report.warn("cuBLASLt", why.to_string(), "install CUDA 13's libcublas"),
    }
    if count > 1 {
        exchange(report);
    }
}

/// What ranks on several GPUs need.
fn exchange(report: &mut Report) {
    match Nccl::open() {
        Ok(_) => report.ok("NCCL", "found"),
        Err(why) => report.warn(
            "NCCL",
            why.to_string(),
            "only --tensor-parallel-size and --pipeline-parallel-size above 1 need it",
        ),
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    match shm_size(&mounts) {
        Some(bytes) if bytes < LEAST_SHM => report.warn(
            "/dev/shm",
            format!("{}; NCCL may need more for ranks on several GPUs", size(bytes)),
            "docker run --shm-size 4g, or an emptyDir with medium: Memory at /dev/shm in Kubernetes",
        ),
        Some(bytes) => report.ok("/dev/shm", size(bytes)),
        None => {}
    }
}

/// Size of the file system at /dev/shm, if it is given one.
fn shm_size(mounts: &str) -> Option<u64> {
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/dev/shm"))?;
    let size = line.split(' ').nth(3)?.split(',').find_map(|option| option.strip_prefix("size="))?;
    let (digits, unit) = size.split_at(size.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let shift = match unit {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok().map(|number| number << shift)
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn the_size_of_shared_memory_is_read_from_the_mounts() {
        let mounts = "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n";
        assert_eq!(shm_size(mounts), Some(64 << 20));
        assert_eq!(shm_size("tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0"), None);
    }

    #[test]
    fn a_missing_driver_matters_only_where_a_gpu_is_demanded() {
        for (is_demanded, expected) in [(true, Status::Fail), (false, Status::Warn)] {
            let mut report = Report::default();
            without(&mut report, &Unavailable::DriverTooOld { found: 12_040 }, is_demanded);
            assert_eq!(report.count(expected), 1, "{}", report.text());
            assert!(report.text().contains("580"), "{}", report.text());
        }
    }
}
