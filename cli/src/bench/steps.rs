//! `skein bench step-times`, hidden: what steps of a few sizes take, as JSON for `skein-dev batching
//! --measure`.

use clap::ArgMatches;
use serde_json::json;
use skein_bench::engine::steps::{Limits, MeasuredWorker, RUNS_OF_A_SIZE, measure};
use skein_worker::service::LocalWorker;

use super::settings::read_config;
use crate::exit::Failure;
use crate::progress::progress_bar;
use crate::worker;

/// Runs `bench step-times`.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or a request that did not finish.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let config = read_config(matches).await?;
    let worker = LocalWorker::start(&config, |_, _| {}).map_err(|error| worker::failure(&error))?;
    let limits = Limits {
        max_num_seqs: worker.max_num_seqs,
        max_model_len: worker.max_model_len,
        kv_tokens: worker.kv_tokens,
        vocab_size: worker.vocab_size,
    };
    let bar = progress_bar(RUNS_OF_A_SIZE, "  {bar:32} {pos}/{len} measurements, {elapsed}");
    let times = measure(&worker.engine, &limits, |sizes| {
        bar.set_length(RUNS_OF_A_SIZE * sizes as u64);
        bar.inc(1);
    });
    let times = times.await.map_err(Failure::other)?;
    bar.finish_and_clear();
    let model = format!("{} on {}", config.served_model_name, worker.device.name());
    worker.stop().await.map_err(Failure::other)?;
    outln!("{:#}", json!(MeasuredWorker { model, limits, times }));
    Ok(())
}
