//! `skein serve` with several models: which there are (`list`), what each `needs`, and their
//! workers (`loader`). The router loads each as it is asked for.

pub mod limits;
mod list;
mod loader;
mod needs;

use std::sync::Arc;

use clap::ArgMatches;
use skein_node::config::Settings;
use skein_node::hangup::Hangups;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};
use skein_router::config::RouterConfig;
use skein_router::repository::residency::KeepAlive;
use skein_router::repository::{Entry, MemoryLimits, Repository};
use skein_router::serve::serve_several;

use limits::Limits;
pub use list::Listed;
use loader::{Loads, Start};
use needs::Planned;

use crate::certificates;
use crate::exit::{ADDRESS, Failure, MODEL, USAGE};
use crate::front;
use crate::local_workers::{launch, threads_each, visible_gpus};
use crate::model;
use crate::serve_settings::ServeSettings;
use crate::settings;

/// Serves `listed` until shutdown.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or an address that cannot be used.
pub async fn run(
    matches: &ArgMatches,
    mut settings: Settings,
    read: ServeSettings,
    listed: Listed,
) -> Result<(), Failure> {
    let ServeSettings { log, front, engine, limits, .. } = read;
    if visible_gpus(&engine) > 0 {
        return Err(Failure::new(
            USAGE,
            "several models are served on the CPU only as yet, and this machine has a GPU: add --device cpu, or start a \
             server for each model",
        ));
    }
    let (budget, plans_only) = (limits.budget()?, settings.switch("plan"));
    if !plans_only {
        telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    }
    let mut all = Vec::new();
    for model in listed.models {
        all.push(Planned::of(matches, model, budget).await?);
    }
    check_names(&all)?;
    check_memory(&all, budget)?;
    if plans_only {
        for planned in &all {
            out!("{}: {} bytes\n{}", planned.served.name(), planned.bytes, planned.plan);
        }
        outln!("together at most {budget} bytes");
        return Ok(());
    }
    settings::log_effective(&settings);
    serve(log, front, limits, budget, all).await
}

async fn serve(
    log: LogOptions,
    settings: crate::settings::FrontSettings,
    limits: Limits,
    budget: u64,
    all: Vec<Planned>,
) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&settings.host, settings.port).await?;
    front::warn_if_exposed(&settings);
    certificates::follow_with_hangups(&settings.guards, &shutdown)?;
    let scheme = settings.scheme();
    let config = RouterConfig {
        listen,
        usage_log: front::usage_log(&settings)?,
        responses: front::stored_responses(&settings)?,
        ..settings.router
    };
    let (mut entries, mut starts) = (Vec::new(), Vec::new());
    for planned in all {
        let Planned { served, engine, text, workers, keep_alive, pinned, bytes, plan, slug } = planned;
        entries.push(Entry {
            names: served.names.iter().map(|name| Arc::from(name.as_str())).collect(),
            bytes,
            max_model_len: plan.max_model_len,
            pooled: plan.pooled,
            keep_alive,
            at_start: pinned,
            facts: model::facts(&served.model),
        });
        let of_model = RouterConfig {
            model: served.model.clone(),
            served_model_names: served.names.clone(),
            text,
            root_path: String::new(),
            allowed_origins: Vec::new(),
            metrics: None,
            is_one_of_several: true,
            ..config.clone()
        };
        let threads = threads_each(&engine, workers);
        let launch = launch(&served, workers, &log)?;
        starts.push(Start {
            launch,
            engine: Arc::new(engine),
            threads,
            config: of_model,
            slug,
            planned_bytes: bytes,
        });
    }
    let loads = Loads::new(starts, shutdown.clone());
    let limits = MemoryLimits { budget, load_timeout: limits.load_timeout };
    let models = Repository::start(entries, limits, Arc::new(loads), config)
        .map_err(|message| Failure::new(USAGE, message))?;
    let metrics = skein_router::metrics_port::of_repository(&models).await;
    let _metrics = metrics.map_err(|error| Failure::new(ADDRESS, error.to_string()))?;
    load_pinned(&models);
    let names: Vec<String> = models.entries().iter().map(|entry| entry.name().to_string()).collect();
    let url = format!("{scheme}://{listen}/v1");
    tracing::info!(
        models = names.join(", "),
        memory_bytes = budget,
        url,
        "ready: models are loaded as they are asked for"
    );
    welcome(&models, budget, &url);
    answer_hangups(&shutdown)?;
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            shutdown.requested().await;
            front::announce_shutdown();
        }
    });
    serve_several(listener, models, shutdown.requested()).await.map_err(Failure::other)
}

/// Says that several models are not read again.
fn answer_hangups(shutdown: &Shutdown) -> Result<(), Failure> {
    let (mut hangups, shutdown) = (Hangups::receive().map_err(Failure::other)?, shutdown.clone());
    tokio::spawn(async move {
        loop {
            hangups.next(&shutdown).await;
            tracing::warn!(
                "SIGHUP: several models are not read again; unload one and load it to have its new files"
            );
        }
    });
    Ok(())
}

/// Loads the models that always stay.
fn load_pinned(models: &Repository) {
    for (number, entry) in models.entries().iter().enumerate() {
        if entry.at_start {
            let models = models.clone();
            // A failure is in the log, and the next request tries again.
            tokio::spawn(async move { models.load(number).await });
        }
    }
}

/// What a person sees.
fn welcome(models: &Repository, budget: u64, url: &str) {
    use std::io::IsTerminal;
    if !std::io::stdout().is_terminal() {
        return;
    }
    outln!(
        "\n  Skein serves {} models at {url}, at most {} of memory at once",
        models.entries().len(),
        gib(budget)
    );
    for entry in models.entries() {
        let pinned = if entry.at_start { ", pinned" } else { "" };
        outln!("    {}  {}{pinned}", entry.names.join(", "), gib(entry.bytes));
    }
    outln!("  A model is loaded at its first request. Ctrl-C ends.\n");
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

fn check_names(all: &[Planned]) -> Result<(), Failure> {
    for (number, planned) in all.iter().enumerate() {
        for name in &planned.served.names {
            let same = |other: &Planned| other.served.names.contains(name);
            if let Some(other) = all[..number].iter().find(|other| same(other)) {
                return Err(Failure::new(
                    USAGE,
                    format!(
                        "{} and {} are both called `{name}`: give one of them other names in --models-file",
                        other.served.model.display(),
                        planned.served.model.display()
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Refuses models that can never be in memory.
fn check_memory(all: &[Planned], budget: u64) -> Result<(), Failure> {
    let stays = |planned: &Planned| planned.keep_alive == KeepAlive::Always;
    let pinned: u64 = all.iter().filter(|planned| stays(planned)).map(|planned| planned.bytes).sum();
    for planned in all {
        let beside = if stays(planned) { pinned } else { pinned + planned.bytes };
        if beside > budget {
            let others = match pinned {
                0 => String::new(),
                pinned => format!(" with those that always stay, which take {}", gib(pinned)),
            };
            return Err(Failure::new(
                MODEL,
                format!(
                    "`{}` needs {} of memory by its plan, and {} are allowed for all models{others}: raise --models-memory, \
                     lower its --kv-cache-memory-bytes, or leave it out",
                    planned.served.name(),
                    gib(planned.bytes),
                    gib(budget)
                ),
            ));
        }
    }
    Ok(())
}
