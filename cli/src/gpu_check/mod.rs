//! `skein gpu-check`: checks that a GPU computes what the CPU computes, and how fast. Needs only this binary
//! and NVIDIA's driver.

mod bench;
mod kernels;
mod models;
mod ranks;

use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use skein_kernel_check::cases::Scale;
use skein_kernels::cuda::{BlasLt, CudaError, Device, Kernels};

use crate::exit::{DEVICE, Failure, USAGE};

/// Name of the command.
pub const GPU_CHECK: &str = "gpu-check";
const RANKS: &str = "ranks";
const STAGES: [&str; 4] = ["kernels", "models", "bench", RANKS];

/// The command's flags.
struct CheckOptions {
    scale: Scale,
    only: String,
    seed: u64,
    ordinal: u32,
    as_json: bool,
}

impl CheckOptions {
    fn scale_name(&self) -> &'static str {
        if self.scale == Scale::Full { "full" } else { "small" }
    }
}

/// Its definition for clap.
pub fn command() -> Command {
    let value = |name: &'static str, default: &'static str| {
        Arg::new(name).long(name).default_value(default).value_name("N")
    };
    Command::new(GPU_CHECK)
        .about("Check GPUs: kernels and models against the CPU, the kernels' speed, exchanges between GPUs")
        .arg(
            Arg::new("STAGE")
                .value_parser(STAGES)
                .help("Run only this stage [default: all; ranks only with --ranks]"),
        )
        .arg(
            value("scale", "small")
                .value_parser(["small", "full"])
                .value_name("SCALE")
                .help("Sizes of the cases: small, or full as in real models"),
        )
        .arg(Arg::new("only").long("only").value_name("TEXT").help("Run only cases whose name contains this"))
        .arg(value("seed", "1").value_parser(value_parser!(u64)).help("Seed of the inputs"))
        .arg(
            value("device", "0")
                .value_parser(value_parser!(u32))
                .help("Number of the GPU, among the visible ones; of several, the first"),
        )
        .arg(
            Arg::new("ranks").long("ranks").value_name("N").value_parser(["2", "4", "8"]).help(
                "Check exchanges between this many GPUs [default of the stage ranks: all visible ones]",
            ),
        )
        .arg(Arg::new("rank").long("rank").hide(true).value_parser(value_parser!(u32)))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of tables"))
}

/// Runs the check.
///
/// # Errors
/// No usable device (exit code 4), or a case that failed.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let options = CheckOptions {
        scale: if text("scale") == "full" { Scale::Full } else { Scale::Small },
        only: text("only").to_owned(),
        seed: matches.get_one("seed").copied().unwrap_or(1),
        ordinal: matches.get_one("device").copied().unwrap_or(0),
        as_json: matches.get_flag("json"),
    };
    let asked: Option<u32> = matches.get_one::<String>("ranks").and_then(|ranks| ranks.parse().ok());
    if let (Some(&rank), Some(ranks)) = (matches.get_one("rank"), asked) {
        return ranks::run_rank(rank, ranks, &options);
    }
    let stage = matches.get_one::<String>("STAGE").map(String::as_str);
    let wants = |name: &str| stage.is_none_or(|stage| stage == name);
    if asked.is_some() && !wants(RANKS) {
        let message = "--ranks belongs to the stage ranks; give that stage, or none for all".to_owned();
        return Err(Failure::new(USAGE, message));
    }
    let exchanges = stage == Some(RANKS) || asked.is_some();
    let ranks = exchanges.then(|| ranks::count(asked, options.ordinal)).transpose()?;
    let device = Device::open(options.ordinal).map_err(|why| Failure::new(DEVICE, why.to_string()))?;
    let mut report = describe(&device, options.as_json).map_err(|error| failure(&error))?;
    let mut failed = 0;
    if wants("kernels") {
        failed += kernels::run(&device, &options, &mut report).map_err(|error| failure(&error))?;
    }
    if wants("models") {
        failed += models::run(&options, &mut report)?;
    }
    if wants("bench") {
        bench::run(&device, &options, &mut report).map_err(|error| failure(&error))?;
    }
    if let Some(ranks) = ranks {
        // Frees the GPU, which its rank opens in a process of its own.
        drop(device);
        failed += ranks::run(ranks, &options, &mut report)?;
    }
    if options.as_json {
        outln!("{:#}", Value::Object(report));
    }
    if failed > 0 {
        let message = format!("{failed} cases failed; --seed {} replays them", options.seed);
        return Err(Failure::other(message));
    }
    Ok(())
}

/// Prints one line about the device and its kernels; returns the same as JSON.
fn describe(device: &Arc<Device>, as_json: bool) -> Result<Map<String, Value>, CudaError> {
    let source = Kernels::load(device)?.kernel_source().to_string();
    let blas = BlasLt::open(device)?.map(|blas| blas.version());
    let (major, minor) = device.capability;
    let driver = format!("{}.{}", device.driver / 1000, device.driver % 1000 / 10);
    if !as_json {
        outln!(
            "{}: compute capability {major}.{minor}, {} multiprocessors, {:.1} GiB, driver for CUDA {driver}, kernels \
             {source}, cuBLASLt {}\n",
            device.name,
            device.multiprocessors,
            device.memory_bytes as f64 / f64::from(1 << 30),
            blas.map_or("absent".to_owned(), |version| version.to_string()),
        );
    }
    let description = json!({
        "name": device.name, "capability": format!("{major}.{minor}"), "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory_bytes, "driver": driver, "kernels": source, "cublaslt": blas,
    });
    Ok(Map::from_iter([("device".to_owned(), description)]))
}

/// Without kernels that it can run, a device counts as missing.
fn failure(error: &CudaError) -> Failure {
    match error {
        CudaError::NoCompiler { .. } => Failure::new(DEVICE, error.to_string()),
        _ => Failure::other(error),
    }
}
