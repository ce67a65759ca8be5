//! A port of its own for metrics and health.

use std::net::{SocketAddr, ToSocketAddrs};

use skein_node::config::{Origin, Settings, count, text};

/// Reads `--metrics-port` and `--metrics-host`, by default `host`. Problems are recorded in `settings`.
pub fn metrics_port(settings: &mut Settings, host: &str) -> Option<SocketAddr> {
    let port = settings.value("metrics-port", count(1..=65_535)).and_then(|port| u16::try_from(port).ok());
    let own_host = settings.value("metrics-host", text);
    let Some(port) = port else {
        if own_host.is_some() && settings.origin("metrics-port") == &Origin::Default {
            settings.problem("--metrics-host: applies only with --metrics-port; give it, or leave this out");
        }
        return None;
    };
    let host = own_host.as_deref().unwrap_or(host).trim_matches(['[', ']']);
    match (host, port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => Some(address),
        Ok(None) => {
            settings.problem(format!("--metrics-host: {host} has no address"));
            None
        }
        Err(error) => {
            settings.problem(format!("--metrics-host: {host} does not resolve: {error}"));
            None
        }
    }
}
