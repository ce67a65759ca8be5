//! `skein bench perplexity`: how well a model predicts a text, and what its number types cost.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};
use serde_json::json;
use skein_hub::Need;
use skein_worker::quality::{Quality, Scored, ScoredSize, measure};

use super::settings::read_config;
use crate::exit::{Failure, MODEL, USAGE};
use crate::model::{self, ModelArgument};
use crate::progress::progress_bar;
use crate::{token_windows, worker};

/// Flags of `bench perplexity`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Perplexity {
    #[arg(long, value_name = "FILE", help = "Text in UTF-8; may be given several times")]
    text: Vec<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "text",
        help = "16-bit little-endian token ids instead of text, in windows of --window"
    )]
    tokens: Option<PathBuf>,
    #[arg(
        long,
        default_value_t = 512,
        value_name = "TOKENS",
        help = "Tokens of a window; its first is not scored"
    )]
    window: usize,
    #[arg(long, value_name = "N", help = "Most windows, evenly spread over the text [default: all]")]
    samples: Option<usize>,
    #[arg(
        long,
        value_name = "MODEL",
        help = "Model to compare with, computed without rounding: adds its perplexity and the divergence from it"
    )]
    reference: Option<String>,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
}

/// Runs `bench perplexity`.
///
/// # Errors
/// Invalid settings, text that cannot be read, or a model that cannot be served on the CPU.
pub async fn run(flags: &Perplexity, matches: &ArgMatches) -> Result<(), Failure> {
    if flags.window < 2 || flags.samples == Some(0) {
        let message = "--window is at least 2, and --samples at least 1";
        return Err(Failure::new(USAGE, message));
    }
    let config = read_config(matches).await?;
    let windows = windows(flags, &config.model)?;
    let longest = windows.iter().map(Vec::len).max().unwrap_or_default();
    let size = ScoredSize { window: longest, threads: config.threads };
    let mut model =
        Scored::load(&config.model, config.precision, size).map_err(|error| worker::failure(&error))?;
    let mut reference = match &flags.reference {
        None => None,
        Some(given) => {
            let argument = ModelArgument { given: Some(given.clone()), revision: None };
            let directory = model::find(&argument, Need::All).await?;
            Some(Scored::exact(&directory, size).map_err(|error| Failure::new(MODEL, error.to_string()))?)
        }
    };
    let bar = progress_bar(windows.len() as u64, "  {bar:32} {pos}/{len} windows ({eta} left)");
    let quality = tokio::task::block_in_place(|| {
        measure(&mut model, reference.as_mut(), &windows, &mut |done| bar.set_position(done as u64))
    });
    bar.finish_and_clear();
    print(flags, &quality.map_err(|error| Failure::new(USAGE, error.to_string()))?);
    Ok(())
}

fn windows(flags: &Perplexity, model: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let most = flags.samples.unwrap_or(usize::MAX);
    match (&flags.tokens, &flags.text[..]) {
        (Some(file), _) => {
            let mut windows = token_windows::of_ids(file, flags.window)?;
            windows.truncate(most);
            Ok(windows)
        }
        (None, []) => Err(Failure::new(USAGE, "give a text (--text FILE) or tokens (--tokens FILE)")),
        (None, files) => token_windows::of_text(model, &token_windows::read(files)?, most, flags.window),
    }
}

fn print(flags: &Perplexity, quality: &Quality) {
    let (own, theirs) = (quality.perplexity(), quality.reference_perplexity());
    let increase = 100.0 * (own / theirs - 1.0);
    if flags.json {
        let mut all = json!({"tokens": quality.tokens, "perplexity": own});
        if flags.reference.is_some() {
            all["reference_perplexity"] = json!(theirs);
            all["increase_percent"] = json!(increase);
            all["mean_kl_divergence"] = json!(quality.mean_divergence());
            all["same_top_token"] = json!(quality.share_of_same_top());
            all["mean_log_prob_error_of_20"] = json!(quality.mean_log_prob_error());
        }
        return outln!("{all:#}");
    }
    outln!("{} tokens, perplexity {own:.4}", quality.tokens);
    if flags.reference.is_some() {
        outln!("reference {theirs:.4}, so {increase:+.3}%");
        outln!(
            "mean KL divergence from the reference {:.5} nats; same most likely token {:.2}%; log probabilities of its 20 \
             most likely tokens differ by {:.4} on average",
            quality.mean_divergence(),
            100.0 * quality.share_of_same_top(),
            quality.mean_log_prob_error()
        );
    }
}
