//! A worker's settings, as the subcommands that run an engine read them.

use clap::{Arg, ArgMatches};
use skein_node::config::Origin;
use skein_node::telemetry;
use skein_worker::config::WorkerConfig;
use skein_worker::draft::Speculate;

use crate::exit::{Failure, USAGE};
use crate::settings::{self, table};
use crate::worker;

/// The positional model argument, as in `serve`.
pub fn model() -> Arg {
    Arg::new("MODEL")
        .help("Model directory, or a name as organisation/model [default: the model that ships with Skein]")
        .conflicts_with("model")
}

/// Reads the settings of a command that runs an engine.
pub async fn read_config(matches: &ArgMatches) -> Result<WorkerConfig, Failure> {
    let mut settings = settings::load(table::BENCH, matches)?;
    let log = settings::log_options(&mut settings, "", Some("warn"));
    let mut config = worker::configure_local(&mut settings).await?;
    // No drafts by default: plain steps are measured, and texts of random weights repeat too often.
    if matches!(settings.origin("speculate"), Origin::Default) {
        config.scheduler.speculate = Speculate::Off;
    }
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    Ok(config)
}
