//! Settings of `skein serve`, of one model or several.

use skein_node::config::Settings;
use skein_node::telemetry::LogOptions;
use skein_tls::Certificate;

use crate::front::Named;
use crate::local_workers::worker_count;
use crate::models::limits::Limits;
use crate::settings::{self, EngineSettings, FrontSettings, OtlpSettings, ResponseStore};

/// Settings of `skein serve`. `skein config show` reads the same ones, and so finds the same problems.
#[derive(Debug)]
pub struct ServeSettings {
    /// Of the log and traces.
    pub log: LogOptions,
    /// Of the API.
    pub front: FrontSettings,
    /// Of the workers.
    pub engine: EngineSettings,
    /// Number of workers; `None` = as many as fit the machine.
    pub workers: Option<usize>,
    /// The model.
    pub named: Named,
    /// Bounds on several models.
    pub limits: Limits,
}

impl ServeSettings {
    /// Reads the settings; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let otlp = OtlpSettings::read(settings, "skein-router");
        let log = settings::log_options(settings, "serve", settings::quiet_on_a_terminal());
        Self {
            log: LogOptions { otlp: otlp.options, ..log },
            front: front_settings(settings),
            engine: EngineSettings::read(settings),
            workers: worker_count(settings),
            named: Named::read(settings),
            limits: Limits::read(settings),
        }
    }

    /// What an OTLP collector is shown.
    pub fn collector_certificate(&self) -> Option<Certificate> {
        let otlp = self.log.otlp.as_ref()?;
        let identities = [&otlp.traces, &otlp.metrics].into_iter().flatten();
        let first = identities.filter_map(|endpoint| endpoint.tls.identity.as_ref()).next()?;
        // A file that cannot be read has been named as a problem.
        Certificate::read(&first.cert).ok()
    }

    /// Records problems of a worker on several machines, of which this command is the leader.
    pub fn check_nodes(&self, settings: &mut Settings) {
        let nodes = &self.engine.worker.ranks.nodes;
        if nodes.count == 1 {
            return;
        }
        if nodes.rank > 0 {
            settings.problem(
                "node-rank above 0 is for skein worker: it holds ranks for the machine with node-rank 0, and serves \
                 nothing itself",
            );
        }
        if self.workers.is_some_and(|workers| workers > 1) {
            settings.problem(
                "workers above 1 and nnodes above 1: a machine leads one worker; leave out --workers",
            );
        }
    }
}

fn front_settings(settings: &mut Settings) -> FrontSettings {
    let mut front = FrontSettings::read(settings, ResponseStore::Memory);
    front.router.runtime_swaps = settings.switch("allow-runtime-model-updating");
    front
}
