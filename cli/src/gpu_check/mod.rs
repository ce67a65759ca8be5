//! `skein gpu-check`: checks that a GPU computes what the CPU computes, and how fast. Needs only this binary
//! and NVIDIA's driver.

mod bench;
mod error;
mod kernels;
mod models;
mod options;
mod part;
mod ranks;
mod stop;
mod supervise;

use std::sync::Arc;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use skein_kernel_check::cases::{CUBLASLT, Group, Part, Scale};
use skein_kernels::cuda::{BlasLt, CudaError, Device, Kernels};

use error::failure;
pub use options::GPU_CHECK;
use options::{CheckOptions, KERNELS, RANKS};

use crate::exit::{DEVICE, Failure, USAGE};

/// Prints what every stage prints first, and nothing else.
const DEVICE_ONLY: &str = "device";
const STAGES: [&str; 5] = [DEVICE_ONLY, KERNELS, "models", "bench", RANKS];
/// Default of `--group-timeout`, in seconds.
const GROUP_TIMEOUT: &str = "120";
/// Default of `--wait-limit`, in seconds. No launch of a check takes a second.
const WAIT_LIMIT: &str = "10";

/// The command's definition for clap.
pub fn command() -> Command {
    let value = |name: &'static str, default: &'static str| {
        Arg::new(name).long(name).default_value(default).value_name("N")
    };
    Command::new(GPU_CHECK)
        .about("Check GPUs: kernels and models against the CPU, the kernels' speed, exchanges between GPUs")
        .arg(
            Arg::new("STAGE")
                .value_parser(STAGES)
                .help("Run only this stage; device prints one line [default: all; ranks only with --ranks]"),
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
        .arg(Arg::new("group").long("group").value_name("NAME[,NAME]").help(
            "Run only these groups of cases of the kernels: mma, attention, ... (an unknown name lists all)",
        ))
        .arg(Arg::new("jobs").long("jobs").value_name("N").value_parser(value_parser!(u32).range(1..=64)).help(
            "Processes with kernels at a time [default: 1 for each 16 GiB of device memory, up to 4]; with several, \
             times of cases are longer",
        ))
        .arg(
            value("group-timeout", GROUP_TIMEOUT)
                .value_name("SECONDS")
                .value_parser(value_parser!(u64).range(1..))
                .help("Longest time of a process with kernels; its group then fails, and the others go on"),
        )
        .arg(
            Arg::new("without-cublaslt").long("without-cublaslt").action(ArgAction::SetTrue).help(
                "Leave out the products of cuBLASLt; without this flag a machine that lacks it fails",
            ),
        )
        .arg(Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help(
            "Print the processor time of each group of kernels and judge no result; on the emulated device, \
             EMU_LAUNCH=nothing leaves the host's part",
        ))
        .arg(
            value("wait-limit", WAIT_LIMIT).hide(true).value_parser(value_parser!(u64).range(1..)),
        )
        .arg(Arg::new("part").long("part").hide(true).value_parser(parse_part))
        .arg(Arg::new("parent").long("parent").hide(true).value_parser(value_parser!(u32)))
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
    check_stage(matches, stage, asked).map_err(|why| Failure::new(USAGE, why))?;
    let wants = |name: &str| stage.is_none_or(|stage| stage == name);
    let mut groups =
        kernels::groups_named(matches.get_one("group")).map_err(|why| Failure::new(USAGE, why))?;
    if let (Some(&part), Some(&parent), [group]) =
        (matches.get_one("part"), matches.get_one("parent"), &groups[..])
    {
        let is_dry = matches.get_flag("dry-run");
        let asked = part::Asked { group, part, parent, wait_limit: seconds(matches, "wait-limit"), is_dry };
        return part::run(&asked, &options);
    }
    if matches.get_flag("without-cublaslt") {
        groups.retain(|group| group.name != CUBLASLT);
        if groups.is_empty() {
            let message = "--without-cublaslt leaves out the only group of --group".to_owned();
            return Err(Failure::new(USAGE, message));
        }
    }
    let exchanges = stage == Some(RANKS) || asked.is_some();
    let ranks = exchanges.then(|| ranks::count(asked, options.ordinal)).transpose()?;
    let device = Device::open(options.ordinal).map_err(|why| Failure::new(DEVICE, why.to_string()))?;
    let mut report = describe(&device, options.as_json).map_err(|error| failure(&error))?;
    let (mut failed, mut kernels) = (0, kernels::Ended::default());
    if wants(KERNELS) {
        // The device stays open here meanwhile: its driver then starts faster in the groups' processes.
        kernels = kernels::run(&plan(matches, groups, &device), &options, &mut report)?;
    }
    let wants = |name: &str| wants(name) && !kernels.is_stopped;
    if wants("models") {
        failed += models::run(&options, &mut report)?;
    }
    if wants("bench") {
        bench::run(&device, &options, &mut report).map_err(|error| failure(&error))?;
    }
    if let Some(ranks) = ranks.filter(|_| !kernels.is_stopped) {
        // Frees the GPU, which its rank opens in a process of its own.
        drop(device);
        failed += ranks::run(ranks, &options, &mut report)?;
    }
    if options.as_json {
        outln!("{:#}", Value::Object(report));
    }
    verdict(&kernels, failed, options.seed)
}

/// Refuses flags of another stage.
fn check_stage(matches: &ArgMatches, stage: Option<&str>, ranks: Option<u32>) -> Result<(), String> {
    if ranks.is_some() && stage.is_some_and(|stage| stage != RANKS) {
        return Err("--ranks belongs to the stage ranks; give that stage, or none for all".to_owned());
    }
    for only_kernels in ["group", "dry-run"] {
        let is_given = matches.value_source(only_kernels) == Some(ValueSource::CommandLine);
        if is_given && stage != Some(KERNELS) {
            return Err(format!("--{only_kernels} belongs to the stage {KERNELS}; give that stage"));
        }
    }
    Ok(())
}

fn plan(matches: &ArgMatches, groups: Vec<&'static Group>, device: &Device) -> kernels::Plan {
    let jobs = matches.get_one::<u32>("jobs").map(|jobs| *jobs as usize);
    kernels::Plan {
        groups,
        jobs: jobs.unwrap_or_else(|| kernels::default_jobs(device.memory_bytes)),
        timeout: seconds(matches, "group-timeout"),
        wait_limit: seconds(matches, "wait-limit"),
        is_dry: matches.get_flag("dry-run"),
    }
}

/// Names what failed: groups of kernels, and the number of other cases.
fn verdict(kernels: &kernels::Ended, failed: usize, seed: u64) -> Result<(), Failure> {
    let mut failures = Vec::new();
    if !kernels.failed.is_empty() {
        let names = kernels.failed.join(", ");
        failures.push(format!("{} groups of kernels failed: {names}", kernels.failed.len()));
    }
    if kernels.is_stopped {
        failures.push("a signal ended the check".to_owned());
    }
    if failed > 0 {
        failures.push(format!("{failed} cases failed"));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::other(format!("{}; --seed {seed} replays them", failures.join("; "))))
}

fn seconds(matches: &ArgMatches, flag: &str) -> Duration {
    Duration::from_secs(matches.get_one(flag).copied().unwrap_or(1))
}

/// `INDEX/OF`.
fn parse_part(text: &str) -> Result<Part, String> {
    let parts = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    match parts {
        Some((index, of)) if index < of => Ok(Part { index, of }),
        _ => Err("must be INDEX/OF with INDEX below OF".to_owned()),
    }
}

/// Prints one line about the device and its kernels; returns the same as JSON.
fn describe(device: &Arc<Device>, as_json: bool) -> Result<Map<String, Value>, CudaError> {
    let kernels = Kernels::load(device)?;
    let source = kernels.kernel_source().to_string();
    let overlaps = kernels.get("attention_plan")?.may_overlap();
    let blas = BlasLt::open(device)?.map(|blas| blas.version());
    let (major, minor) = device.capability;
    let driver = format!("{}.{}", device.driver / 1000, device.driver % 1000 / 10);
    if !as_json {
        outln!(
            "{}: compute capability {major}.{minor}, {} multiprocessors, {:.1} GiB, driver for CUDA {driver}, kernels \
             {source}{}, cuBLASLt {}\n",
            device.name,
            device.multiprocessors,
            device.memory_bytes as f64 / f64::from(1 << 30),
            if overlaps { " (launches overlap)" } else { "" },
            blas.map_or("absent".to_owned(), |version| version.to_string()),
        );
    }
    let description = json!({
        "name": device.name, "capability": format!("{major}.{minor}"), "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory_bytes, "driver": driver, "kernels": source, "overlaps": overlaps, "cublaslt": blas,
    });
    Ok(Map::from_iter([("device".to_owned(), description)]))
}
