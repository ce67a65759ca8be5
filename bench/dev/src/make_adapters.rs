//! `skein-dev make-adapters`: writes LoRA adapters with random weights.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use skein_bench::models::{Targets, make_adapters};

use crate::failure::Failure;

/// Flags of `make-adapters`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct MakeAdapters {
    #[arg(value_name = "MODEL", help = "Model directory whose shapes to use")]
    model: PathBuf,
    #[arg(long, value_name = "DIR", help = "Directory to write a0, a1 and so on to")]
    out: PathBuf,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Number of adapters")]
    count: usize,
    #[arg(long, default_value_t = 16, value_name = "RANK", help = "Rank of the adapters")]
    rank: usize,
    #[arg(long, default_value = "attention", help = "Matrices to change")]
    targets: TargetsName,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TargetsName {
    Attention,
    All,
}

/// Runs `make-adapters`.
///
/// # Errors
/// A model that cannot be read, or files that cannot be written.
pub fn run(flags: &MakeAdapters) -> Result<(), Failure> {
    let targets = match flags.targets {
        TargetsName::Attention => Targets::Attention,
        TargetsName::All => Targets::All,
    };
    make_adapters(&flags.model, &flags.out, flags.count, flags.rank, targets).map_err(Failure::other)
}
