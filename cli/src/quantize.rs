//! `skein quantize`: writes a quantised copy of a model.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use indicatif::ProgressBar;
use skein_hub::{Need, Revision};
use skein_node::config::bytes;
use skein_node::telemetry::{self, LogFormat, LogOptions};
use skein_quantize::maths::gptq::ActOrder;
use skein_quantize::{Layout, Method, Phase, Progress, QuantizeError, Request, Scheme};

use crate::exit::{Failure, MODEL, OTHER, USAGE};
use crate::model::{self, ModelArgument};
use crate::progress::progress_bar;
use crate::token_windows;

/// Name of the command.
pub const QUANTIZE: &str = "quantize";

/// Calibration text if none is given: pages of the manual, which the binary thus contains.
const TEXT: [&str; 12] = [
    include_str!("../../docs/src/introduction.md"),
    include_str!("../../docs/src/quick-start.md"),
    include_str!("../../docs/src/models.md"),
    include_str!("../../docs/src/api.md"),
    include_str!("../../docs/src/batch.md"),
    include_str!("../../docs/src/cluster.md"),
    include_str!("../../docs/src/groups.md"),
    include_str!("../../docs/src/operations.md"),
    include_str!("../../docs/src/routing.md"),
    include_str!("../../docs/src/streams.md"),
    include_str!("../../docs/src/structured.md"),
    include_str!("../../docs/src/tools.md"),
];

const LONG_ABOUT: &str = "Write a quantised copy of a model, in layouts that vLLM and transformers have, too.

  skein quantize Qwen/Qwen3-0.6B q4 --method gptq --calibration text.txt
  skein serve q4

rtn and gptq write GPTQ's layout, awq AWQ's, int8 (W8A8) and fp8 (a scale for each output) compressed-tensors. gptq and awq \
measure activations on calibration text, which should be like what the model will read. Memory holds one layer: up to five \
bytes a weight, or two and a square of 32-bit numbers over the inputs of each product and expert (gptq), whichever is more; \
--hessian-memory-bytes bounds those. After a kill, the same command goes on at the layer where it stopped.";

/// Flags of `quantize`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Quantize {
    #[arg(value_name = "MODEL", help = "Model directory in safetensors, or a name as organisation/model")]
    model: String,
    #[arg(value_name = "OUT", help = "Directory to write, new or of an unfinished run")]
    out: PathBuf,
    #[arg(long, value_name = "METHOD", help = "How to choose the codes")]
    method: MethodName,
    #[arg(long, value_name = "N", help = "Bits of a code of rtn and gptq: 2, 3, 4, 8 [default: 4]")]
    bits: Option<u32>,
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = "Inputs that share a scale; -1 = all [default: 128, or 64 or 32 if the matrices need it]"
    )]
    group_size: Option<i64>,
    #[arg(long, value_name = "LAYOUT", help = "Layout of the tensors [default: by method]")]
    layout: Option<LayoutName>,
    #[arg(long, help = "Choose a zero point for each group; awq always does")]
    asymmetric: bool,
    #[arg(
        long,
        default_value = "static",
        value_name = "ORDER",
        help = "Order in which gptq rounds inputs: as stored, or the most active first, with groups as stored (static) or in that order (group)"
    )]
    act_order: OrderName,
    #[arg(
        long,
        default_value_t = 0.01,
        value_name = "SHARE",
        help = "Share of the mean that gptq adds to the Hessian's diagonal"
    )]
    damping: f32,
    #[arg(
        long,
        value_name = "FILE",
        help = "Calibration text in UTF-8; may be given several times [default: pages of Skein's manual]"
    )]
    calibration: Vec<PathBuf>,
    #[arg(long, default_value_t = 128, value_name = "N", help = "Most windows of calibration text")]
    calibration_samples: usize,
    #[arg(long, default_value_t = 512, value_name = "TOKENS", help = "Length of a window")]
    calibration_length: usize,
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        help = "Most memory for the Hessians that gptq measures in one pass over the text; a layer with more has several passes, and the same result [default: half of what is free]"
    )]
    hessian_memory_bytes: Option<u64>,
    #[arg(long, value_name = "REVISION", help = "Branch, tag or commit of a named model")]
    revision: Option<String>,
    #[arg(long, help = "Print the report as JSON")]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MethodName {
    Rtn,
    Gptq,
    Awq,
    Int8,
    Fp8,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutName {
    Gptq,
    Awq,
    CompressedTensors,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OrderName {
    Off,
    Static,
    Group,
}

/// The command for clap.
pub fn command() -> Command {
    // The flags' own comment would replace an earlier description.
    Quantize::augment_args(Command::new(QUANTIZE))
        .about("Write a quantised copy of a model")
        .long_about(LONG_ABOUT)
}

/// Runs `skein quantize`.
///
/// # Errors
/// Options that exclude each other, a model that cannot be quantised, or files that cannot be read or
/// written.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let flags = Quantize::from_arg_matches(matches).map_err(|error| error.exit())?;
    let level = Some(if std::io::stderr().is_terminal() { "warn" } else { "info" }.to_owned());
    telemetry::init(&LogOptions { format: LogFormat::Human, level, process: String::new(), otlp: None })
        .map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let usage = |message: String| Failure::new(USAGE, message);
    let parse = |text: &String| Revision::parse(text).map_err(|error| usage(error.to_string()));
    let revision = flags.revision.as_ref().map(parse).transpose()?;
    let argument = ModelArgument { given: Some(flags.model.clone()), revision };
    let directory = model::find(&argument, Need::All).await?;
    let scheme = scheme(&flags, &directory)?;
    if let Some(why) = scheme.contradiction() {
        return Err(usage(why));
    }
    let windows = if scheme.method.is_calibrated() { calibration(&flags, &directory)? } else { Vec::new() };
    // Computing takes minutes to hours and never waits.
    tokio::task::block_in_place(|| quantise(&flags, &directory, &scheme, &windows))
}

