//! `skein bench serve`: load over HTTP.

mod flags;
mod requests;
mod result;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use skein_bench::load::client::Server;
use skein_bench::load::detail::detail;
use skein_bench::load::metrics::{Record, Report};
use skein_bench::load::watch::watch;
use skein_bench::load::workload::Workload;
use skein_bench::load::{self, HeldBack, Pace, report};
use skein_bench::saved::{self, Saved};
use skein_node::clock;

pub use flags::Serve;

use crate::exit::{Failure, USAGE};
use crate::progress::progress_bar;

/// Runs `bench serve`.
///
/// # Errors
/// Invalid flags, an unreachable server, a result that cannot be written, or no request that finished.
pub async fn run(flags: &Serve) -> Result<(), Failure> {
    if let [before, after] = &flags.compare[..] {
        let read = |path: &PathBuf| Saved::read(path).map_err(Failure::other);
        let results = [read(before)?, read(after)?];
        out!("{}", saved::comparison(&results[0], &results[1]));
        return write_plots(flags.plot.as_ref(), &results);
    }
    if !flags.plot_results.is_empty() {
        return write_plots(
            flags.plot.as_ref(),
            &saved::read_all(&flags.plot_results).map_err(Failure::other)?,
        );
    }
    measure(flags).await
}

async fn measure(flags: &Serve) -> Result<(), Failure> {
    let usage = |message| Failure::new(USAGE, message);
    let (mut workload, targets, extra) = flags.check().map_err(usage)?;
    let held_back = HeldBack::parse(&flags.batching).map_err(|error| usage(format!("--batching {error}")))?;
    let base_url = flags.base_url.clone().unwrap_or_else(|| format!("http://{}:{}", flags.host, flags.port));
    let timeout = Duration::from_secs(flags.request_timeout);
    let (http, base_url) = flags.certificates.client("--base-url", &base_url, Server::limits(timeout))?;
    let server = Server::connect(http, &base_url, flags.model.clone(), flags.api_key.clone(), extra)
        .await
        .map_err(Failure::other)?;
    let context = server.max_model_len().await;
    let notice = context.map_or(Ok(None), |context| flags.fit(&mut workload, context)).map_err(usage)?;
    if let Some(notice) = notice {
        eprintln!("{notice}");
    }
    let result_file = flags.result_file(server.model())?;
    let pace = Pace {
        request_rate: flags.request_rate.filter(|rate| rate.is_finite()),
        burstiness: flags.burstiness,
        max_concurrency: flags.max_concurrency,
        seed: flags.seed,
        held_back,
    };
    warm_up(flags, &server, &workload).await?;
    let sessions = flags.sessions(&server, &workload, context).await?;
    let total: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let bar = progress_bar(total as u64, "  {bar:32} {pos}/{len} requests, {elapsed} ({eta} left)");
    let mut readings = Vec::new();
    let records = tokio::select! {
        records = load::run(&server, sessions, pace, |_| bar.inc(1)) => records,
        () = watch(&server, clock::now(), &mut readings) => Vec::new(),
    };
    bar.finish_and_clear();
    let report = Report::of(&records, &targets);
    let mut result = flags.context(&server, &pace);
    result.extend(report.to_json());
    if let Some(path) = &flags.plot {
        let mut detailed = result.clone();
        detailed.extend(detail(&records, &readings));
        let name = flags.label.clone().unwrap_or_else(|| flags.title(server.model()));
        write_plots(Some(path), &[Saved::new(name, Value::Object(detailed))])?;
    }
    if flags.save_detailed {
        result.extend(detail(&records, &readings));
    }
    let result = format!("{:#}\n", Value::Object(result));
    // Print before saving, so that a full disk does not lose the run.
    if flags.json {
        out!("{result}");
    } else {
        out!("{}", report::table(&flags.title(server.model()), &report));
    }
    if let Some(path) = result_file {
        write(&path, &result)?;
    }
    if report.completed == 0 {
        let first = first_failure(&records).unwrap_or_else(|| "none was sent".to_owned());
        return Err(Failure::other(format!("no request finished; the first one: {first}")));
    }
    Ok(())
}

fn write_plots(path: Option<&PathBuf>, results: &[Saved]) -> Result<(), Failure> {
    path.map_or(Ok(()), |path| write(path, &saved::plots(results)))
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    std::fs::write(path, content)
        .map_err(|error| Failure::other(format!("cannot write {}: {error}", path.display())))?;
    eprintln!("saved {}", path.display());
    Ok(())
}

fn first_failure(records: &[Record]) -> Option<String> {
    records.iter().find_map(Record::failure)
}

/// Sends prompts other than the measured ones, so that none of those is cached yet.
async fn warm_up(flags: &Serve, server: &Server, workload: &Workload) -> Result<(), Failure> {
    let mut sessions = workload.sessions(flags.num_warmups, flags.vocab_size, !flags.seed);
    sessions.iter_mut().for_each(|session| session.at = None);
    let pace =
        Pace { request_rate: None, burstiness: 1.0, max_concurrency: Some(1), seed: 0, held_back: None };
    let records = load::run(server, sessions, pace, |_| {}).await;
    match first_failure(&records) {
        Some(error) => {
            Err(Failure::other(format!("the warm-up request failed ({error}); nothing was measured")))
        }
        None => Ok(()),
    }
}
