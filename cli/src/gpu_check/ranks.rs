//! Exchanges between several GPUs, checked by one process per GPU.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_kernel_check::{exchange, peer};
use skein_kernels::cuda::device::visible_devices;
use skein_kernels::cuda::nccl::{ID_BYTES, UniqueId};
use skein_kernels::cuda::peer::NoPeers;
use skein_kernels::cuda::{Communicator, CudaError, Device, Nccl};

use super::error::failure;
use super::options::{CheckOptions, GPU_CHECK, RANKS};
use crate::exit::{DEVICE, Failure};
use crate::own_path::own_path;

/// Name of what a rank reports about sums through the GPUs' memory.
const MEMORY: &str = "through_memory";
/// Longest wait of a rank for the others.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at the processes.
const POLL: Duration = Duration::from_millis(20);

/// Number of GPUs to check: `asked`, or the largest supported number that this process sees.
///
/// # Errors
/// If it does not see that many, or only one.
pub(super) fn count(asked: Option<u32>, ordinal: u32) -> Result<u32, Failure> {
    let visible = visible_devices().map_err(|why| Failure::new(DEVICE, why.to_string()))?;
    let left = visible.saturating_sub(ordinal);
    let ranks = asked.unwrap_or_else(|| [8, 4, 2].into_iter().find(|count| *count <= left).unwrap_or(2));
    if ranks > left {
        let message = format!(
            "{ranks} ranks need the GPUs {ordinal} to {}, and this process sees {visible}; see nvidia-smi and \
             CUDA_VISIBLE_DEVICES",
            ordinal + ranks - 1
        );
        return Err(Failure::new(DEVICE, message));
    }
    Ok(ranks)
}

/// Starts a process for each GPU, and prints a table of the exchanges of all.
///
/// # Errors
/// If a rank fails. Returns the number of wrong exchanges.
pub(super) fn run(
    ranks: u32,
    options: &CheckOptions,
    report: &mut Map<String, Value>,
) -> Result<usize, Failure> {
    let id = Nccl::open().and_then(|nccl| nccl.unique_id()).map_err(|error| failure(&error))?;
    let mut group = Group(Vec::new());
    for rank in 0..ranks {
        group.0.push(start(rank, ranks, options, &id).map_err(Failure::other)?);
    }
    let mut outputs = group.wait()?;
    // All ranks report the same about sums through memory.
    let through_memory = outputs.first_mut().and_then(|lines| lines.pop_if(|line| !line[MEMORY].is_null()));
    let through_memory = through_memory.map_or(Value::Null, |line| line[MEMORY].clone());
    let sizes = sizes(&outputs);
    if !options.as_json {
        outln!("exchanges between {ranks} GPUs, with the sum over ranks\n");
        outln!("{:>12}{:>10}{:>11}{:>10}{:>9}", "bytes a rank", "rounds", "differing", "us", "GB/s");
        for size in &sizes {
            let Size { bytes, rounds, differing, micros } = *size;
            let rate = bytes as f64 * f64::from(ranks - 1) / micros / 1e3;
            outln!("{bytes:>12}{rounds:>10}{differing:>11}{micros:>10.1}{rate:>9.1}");
        }
        outln!("\nus: graph replay on the slowest rank; GB/s: bytes received by a rank");
        print_through_memory(&through_memory);
    }
    let rows: Vec<Value> = sizes.iter().map(|size| {
        json!({"bytes": size.bytes, "rounds": size.rounds, "differing": size.differing, "us": size.micros})
    }).collect();
    let is_wrong = through_memory["is_wrong"] == true;
    report.insert(RANKS.into(), json!({"ranks": ranks, "exchanges": rows, MEMORY: through_memory}));
    Ok(sizes.iter().map(|size| size.differing).sum::<usize>() + usize::from(is_wrong))
}

fn print_through_memory(found: &Value) {
    if let Some(why) = found["unusable"].as_str() {
        return outln!("\nsums do not go through the GPUs' memory: {why}");
    }
    outln!(
        "\nsums through the GPUs' memory, with residual and norm: {} had the host's bits\n",
        found["checked"]
    );
    outln!("{:>12}{:>12}{:>12}{:>12}", "bytes a rank", "small us", "large us", "NCCL us");
    let micros = |value: &Value| value.as_f64().map_or("-".into(), |micros| format!("{micros:.1}"));
    for size in found["sizes"].as_array().into_iter().flatten() {
        let [small, large, nccl] = ["small_us", "large_us", "nccl_us"].map(|way| micros(&size[way]));
        outln!("{:>12}{small:>12}{large:>12}{nccl:>12}", size["bytes"].to_string());
    }
    outln!("\nus: mean of launches on the slowest rank");
}

