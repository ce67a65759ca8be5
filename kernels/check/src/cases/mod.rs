//! Every kernel against its CPU reference: random inputs, poisoned outputs, a grid of shapes. The same cases
//! run on the emulation (in tests) and on a real device (`skein gpu-check`).

mod activation;
mod attention;
mod attention_sm90;
mod blaslt;
mod block_copy;
mod case;
mod embed;
mod experts;
mod heads;
mod inputs;
mod latent;
mod linear;
mod low_rank;
mod mma;
mod norm;
mod packed;
mod quantize;
mod random;
mod ranks;
mod roofline;
mod rope;
mod sample;
mod sm90;
mod softcap;

pub use case::{Bench, Event, Outcome, Report};

use skein_kernels::cuda::{CudaError, Device};
use std::sync::Arc;

/// The cases of one module. `skein gpu-check` runs each group in processes of its own, so that a kernel that
/// breaks the device or never ends costs one group.
#[derive(Debug)]
pub struct Group {
    /// Name on the command line.
    pub name: &'static str,
    /// Most processes that share its cases: several for a group whose references take long.
    pub processes: usize,
    run: fn(&mut Bench) -> Result<(), CudaError>,
}

const fn group(name: &'static str, run: fn(&mut Bench) -> Result<(), CudaError>) -> Group {
    Group { name, processes: 1, run }
}

const fn divided(
    name: &'static str,
    processes: usize,
    run: fn(&mut Bench) -> Result<(), CudaError>,
) -> Group {
    Group { name, processes, run }
}

/// All groups, in the order in which they run. The probes come first: if they fail, the device interprets an
/// instruction differently from the kernels, and the rest follows from that. Then the kernels that a first
/// answer needs; the longest group is last.
pub const GROUPS: &[Group] = &[
    group("mma", mma::run),
    group("sm90", sm90::run),
    divided("attention", 4, attention::run),
    divided("attention_sm90", 2, attention_sm90::run),
    divided("linear", 4, linear::run),
    group(CUBLASLT, blaslt::run),
    group("norm", norm::run),
    group("rope", rope::run),
    group("sample", sample::run),
    group("embed", embed::run),
    group("inputs", inputs::run),
    group("activation", activation::run),
    group("softcap", softcap::run),
    group("quantize", quantize::run),
    group("random", random::run),
    group("roofline", roofline::run),
    group("block_copy", block_copy::run),
    group("heads", heads::run),
    group("latent", latent::run),
    group("low_rank", low_rank::run),
    group("ranks", ranks::run),
    divided("experts", 4, experts::run),
    divided("packed", 4, packed::run),
];

/// The group that needs cuBLASLt. Without the library its cases fail.
pub const CUBLASLT: &str = "cublaslt";

/// What to run, and on which inputs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of the shapes.
    pub scale: Scale,
    /// Seed of the inputs.
    pub seed: u64,
    /// Only cases whose name contains this run.
    pub filter: String,
    /// Which of these cases run.
    pub part: Part,
}

/// Every `of`-th case, from the one with number `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Below `of`.
    pub index: usize,
    /// Number of parts, at least 1.
    pub of: usize,
}

impl Part {
    /// All cases.
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Runs the cases of all groups in this process; calls `on_event` before each case and after each comparison.
///
/// At [`Scale::Full`], if a case's reference would take minutes, a random part of its results is compared,
/// and the others are only checked to have been written.
pub fn run(device: &Arc<Device>, options: &Options, on_event: fn(Event<'_>)) -> Result<Report, CudaError> {
    let mut bench = Bench::new(device, options, on_event)?;
    GROUPS.iter().try_for_each(|group| (group.run)(&mut bench))?;
    Ok(bench.finish())
}

impl Group {
    /// Like [`run`], for the cases of this group; names them all first.
    pub fn run(
        &self,
        device: &Arc<Device>,
        options: &Options,
        on_event: fn(Event<'_>),
    ) -> Result<Report, CudaError> {
        let mut bench = Bench::new(device, options, on_event)?;
        let names = bench.list(self.run)?;
        on_event(Event::Listed(&names));
        (self.run)(&mut bench)?;
        Ok(bench.finish())
    }

    /// Names of the cases that [`Self::run`] would run. Runs none.
    pub fn names(&self, device: &Arc<Device>, options: &Options) -> Result<Vec<String>, CudaError> {
        Bench::new(device, options, |_| {})?.list(self.run)
    }
}

/// Size of the shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// For the emulation: each case takes milliseconds.
    Small,
    /// Shapes of real models.
    Full,
}
