//! Settings: unknown variables, invalid values, the address that `skein serve` would listen on.

use skein_node::config::Settings;

use super::port_owner::owner_of;
use super::report::Report;
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

/// Checks whether the API could listen where the settings say, and who could then reach it.
pub async fn check_address(report: &mut Report, front: &FrontSettings) {
    let (host, port) = (&front.host, front.port);
    match front::bind(host, port).await {
        Ok((_, address)) => report.ok("address", format!("{address} is free")),
        Err(failure) => match owner_of(port) {
            Some(owner) if owner.is_skein() => report.warn(
                "address",
                format!("a Skein already serves on port {port}: {owner}"),
                format!("check that one: skein doctor --url http://127.0.0.1:{port}; for a second one choose another --port"),
            ),
            Some(owner) => report.fail(
                "address",
                format!("port {port} on {host} is in use by {owner}"),
                "end that program, or choose another port with --port (0 = any free one)",
            ),
            None => report.fail(
                "address",
                failure.message,
                "if a process of another user has the port, `ss -ltnp` as root names it",
            ),
        },
    }
    if front.is_loopback() {
        report.ok("exposure", "only this machine can reach the API");
    } else if front.router.api_keys.is_empty() {
        report.warn(
            "exposure",
            format!("--host {host} opens the API to everyone who can reach this machine, without a key"),
            "set SKEIN_API_KEY, or listen on 127.0.0.1 behind a proxy",
        );
    } else {
        report.ok("exposure", "the network can reach the API, with a key");
    }
}
