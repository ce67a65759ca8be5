//! `skein router --worker-urls`: a router before servers that speak the OpenAI API.

use std::time::Duration;

use skein_front::{UpstreamConfig, Upstreams, WorkerUrl};
use skein_node::clock;
use skein_node::config::{Origin, Settings, duration, text};
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};
use skein_tls::{ClientFiles, ClientTls};

use crate::certificates;
use crate::exit::{Failure, USAGE};
use crate::front;
use crate::settings::table::{FLAGS, Flag, ROUTER, UPSTREAM};
use crate::settings::{self, FrontSettings};

/// The setting that makes a router one before OpenAI workers.
const WORKER_URLS: &str = "worker-urls";
/// Shortest and longest time-outs.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Reads the settings; `None` without `--worker-urls`. Problems are recorded in `settings`.
pub fn read(settings: &mut Settings, front: &FrontSettings) -> Option<UpstreamConfig> {
    let of_router = || FLAGS.iter().filter(|flag| flag.commands & ROUTER != 0);
    if !is_given(settings, WORKER_URLS) {
        for Flag { key, .. } in of_router().filter(|flag| flag.group == UPSTREAM) {
            if is_given(settings, key.name) {
                settings.problem(format!("--{} belongs to --worker-urls, which is not set", key.name));
            }
        }
        return None;
    }
    for Flag { key, .. } in of_router().filter(|flag| flag.needs_tokens) {
        if is_given(settings, key.name) {
            settings.problem(format!(
                "--{} has no use with --worker-urls: the workers have model, tokenizer and chat template; leave it out",
                key.name
            ));
        }
    }
    let several = |given: &str| given.split(',').map(WorkerUrl::parse).collect::<Result<Vec<_>, _>>();
    let urls = settings.list(WORKER_URLS, several).concat();
    if let Some(twice) = urls.iter().enumerate().find(|(at, url)| urls[..*at].contains(url)) {
        settings.problem(format!("--worker-urls: {} is given twice", twice.1));
    }
    let mut config = UpstreamConfig::new(front.router.clone(), urls);
    if let Some(Err(why)) = settings.value("worker-api-key", text).map(|key| config.use_worker_key(&key)) {
        settings.problem(format!("--worker-api-key: {why}"));
    }
    if let Some(path) = settings.value("worker-ca", text) {
        match ClientTls::read(&ClientFiles { ca: Some(path.into()), identity: None }) {
            Ok(tls) => config.use_worker_tls(tls),
            Err(why) => settings.problem(format!("--worker-ca: {why}")),
        }
        if !config.workers.iter().any(WorkerUrl::is_tls) {
            settings.problem("--worker-ca: no URL of --worker-urls begins with https://; leave it out");
        }
    }
    config.resume_by_text = settings.switch("resume-by-text");
    let time = |settings: &mut Settings, name| settings.value(name, duration(TIMES));
    config.first_byte_timeout = time(settings, "first-byte-timeout").unwrap_or(config.first_byte_timeout);
    config.stall_timeout = time(settings, "stall-timeout").unwrap_or(config.stall_timeout);
    Some(config)
}

fn is_given(settings: &Settings, name: &str) -> bool {
    settings.origin(name) != &Origin::Default
}

/// Runs the router until shutdown.
///
/// # Errors
/// Invalid settings, or an address that cannot be used.
pub async fn run(
    settings: Settings,
    log: &LogOptions,
    front: FrontSettings,
    mut config: UpstreamConfig,
) -> Result<(), Failure> {
    settings::check(&settings)?;
    telemetry::init(log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    settings::log_effective(&settings);
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&front.host, front.port).await?;
    front::warn_if_exposed(&front);
    config.router.usage_log = front::usage_log(&front)?;
    certificates::follow_with_hangups(&front.guards, &shutdown)?;
    let url = front.url(listen);
    tracing::info!(url, workers = config.workers.len(), "router is listening");
    let upstreams = Upstreams::start(config);
    let starting = upstreams.clone();
    tokio::spawn(async move {
        starting.wait_ready().await;
        tracing::info!(url, seconds = clock::now().since_start().as_secs_f64(), "ready");
    });
    skein_front::serve(listener, upstreams, shutdown.requested()).await.map_err(Failure::other)
}
