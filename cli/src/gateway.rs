//! `skein gateway`: the same API in front of several routers. It is a router whose workers are routers.

use std::sync::Arc;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::config::text;
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};
use skein_router::links::transport::{Connector, Grpc, GrpcWithKey};

use crate::exit::{Failure, USAGE};
use crate::front::{self, Named};
use crate::settings::{self, FrontSettings, OtlpSettings, table};

/// Runs the gateway until shutdown.
///
/// # Errors
/// Invalid settings, an unusable model directory, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::GATEWAY, matches)?;
    let otlp = OtlpSettings::read(&mut settings, "skein-gateway").options;
    let log = LogOptions { otlp, ..settings::log_options(&mut settings, "gateway", None) };
    let front = FrontSettings::read(&mut settings);
    let routers = settings.list("routers", text);
    if routers.is_empty() {
        settings.problem(
            "--routers: name at least one router as host:port; start one with `skein router MODEL --workers ...`",
        );
    }
    let listed = front::listed(&mut settings, "routers", &routers);
    let connector = connector(&settings.list("router-api-key", text));
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
    let connector = connector.unwrap_or_else(|()| Arc::new(Grpc));
    let config = front::router_config(front, &served, listen)?;
    let starting = front::start_with(config, changes, connector);
    let (app, cluster) = front::trace_start(served.name(), starting).await?;
    let url = format!("http://{listen}/v1");
    tracing::info!(
        url,
        model = served.name(),
        routers = routers.len(),
        "gateway is listening; to it, each router is a worker"
    );
    front::say_when_ready(&cluster, served.name(), listen);
    skein_router::serve::serve(listener, app, shutdown.requested()).await.map_err(Failure::other)
}

/// The transport to the routers, with the key that they require.
fn connector(keys: &[String]) -> Result<Arc<dyn Connector>, String> {
    match keys {
        [] => Ok(Arc::new(Grpc)),
        [key] => match GrpcWithKey::new(key) {
            Some(connector) => Ok(Arc::new(connector)),
            None => Err("--router-api-key must be printable ASCII, like --api-key of the routers".to_owned()),
        },
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
            connector(&keys).map(|_| ()).unwrap_err()
        };
        assert!(message(&["a", "b"]).contains("got 2"));
        assert!(message(&["a\nb"]).contains("printable ASCII"));
        assert!(connector(&[]).is_ok() && connector(&["sesame".to_owned()]).is_ok());
    }
}
