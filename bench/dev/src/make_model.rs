//! `skein-dev make-model`: writes models of real sizes with random weights.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use skein_bench::models::{
    self, Dtype, FORMS, ModelShape, QuantisedForm, RandomWeights, SHAPES, make_without_weights,
};

use crate::failure::Failure;
use crate::terminal::{print, progress_bar};

/// Longest sequence of a model that is made: no published model has more.
const MOST_TOKENS: i64 = 1 << 24;

/// Flags of `make-model`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct MakeModel {
    #[arg(long, value_name = "NAME", value_parser = shape_names(), help = "Known model whose shape to use")]
    shape: String,
    #[arg(long, default_value = "bf16", help = "Element type of the weights")]
    dtype: DtypeName,
    #[arg(long, value_name = "DIR", help = "Directory to write the model to")]
    out: PathBuf,
    #[arg(long, value_name = "DIR", help = "Model whose tokenizer to copy [default: the shipped one]")]
    tokenizer: Option<PathBuf>,
    #[arg(long, default_value_t = 0, value_name = "N", help = "Seed of the weights")]
    seed: u64,
    #[arg(long, value_name = "N", help = "Number of layers [default: the known model's]")]
    layers: Option<usize>,
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(2..=MOST_TOKENS),
        help = "Longest sequence, for example 131072 for an agent's prompts [default: the known model's]"
    )]
    max_model_len: Option<u32>,
    #[arg(
        long,
        conflicts_with = "no_weights",
        help = "Weights for which a few channels and tokens have much larger activations than the others, as in trained models"
    )]
    outliers: bool,
    #[arg(long, help = "Write only configuration and tokenizer, for --load-format dummy")]
    no_weights: bool,
    #[arg(
        long,
        value_name = "FORM",
        value_parser = form_names(),
        ignore_case = true,
        requires = "no_weights",
        conflicts_with = "outliers",
        help = "With --no-weights: codes that --load-format dummy makes instead of 16 bits"
    )]
    quantization: Option<String>,
    #[arg(long, help = "Replace an existing model")]
    force: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeName {
    Bf16,
    F16,
    F32,
}

/// Runs `make-model`.
///
/// # Errors
/// An unknown shape, or files that cannot be read or written.
pub fn run(flags: &MakeModel) -> Result<(), Failure> {
    let shape = SHAPES.iter().find(|shape| shape.name == flags.shape);
    let shape = shape.ok_or_else(|| Failure::Usage(format!("no shape is called {}", flags.shape)))?;
    let shape = &ModelShape {
        num_hidden_layers: flags.layers.unwrap_or(shape.num_hidden_layers),
        max_position_embeddings: flags
            .max_model_len
            .map_or(shape.max_position_embeddings, |len| len as usize),
        ..*shape
    };
    let shipped = tempfile::tempdir().map_err(Failure::other)?;
    let tokenizer = match &flags.tokenizer {
        Some(dir) => dir,
        None => {
            skein_shipped::unpack_tokenizer(shipped.path()).map_err(Failure::other)?;
            shipped.path()
        }
    };
    let dtype = match flags.dtype {
        DtypeName::Bf16 => Dtype::Bf16,
        DtypeName::F16 => Dtype::F16,
        DtypeName::F32 => Dtype::F32,
    };
    if !flags.force {
        models::check_free(&flags.out).map_err(|error| Failure::Usage(error.to_string()))?;
    }
    if flags.no_weights {
        let form = flags.quantization.as_deref().and_then(QuantisedForm::of);
        let made = make_without_weights(shape, dtype, form, tokenizer, &flags.out);
        let millions = made.map_err(Failure::other)?.parameters as f64 / 1e6;
        let codes = form.map_or(String::new(), |form| format!(" (to be made as {})", form.name));
        let out = flags.out.display();
        return print(&format!(
            "{out}: {millions:.1}M parameters, no weights{codes}\n\
             serve it: skein serve {out} --device cuda --load-format dummy\n"
        ));
    }
    let bar = progress_bar(1000, "  writing {bar:32} {percent}% ({eta} left)");
    let on_progress = |share: f64| bar.set_position((share * 1000.0) as u64);
    let random = RandomWeights { dtype, seed: flags.seed, has_outliers: flags.outliers };
    let made = models::make_model(shape, random, tokenizer, &flags.out, on_progress);
    bar.finish_and_clear();
    let made = made.map_err(Failure::other)?;
    let (millions, mib) = (made.parameters as f64 / 1e6, made.bytes >> 20);
    let out = flags.out.display();
    print(&format!("{out}: {millions:.1}M parameters, {mib} MiB\nserve it: skein serve {out}\n"))
}

fn shape_names() -> clap::builder::PossibleValuesParser {
    SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().into()
}

fn form_names() -> clap::builder::PossibleValuesParser {
    FORMS.iter().map(|form| form.name).collect::<Vec<_>>().into()
}
