//! `skein doctor`: what is wrong with this machine, the settings, the model or the cluster, and what to do. A
//! check is the code that serving runs, called early; a room for each area, and the report.

mod certificates;
mod client;
mod file_lock;
mod gpu;
mod key;
mod machine;
mod members;
mod model;
mod outputs;
mod port_owner;
mod reach;
mod report;
mod scrape;
mod server;
mod settings;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use skein_node::clock;
use skein_node::config::{Settings, text};
use skein_tls::Certificate;

use crate::exit::Failure;
use crate::serve_settings::ServeSettings;
use crate::server_access::Certificates;
use crate::settings::{DiscoverySettings, load, table, with_flags};
use client::Server;
use report::{Report, Status};

/// Name of the command.
pub const DOCTOR: &str = "doctor";
/// Settings that it reads: those of `skein serve`, and where a cluster's workers are found.
const WHICH: u8 = table::SERVE | table::DOCTOR;
const URL: &str = "url";
const METRICS_URL: &str = "metrics-url";

const ABOUT: &str = "Find out what is wrong, and what to do: this machine, the settings, the model, a cluster

  skein doctor                                     would `skein serve` work here?
  skein doctor DIR --quantization int8             would it with this model and these flags?
  skein doctor --url http://host:8000 --api-key K  what is wrong with that server?
  skein doctor --discovery etcd://host:2379        what is wrong with that cluster's workers?

It takes the flags of `skein serve`, changes nothing and downloads nothing.
Exit codes: 0 no problem (warnings are none), 1 a problem.";

/// The command's definition for clap.
pub fn command(model: Arg) -> Command {
    let url = Arg::new(URL).long(URL).value_name("URL");
    let url = url.help("Check this server instead, with the first --api-key; MODEL or --served-model-name is what it should serve");
    let metrics = Arg::new(METRICS_URL).long(METRICS_URL).value_name("URL").requires(URL);
    let metrics = metrics.help("Where that server's --metrics-port is, for example http://host:9100");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let about = ABOUT.lines().next().unwrap_or_default();
    let doctor = Certificates::augment_args(Command::new(DOCTOR).arg(model).args([url, metrics, json]));
    // After the flags: clap would take their struct's doc comment for the command's text.
    with_flags(doctor, WHICH).about(about).long_about(ABOUT)
}

/// Runs all checks that the arguments call for.
///
/// # Errors
/// If a check failed.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut report = Report::default();
    report.begin("this machine");
    machine::check(&mut report);
    match load(WHICH, matches) {
        Ok(settings) => {
            let certificates = Certificates::from_arg_matches(matches).map_err(Failure::other)?;
            let urls = [URL, METRICS_URL].map(|name| matches.get_one::<String>(name).cloned());
            with_settings(&mut report, settings, urls, certificates).await;
        }
        Err(failure) => {
            report.begin("settings");
            report.fail("file", failure.message, "correct --config or SKEIN_CONFIG, or leave it out");
        }
    }
    if matches.get_flag("json") {
        outln!("{:#}", report.json());
    } else {
        outln!("{}", report.text());
    }
    if report.count(Status::Fail) > 0 {
        return Err(Failure::other(report.summary()));
    }
    if !matches.get_flag("json") {
        outln!("{}", report.summary());
    }
    Ok(())
}

async fn with_settings(
    report: &mut Report,
    mut settings: Settings,
    [url, metrics_url]: [Option<String>; 2],
    certificates: Certificates,
) {
    let read = ServeSettings::read(&mut settings);
    let discovery = DiscoverySettings::read(&mut settings);
    let is_elsewhere = url.is_some();
    let server = url.map(|url| Server {
        url,
        metrics_url,
        certificates,
        api_key: settings.list("api-key", text).into_iter().next(),
        model: settings.list("served-model-name", text).into_iter().next().or(read
            .named
            .argument
            .given
            .clone()),
    });
    gpu::check(report, &read.engine);
    report.begin("settings");
    settings::check(report, &settings);
    certificates::check(report, &shown(&read), clock::unix_time());
    if let Some(server) = server {
        report.begin("server");
        server::check(report, &server).await;
    }
    if discovery.source.is_some() {
        report.begin("cluster");
        members::check(report, discovery, &read.front.guards).await;
    } else if !is_elsewhere {
        settings::check_addresses(report, &settings, &read.front).await;
        outputs::check(report, &read.front);
        report.begin("model");
        model::check(report, read).await;
    }
}

/// The certificates that serving would show, with the flags that name them.
fn shown(read: &ServeSettings) -> Vec<(&'static str, Certificate)> {
    let mut shown = read.front.guards.certificates();
    shown.extend(read.collector_certificate().map(|certificate| ("otlp-cert", certificate)));
    shown
}
