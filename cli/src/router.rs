//! `skein router`: a router in front of workers that run elsewhere.

use std::sync::Arc;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::config::{Origin, Settings, count, text};
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};

use crate::certificates;
use crate::exit::{Failure, USAGE};
use crate::front::{self, Named};
use crate::membership;
use crate::settings::{self, DiscoverySettings, FrontSettings, OtlpSettings, ResponseStore, table};
use crate::upstream;

/// Runs the router until shutdown.
///
/// # Errors
/// Invalid settings, an unusable model directory, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::ROUTER, matches)?;
    let otlp = OtlpSettings::read(&mut settings, "skein-router").options;
    let log = LogOptions { otlp, ..settings::log_options(&mut settings, "router", None) };
    let mut front = FrontSettings::read(&mut settings, ResponseStore::None);
    front.router.endpoint_port = settings.value("endpoint-port", count(1..=65_535)).map(|port| port as u16);
    front.router.follow_picks = settings.switch("follow-picks");
    if let Some(config) = upstream::read(&mut settings, &front) {
        return upstream::run(settings, &log, front, config).await;
    }
    let workers = settings.list("workers", text);
    let discovery = DiscoverySettings::read(&mut settings);
    check_one_source(&mut settings);
    let listed = front::listed(&mut settings, "workers", &workers);
    let named = Named::read(&mut settings);
    settings::check(&settings)?;
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let served = named.find(Need::Text).await?;
    settings::log_effective(&settings);
    discovery.watch();
    let changes = match (discovery.source, listed) {
        (Some(source), _) => membership::follow(source, discovery.etcd).await?,
        (None, Some(listed)) => listed,
        // Without a source the settings had a problem, which is reported later.
        (None, None) => discovery::in_process().1,
    };
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&front.host, front.port).await?;
    front::warn_if_exposed(&front);
    certificates::follow_with_hangups(&front.guards, &shutdown)?;
    let url = front.url(listen);
    let connector = front.guards.connector(None).unwrap_or_default();
    let config = front::router_config(front, &served, listen)?;
    let starting = front::start_with(config, changes, Arc::new(connector));
    let (app, cluster) = front::trace_start(served.name(), starting).await?;
    tracing::info!(url, model = served.name(), "router is listening");
    front::say_when_ready(&cluster, served.name(), url);
    let _metrics = front::metrics_port(&app).await?;
    skein_router::serve::serve(listener, app, shutdown.requested()).await.map_err(Failure::other)
}

fn check_one_source(settings: &mut Settings) {
    let given = |name| settings.origin(name) != &Origin::Default;
    match (given("workers"), given("discovery")) {
        (true, true) => {
            settings.problem("--workers and --discovery: both define the workers; leave one of them out")
        }
        (false, false) => settings.problem(
            "--workers: name at least one worker as host:port, or use --discovery to find them; start one \
             with `skein worker MODEL`. For servers that speak the OpenAI API, use --worker-urls",
        ),
        _ => {}
    }
}