/// A rank's report of sums through memory.
fn report_through_memory(found: Result<peer::Summed, NoPeers>) -> Result<Value, NoPeers> {
    let found = match found {
        Ok(found) => found,
        Err(NoPeers::Lost(lost)) => return Err(lost.into()),
        Err(ref error @ NoPeers::Unusable { is_wrong, .. }) => {
            return Ok(json!({"unusable": error.to_string(), "is_wrong": is_wrong}));
        }
    };
    let micros = |micros: f32| if micros.is_finite() { json!(micros) } else { Value::Null };
    let sizes: Vec<Value> = found
        .sizes
        .iter()
        .map(|size| {
            json!({
                "bytes": size.bytes, "small_us": micros(size.small), "large_us": micros(size.large),
                "nccl_us": micros(size.nccl),
            })
        })
        .collect();
    let (small, large) = found.up_to;
    Ok(json!({"checked": found.checked, "small_up_to": small, "large_up_to": large, "sizes": sizes}))
}

/// Exchanges of a size, over all ranks.
struct Size {
    bytes: u64,
    rounds: u64,
    differing: usize,
    micros: f64,
}

/// Joins the lines of all ranks: each has one for each size, in the same order.
fn sizes(outputs: &[Vec<Value>]) -> Vec<Size> {
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap_or(0);
    let joined = |(at, first): (usize, &Value)| {
        let lines = || outputs.iter().filter_map(|lines| lines.get(at));
        Size {
            bytes: number(first, "bytes"),
            rounds: number(first, "rounds"),
            differing: lines().map(|line| number(line, "differing") as usize).sum(),
            micros: lines().filter_map(|line| line["us"].as_f64()).fold(0.0, f64::max),
        }
    };
    outputs.first().into_iter().flatten().enumerate().map(joined).collect()
}

/// The processes, which end with this value.
struct Group(Vec<Child>);

impl Drop for Group {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Group {
    /// The lines of each rank. As soon as a rank fails, the others end.
    fn wait(&mut self) -> Result<Vec<Vec<Value>>, Failure> {
        let readers: Vec<_> = self
            .0
            .iter_mut()
            .map(|child| {
                let output = child.stdout.take();
                std::thread::spawn(move || -> Vec<Value> {
                    let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
                    lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect()
                })
            })
            .collect();
        let mut ended: Vec<Option<ExitStatus>> = vec![None; self.0.len()];
        while ended.iter().any(Option::is_none) {
            for (rank, (child, ended)) in self.0.iter_mut().zip(&mut ended).enumerate() {
                if ended.is_none() {
                    *ended = child.try_wait().map_err(Failure::other)?;
                }
                if let Some(status) = ended.filter(|status| !status.success()) {
                    return Err(Failure::other(format!(
                        "rank {rank} failed ({status}); its message is above"
                    )));
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(readers.into_iter().map(|reader| reader.join().unwrap_or_default()).collect())
    }
}

/// Starts the process of `rank`, which reads the group's id from its input.
fn start(rank: u32, ranks: u32, options: &CheckOptions, id: &UniqueId) -> std::io::Result<Child> {
    let mut command = Command::new(own_path());
    command.args([GPU_CHECK, RANKS, "--rank", &rank.to_string(), "--ranks", &ranks.to_string()]);
    command.args(["--device", &options.ordinal.to_string(), "--seed", &options.seed.to_string()]);
    command.args(["--scale", options.scale_name()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&id.0)?;
    }
    Ok(child)
}

/// Work of the process of `rank`: exchanges with the others, and prints a line of JSON for each size.
///
/// # Errors
/// If an exchange fails.
pub(super) fn run_rank(rank: u32, ranks: u32, options: &CheckOptions) -> Result<(), Failure> {
    let mut id = [0; ID_BYTES];
    std::io::Read::read_exact(&mut stdin().lock(), &mut id).map_err(Failure::other)?;
    let device = Device::open(options.ordinal + rank).map_err(|why| Failure::new(DEVICE, why.to_string()))?;
    let of_rank = |error: CudaError| Failure::other(format!("rank {rank}: {error}"));
    let joined = exchange(&device, UniqueId(id), rank, ranks, options).map_err(of_rank)?;
    let found = report_through_memory(peer::run(&device, &joined, options.scale));
    outln!("{}", json!({MEMORY: found.map_err(|lost| Failure::other(format!("rank {rank}: {lost}")))?}));
    Ok(())
}

fn exchange(
    device: &Arc<Device>,
    id: UniqueId,
    rank: u32,
    ranks: u32,
    options: &CheckOptions,
) -> Result<Arc<Communicator>, CudaError> {
    device.limit_waits(TIMEOUT);
    let place = (rank as usize, ranks as usize);
    let joined = Arc::new(Communicator::join(&Nccl::open()?, device, &id, place, TIMEOUT)?);
    let of_waits = Arc::downgrade(&joined);
    device.check_during_waits(Box::new(move || of_waits.upgrade().map_or(Ok(()), |joined| joined.check())));
    exchange::run(device, &joined, (options.scale, options.seed), |found| {
        outln!(
            "{}",
            json!({"bytes": found.bytes, "rounds": found.rounds, "differing": found.differing, "us": found.micros})
        );
    })?;
    Ok(joined)
}
