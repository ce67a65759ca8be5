//! `skein gateway`: the same API in front of several routers. It is a router whose workers are routers.

use std::sync::Arc;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::config::text;
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};
use skein_router::links::transport::Grpc;

use crate::certificates;
use crate::exit::{Failure, USAGE};
use crate::front::{self, Named};
use crate::settings::{self, FrontSettings, Guards, OtlpSettings, ResponseStore, table};

/// Runs the gateway until shutdown.
///
/// # Errors
/// Invalid settings, an unusable model directory, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::GATEWAY, matches)?;
    let otlp = OtlpSettings::read(&mut settings, "skein-gateway").options;
    let log = LogOptions { otlp, ..settings::log_options(&mut settings, "gateway", None) };
    let front = FrontSettings::read(&mut settings, ResponseStore::None);
    let routers = settings.list("routers", text);
    if routers.is_empty() {
        settings.problem(
            "--routers: name at least one router as host:port; start one with `skein router MODEL --workers ...`",
        );
    }
    let listed = front::listed(&mut settings, "routers", &routers);
    let connector = connector(&settings.list("router-api-key", text), &front.guards);
    let connector = connector.map_err(|problem| settings.problem(problem));
    let named = Named::read(&mut settings);
    settings::check(&settings)?;
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let served = named.find(Need::Text).await?;
    settings::log_effective(&settings);
    // `None` means that the settings had a problem, which is reported later.
    let changes = listed.unwrap_or_else(|| discovery::in_process().1);
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&front.host, front.port).await?;
    front::warn_if_exposed(&front);
    let connector = connector.unwrap_or_default();
    certificates::follow_with_hangups(&front.guards, &shutdown)?;
    let url = front.url(listen);
    let config = front::router_config(front, &served, listen)?;
    let starting = front::start_with(config, changes, Arc::new(connector));
    let (app, cluster) = front::trace_start(served.name(), starting).await?;
    tracing::info!(
        url,
        model = served.name(),
        routers = routers.len(),
        "gateway is listening; to it, each router is a worker"
    );
    front::say_when_ready(&cluster, served.name(), url);
    let _metrics = front::metrics_port(&app).await?;
    skein_router::serve::serve(listener, app, shutdown.requested()).await.map_err(Failure::other)
}

/// The transport to the routers, with this node's certificate, and the key that they require or the cluster's
/// secret.
fn connector(keys: &[String], guards: &Guards) -> Result<Grpc, String> {
    match keys {
        [] | [_] => {
            let connector = guards.connector(keys.first().map(String::as_str));
            let not_ascii = "--router-api-key must be printable ASCII, like --api-key of the routers";
            connector.ok_or_else(|| not_ascii.to_owned())
        }
        several => Err(format!(
            "--router-api-key: one key must open all routers, got {}; give the routers a common key",
            several.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_opens_all_routers() {
        let message = |keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            connector(&keys, &Guards::default()).map(|_| ()).unwrap_err()
        };
        assert!(message(&["a", "b"]).contains("got 2"));
        assert!(message(&["a\nb"]).contains("printable ASCII"));
        assert!(connector(&[], &Guards::default()).is_ok());
        assert!(connector(&["sesame".to_owned()], &Guards::default()).is_ok());
    }
}
