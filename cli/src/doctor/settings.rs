//! Settings: unknown variables, invalid values, the address that `skein serve` would listen on.

use skein_node::config::{Origin, Settings};
use tokio::net::TcpListener;

use super::port_owner::owner_of;
use super::report::Report;
use super::server::scheme_at;
use crate::front;
use crate::settings::FrontSettings;

/// Records what is wrong with the flags, the environment and the file.
pub fn check(report: &mut Report, settings: &Settings) {
    match settings.finish() {
        Ok(()) => {
            let set = settings.effective().into_iter().filter(|(_, _, origin)| origin != "default").count();
            report
                .ok("values", format!("{set} set, the others are defaults; `skein config show` lists them"));
        }
        Err(problems) => {
            for problem in problems.0 {
                report.fail("values", problem, "correct or remove it; `skein help serve` lists all settings");
            }
        }
    }
}

/// Checks whether the API and its metrics could listen where the settings say, and who could then reach it.
pub async fn check_addresses(report: &mut Report, settings: &Settings, front: &FrontSettings) {
    let (host, port) = (&front.host, front.port);
    let bound = front::bind(host, port).await;
    match &bound {
        Ok((_, address)) => report.ok("address", format!("{address} is free")),
        Err(failure) => in_use(report, "address", "--port", port, &failure.message).await,
    }
    if let Some(at) = front.router.metrics {
        // The API's listener is open meanwhile, as when serving.
        match TcpListener::bind(at).await {
            Ok(_) => report.ok("metrics port", format!("{at} is free")),
            Err(_) if bound.is_ok() && at.port() == port => report.fail(
                "metrics port",
                format!("port {port} is the API's own"),
                "choose another with --metrics-port, or leave that out: metrics are then on the API's port",
            ),
            Err(error) => {
                let why = format!("cannot listen on {at}: {error}");
                in_use(report, "metrics port", "--metrics-port", at.port(), &why).await;
            }
        }
    }
    // A file of keys that cannot be read is no key, but has been named above.
    let has_keys = front.router.has_keys() || settings.origin("api-keys-file") != &Origin::Default;
    if front.is_loopback() {
        report.ok("exposure", "only this machine can reach the API");
    } else if !has_keys {
        report.warn(
            "exposure",
            format!("--host {host} opens the API to everyone who can reach this machine, without a key"),
            "set SKEIN_API_KEY or --api-keys-file, or listen on 127.0.0.1 behind a proxy",
        );
    } else {
        report.ok("exposure", "the network can reach the API, with a key");
    }
}

/// Says who has `port`, the value of `flag`, and else `why` nothing can listen there.
async fn in_use(report: &mut Report, name: &str, flag: &str, port: u16, why: &str) {
    match owner_of(port) {
        Some(owner) if owner.is_skein() && flag == "--port" => {
            let scheme = scheme_at(port).await;
            let cacert = if scheme == "https" { " (--cacert names the CA of its certificate)" } else { "" };
            report.warn(
                name,
                format!("a Skein already serves on port {port}: {owner}"),
                format!(
                    "check that one: skein doctor --url {scheme}://127.0.0.1:{port}{cacert}; for a second one choose another \
                     {flag}"
                ),
            );
        }
        Some(owner) if owner.is_skein() => report.warn(
            name,
            format!("a Skein already has port {port}: {owner}"),
            format!("for a second one choose another {flag}"),
        ),
        Some(owner) => {
            let any = if flag == "--port" { " (0 = any free one)" } else { "" };
            report.fail(
                name,
                format!("port {port} is in use by {owner}"),
                format!("end that program, or choose another port with {flag}{any}"),
            );
        }
        None => {
            report.fail(name, why, "if a process of another user has the port, `ss -ltnp` as root names it")
        }
    }
}
