//! `skein router`: gateway and router in front of workers that run elsewhere.

use clap::ArgMatches;
use skein_node::config::text;
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry;

use crate::exit::{Failure, USAGE};
use crate::front::{self, Served};
use crate::settings::{self, FrontSettings, table};

/// Runs until told to end.
///
/// # Errors
/// Bad settings, an unusable model directory, an address that cannot be had.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::ROUTER, matches)?;
    let log = settings::log_options(&mut settings, "router", None);
    let front = FrontSettings::read(&mut settings);
    let workers = settings.list("workers", text);
    if workers.is_empty() {
        settings
            .problem("--workers: name at least one worker as host:port; start one with `skein worker MODEL`");
    }
    settings::check(&settings)?;
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    settings::log_effective(&settings);
    let changes = discovery::static_list(&workers)
        .map_err(|error| Failure::new(USAGE, format!("--workers: {error}")))?;
    let served = Served::from_settings(&mut settings)?;
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&front.host, front.port).await?;
    front::warn_if_exposed(&front);
    let (app, _cluster) = front::start(front::router_config(front, &served, listen), changes).await?;
    tracing::info!(%listen, model = served.name(), workers = workers.len(), "router is listening");
    skein_router::serve::serve(listener, app, shutdown.requested()).await.map_err(Failure::other)
}
