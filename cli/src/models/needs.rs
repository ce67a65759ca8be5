//! What a model needs: its files, its settings, and its memory by plan.

use clap::ArgMatches;
use skein_hub::Need;
use skein_router::repository::residency::KeepAlive;
use skein_text::files::TextFiles;
use skein_text::sources::TextSources;
use skein_worker::config::WorkerConfig;
use skein_worker::load::{self, MemoryPlan};

use super::list::ListedModel;
use crate::exit::{Failure, MODEL};
use crate::front::Served;
use crate::local_workers::worker_count;
use crate::settings::{self, EngineSettings, table, text_sources};
use crate::swap::resolved;
use crate::worker::failure;

/// Of the memory of all models, what the KV cache of one takes at most unless its size is given: there is
/// room for other models beside it.
const KV_SHARE: u64 = 8;
/// Workers of each model: all processors compute for one at a time. A second would take memory of its own.
const WORKERS: usize = 1;

/// A model that can be loaded.
pub struct Planned {
    /// Its files and names.
    pub served: Served,
    /// Settings of its workers.
    pub engine: EngineSettings,
    /// Sources of its text.
    pub text: TextSources,
    /// Number of its workers.
    pub workers: usize,
    /// How long it stays without requests.
    pub keep_alive: KeepAlive,
    /// Whether it is loaded at the start and always stays.
    pub pinned: bool,
    /// Memory of all its workers.
    pub bytes: u64,
    /// Plan of one worker.
    pub plan: MemoryPlan,
    /// What its workers are called, before their number.
    pub slug: String,
}

impl Planned {
    /// Finds `model`, reads its settings and plans its memory, of which all models may take `budget` bytes.
    ///
    /// # Errors
    /// A model that is not there or cannot be served, or settings that are invalid.
    pub async fn of(matches: &ArgMatches, model: ListedModel, budget: u64) -> Result<Self, Failure> {
        let ListedModel { argument, names, keep_alive, pinned, above, slug } = model;
        let shown = names.first().cloned().or_else(|| argument.given.clone()).unwrap_or_default();
        let in_model = |failure: Failure| Failure {
            message: format!("model `{shown}`: {}", failure.message),
            ..failure
        };
        let mut settings = settings::load_with(table::SERVE, matches, above)?;
        let mut engine = EngineSettings::read(&mut settings);
        let text = text_sources(&mut settings);
        let workers = worker_count(&mut settings).unwrap_or(WORKERS);
        if engine.worker.ranks.nodes.count > 1 {
            settings.problem("nnodes above 1: a model on several machines has a server of its own");
        }
        settings::check(&settings).map_err(in_model)?;
        let served = Served::find(&argument, names, Need::All).await.map_err(in_model)?;
        let served = Served { model: resolved(served.model), ..served };
        check_text(&served, &text).await.map_err(in_model)?;
        engine.worker.memory_sharers = workers as u32;
        engine.worker.model.clone_from(&served.model);
        let plan = sized(&mut engine.worker, workers as u64, budget).map_err(in_model)?;
        let bytes = plan.bytes_of(workers as u64);
        Ok(Self { served, engine, text, workers, keep_alive, pinned, bytes, plan, slug })
    }
}

/// Refuses a model whose tokenizer or chat template is missing. Whether they can be used is seen when it is
/// loaded.
async fn check_text(served: &Served, sources: &TextSources) -> Result<(), Failure> {
    let (model, sources) = (served.model.clone(), sources.clone());
    let read = tokio::task::spawn_blocking(move || TextFiles::read(&model, &sources).map(drop));
    read.await.map_err(Failure::other)?.map_err(|error| Failure::new(MODEL, error.to_string()))
}

/// Plans a worker of `config`. Its cache gets a size that does not depend on what else is in memory when it
/// starts, so that the plan holds.
fn sized(config: &mut WorkerConfig, workers: u64, budget: u64) -> Result<MemoryPlan, Failure> {
    let plan = |config: &WorkerConfig| load::plan(config).map_err(|error| failure(&error));
    if config.kv_cache_memory_bytes.is_some() {
        return plan(config);
    }
    let first = plan(config)?;
    let of_rank = first.ranks.iter().map(|rank| {
        let (cache, states) = (rank.allocated.kv_cache, rank.allocated.states);
        // States get at most half of a given size.
        (cache + states).max(2 * states)
    });
    let wanted = of_rank.max().unwrap_or(0);
    let share = budget / KV_SHARE / workers.max(1);
    config.kv_cache_memory_bytes = Some(wanted.min(share.max(first.sequence_bytes(first.block_size))));
    plan(config)
}