fn scheme(flags: &Quantize, directory: &Path) -> Result<Scheme, Failure> {
    let method = match flags.method {
        MethodName::Rtn => Method::Rtn,
        MethodName::Gptq => Method::Gptq,
        MethodName::Awq => Method::Awq,
        MethodName::Int8 => Method::Int8,
        MethodName::Fp8 => Method::Fp8,
    };
    let group = match flags.group_size {
        None if matches!(method, Method::Int8 | Method::Fp8) => None,
        None => skein_quantize::default_group(directory).map_err(|error| failure(&error))?,
        Some(-1) => None,
        Some(size) => {
            let size = usize::try_from(size).ok().filter(|size| *size > 0 && size.is_multiple_of(32));
            let bad =
                || Failure::new(USAGE, "--group-size is a multiple of 32, or -1 for all inputs".to_owned());
            Some(size.ok_or_else(bad)?)
        }
    };
    if matches!(method, Method::Int8 | Method::Fp8) && group.is_some() {
        let message = format!("--group-size: method {} has a scale for each output", method.name());
        return Err(Failure::new(USAGE, message));
    }
    let mut scheme = Scheme::of(method, group);
    scheme.bits = flags.bits.unwrap_or(scheme.bits);
    scheme.layout = match flags.layout {
        None => scheme.layout,
        Some(LayoutName::Gptq) => Layout::Gptq,
        Some(LayoutName::Awq) => Layout::Awq,
        Some(LayoutName::CompressedTensors) => Layout::CompressedTensors,
    };
    scheme.is_symmetric = !flags.asymmetric && scheme.layout != Layout::Awq;
    scheme.order = match (method, flags.act_order) {
        (Method::Gptq, OrderName::Static) => ActOrder::Static,
        (Method::Gptq, OrderName::Group) => ActOrder::Group,
        _ => ActOrder::Off,
    };
    scheme.damping = flags.damping;
    Ok(scheme)
}

fn size(given: &str) -> Result<u64, String> {
    bytes(0..=1 << 50)(given)
}

fn calibration(flags: &Quantize, directory: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    if flags.calibration_samples == 0 || flags.calibration_length < 2 {
        let message = "--calibration-samples is at least 1, and --calibration-length at least 2";
        return Err(Failure::new(USAGE, message));
    }
    let text = match &flags.calibration[..] {
        [] => TEXT.concat(),
        files => token_windows::read(files)?,
    };
    token_windows::of_text(directory, &text, flags.calibration_samples, flags.calibration_length)
}

fn quantise(
    flags: &Quantize,
    directory: &Path,
    scheme: &Scheme,
    windows: &[Vec<u32>],
) -> Result<(), Failure> {
    let hessian_bytes = flags.hessian_memory_bytes;
    let request = Request { model: directory, out: &flags.out, scheme, calibration: windows, hessian_bytes };
    let bar = progress_bar(1000, "  quantising {bar:32} {percent}% {msg} ({eta} left)");
    let mut layer = None;
    let report = skein_quantize::quantise(&request, &mut |progress| show(&bar, &mut layer, progress));
    bar.finish_and_clear();
    let report = report.map_err(|error| failure(&error))?;
    let tokens: usize = windows.iter().map(Vec::len).sum();
    if flags.json {
        outln!(
            "{:#}",
            serde_json::json!({"layers": report.layers, "layers_found": report.found, "bytes_before": report.before,
                "bytes_after": report.after, "calibration_tokens": tokens})
        );
        return Ok(());
    }
    let (before, after) = (report.before as f64 / 1e6, report.after as f64 / 1e6);
    let found = if report.found > 0 { format!(", {} found finished", report.found) } else { String::new() };
    outln!("{}: {} layers{found}; {before:.1} MB are now {after:.1} MB", flags.out.display(), report.layers);
    outln!("serve it: skein serve {}", flags.out.display());
    Ok(())
}

fn show(bar: &ProgressBar, layer: &mut Option<usize>, progress: Progress) {
    let Progress { layer: at, layers, phase, done, of } = progress;
    let (part, name) = match phase {
        Phase::Calibrate => (0.0, "runs over the text"),
        Phase::Quantise => (0.4, "is rounded"),
        Phase::Propagate => (0.8, "runs as rounded"),
    };
    let within = part + 0.2 * done as f64 / of.max(1) as f64;
    let position = ((at as f64 + within) * 1000.0 / layers as f64) as u64;
    bar.set_position(position.max(bar.position())); // passes over the text and rounding take turns
    bar.set_message(format!("layer {} of {layers} {name}", at + 1));
    if layer.replace(at) != Some(at) {
        tracing::info!(layer = at + 1, layers, "quantising");
    }
}

fn failure(error: &QuantizeError) -> Failure {
    let code = match error {
        QuantizeError::Load(_) => MODEL,
        QuantizeError::Refused(_) => USAGE,
        QuantizeError::Write { .. } => OTHER,
    };
    Failure::new(code, error.to_string())
}
