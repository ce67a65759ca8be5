//! Typed reading of the settings that several commands share. An invalid value is recorded in the settings
//! and replaced by a default, so that one run reports all problems.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use skein_choice::policy::Policy;
use skein_node::config::{Origin, Settings, bytes, count, duration, one_of, text};
use skein_node::telemetry::{self, LogFormat, LogOptions};
use skein_router::batch::jobs::MAX_RECORDS;
use skein_router::config::{AdmissionConfig, BatchLimits, RecoveryConfig, RequestLimits, RouterConfig};
use skein_router::shards;
use skein_router::stored::StoreLimits;
use skein_router::tenants::KeysFile;
use skein_text::sources::TextSources;

use super::guards::Guards;
use super::metrics_port;
use super::response_store::ResponseStore;
use super::text_sources::{root_path, text_sources};

/// Upper bound for all durations.
pub(super) const A_DAY: Duration = Duration::from_secs(24 * 3600);
/// Most shards unless more are asked for: each has a connection to every worker, and one serves thousands of
/// requests a second.
const DEFAULT_SHARDS: usize = 8;
/// Upper bound of `--stream-linger`; workers have the same one.
const LONGEST_LINGER: Duration = Duration::from_secs(300);

/// Settings of a router or gateway: where it listens and what it admits.
#[derive(Debug)]
pub struct FrontSettings {
    /// Host name or address to listen on.
    pub host: String,
    /// Port; 0 = any free one.
    pub port: u16,
    /// Certificates and the cluster's secret.
    pub guards: Guards,
    /// File for the usage of requests, which is opened last.
    pub usage_log: Option<PathBuf>,
    /// Where responses are stored, which is opened last, too.
    pub response_store: ResponseStore,
    /// Bounds on them.
    pub response_limits: StoreLimits,
    /// The rest. Address, model and served names are filled in later.
    pub router: RouterConfig,
}

impl FrontSettings {
    /// Reads the settings; problems are recorded in `settings`. Unless the operator says otherwise, responses
    /// are stored in `responses`.
    pub fn read(settings: &mut Settings, responses: ResponseStore) -> Self {
        let defaults = RouterConfig::new("", Vec::<String>::new());
        let host = settings.value("host", text).unwrap_or_default();
        let port = settings.value("port", port).unwrap_or(0);
        let api_keys = settings.list("api-key", text);
        let admin_api_key = settings.value("admin-api-key", text);
        if admin_api_key.as_ref().is_some_and(|key| api_keys.contains(key)) {
            settings
                .problem("--admin-api-key is also an --api-key; choose another, which only operators have");
        }
        let keys_file = settings.value("api-keys-file", text).and_then(|path| {
            KeysFile::open(Path::new(&path))
                .map_err(|error| settings.problem(format!("--api-keys-file: {error}")))
                .ok()
        });
        let usage_log = settings.value("usage-log", text).map(PathBuf::from);
        let (response_store, response_limits) = ResponseStore::read(settings, responses);
        let admission = AdmissionConfig {
            max_num_queued_reqs: small(settings, "max-num-queued-reqs", 1, 1_000_000)
                .unwrap_or(defaults.admission.max_num_queued_reqs),
            max_num_queued_tokens: settings
                .value("max-num-queued-tokens", count(1..=1_000_000_000_000))
                .unwrap_or(defaults.admission.max_num_queued_tokens),
        };
        let request_timeout = settings
            .value("request-timeout", duration(Duration::from_secs(1)..=A_DAY))
            .unwrap_or(defaults.limits.request_timeout);
        let logprobs = small(settings, "max-logprobs", 0, defaults.limits.logprobs);
        let logprobs = logprobs.unwrap_or(defaults.limits.logprobs);
        let guards = Guards::read(settings);
        let metrics = metrics_port(settings, &host);
        let router = RouterConfig {
            metrics,
            tls: guards.front_port(),
            cluster_secret: guards.secret.clone(),
            api_keys,
            admin_api_key,
            keys_file,
            allowed_origins: settings.list("allowed-origins", origins).concat(),
            batch_dir: settings.value("batch-dir", text).map(PathBuf::from),
            batch_limits: batch_limits(settings),
            runtime_adapters: settings.switch("allow-runtime-lora-updating"),
            refuse_unknown_fields: settings.switch("refuse-unknown-fields"),
            admission,
            limits: RequestLimits { request_timeout, logprobs, ..defaults.limits },
            text: TextSources { seed: settings.value("seed", whole), ..text_sources(settings) },
            root_path: settings.value("root-path", root_path).unwrap_or_default(),
            policy: settings.value("policy", one_of(&Policy::ALL)).unwrap_or_default(),
            migration_limit: small(settings, "migration-limit", 0, 64).unwrap_or_default(),
            idle_timeout: settings
                .value("timeout-keep-alive", duration(Duration::from_secs(1)..=A_DAY))
                .unwrap_or(defaults.idle_timeout),
            shards: small(settings, "connection-threads", 1, shards::MOST as u32)
                .map_or_else(default_shards, |count| count as usize),
            max_connections: small(settings, "max-connections", 1, 1_000_000)
                .map_or(defaults.max_connections, |most| most as usize),
            max_connections_per_ip: small(settings, "max-connections-per-ip", 0, 1_000_000)
                .filter(|most| *most > 0)
                .map(|most| most as usize),
            shutdown_timeout: shutdown_timeout(settings),
            recovery: recovery(settings),
            ..defaults
        };
        let front = Self { host, port, guards, usage_log, response_store, response_limits, router };
        front.check_exposure(settings);
        front
    }

    /// The API's URL at `listen`.
    pub fn url(&self, listen: SocketAddr) -> String {
        format!("{}://{listen}/v1", self.scheme())
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.router.tls.is_https() { "https" } else { "http" }
    }

    /// Whether only this machine can reach the API.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.trim_matches(['[', ']']);
        self.host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Refuses to open the API to the network because of a configuration file alone: files get copied, so
    /// this takes an explicit decision at the start.
    fn check_exposure(&self, settings: &mut Settings) {
        if self.is_loopback() || self.router.has_keys() || self.host.is_empty() {
            return;
        }
        if let Origin::File(path) = settings.origin("host") {
            let message = format!(
                "{}: host = {} opens the API to the network without a key; set api-key, or give --host {} on the \
                 command line to open it deliberately",
                path.display(),
                self.host,
                self.host
            );
            settings.problem(message);
        }
    }
}

/// One shard for each processor that this process may use.
fn default_shards() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_SHARDS)
}

/// Bounds on clients' files and batches.
fn batch_limits(settings: &mut Settings) -> BatchLimits {
    let defaults = BatchLimits::default();
    let records = || count(1..=MAX_RECORDS as u64);
    let size = || bytes(1 << 20..=1 << 50);
    BatchLimits {
        files_per_key: settings.value("max-batch-files-per-key", records()).unwrap_or(defaults.files_per_key),
        batches_per_key: settings.value("max-batches-per-key", records()).unwrap_or(defaults.batches_per_key),
        bytes_per_key: settings.value("max-batch-bytes-per-key", size()).unwrap_or(defaults.bytes_per_key),
        bytes: settings.value("max-batch-bytes", size()).unwrap_or(defaults.bytes),
    }
}

/// A TCP port; 0 = any free one.
fn port(given: &str) -> Result<u16, String> {
    let digits = given.trim();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().map_err(|_| {
        if is_number {
            format!("{digits} is out of range; it must be 0 to 65535")
        } else {
            format!("`{given}` is not a port; give a number from 0 to 65535 (0 = any free one)")
        }
    })
}

/// Origins of web pages: one, several separated by commas, or vLLM's JSON list.
fn origins(given: &str) -> Result<Vec<String>, String> {
    let given = given.trim();
    let given = given.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(given);
    given.split(',').map(|part| origin(part.trim().trim_matches('"'))).collect()
}

fn origin(given: &str) -> Result<String, String> {
    let host = given.strip_prefix("https://").or_else(|| given.strip_prefix("http://"));
    let is_host =
        |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#*".contains(&b));
    if host.is_some_and(is_host) || given == "*" {
        Ok(given.to_owned())
    } else {
        Err(format!(
            "`{given}` is not an origin; give *, or scheme, host and port as in https://chat.example.org"
        ))
    }
}

/// The user's cache directory (XDG Base Directory Specification); `None` without a home.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))
}

/// The model as given.
pub fn model_argument(settings: &mut Settings) -> Option<String> {
    settings.value("model", text)
}

/// On a terminal, where a command prints its own messages: warnings, and a line for each request.
pub fn quiet_on_a_terminal() -> Option<&'static str> {
    std::io::stderr().is_terminal().then_some("warn,skein_router::request=info")
}

/// Log settings of the process called `process`. `default_level` applies if neither a flag nor `RUST_LOG`
/// sets one.
pub fn log_options(settings: &mut Settings, process: &str, default_level: Option<&str>) -> LogOptions {
    // `auto` is accepted for compatibility; it once selected JSON for files and pipes.
    let formats = [("human", LogFormat::Human), ("json", LogFormat::Json), ("auto", LogFormat::Human)];
    let rust_log = std::env::var_os("RUST_LOG").is_some();
    let default_level = default_level.filter(|_| !rust_log).map(str::to_owned);
    LogOptions {
        format: settings.value("log-format", one_of(&formats)).unwrap_or(LogFormat::Human),
        level: settings.value("log-level", telemetry::level).or(default_level),
        process: process.to_owned(),
        otlp: None,
    }
}

fn recovery(settings: &mut Settings) -> RecoveryConfig {
    let defaults = RecoveryConfig::default();
    // An idle worker reports every second; a shorter timeout would lose healthy workers.
    let seconds = Duration::from_secs;
    RecoveryConfig {
        worker_timeout: settings
            .value("worker-timeout", duration(seconds(2)..=A_DAY))
            .unwrap_or(defaults.worker_timeout),
        wedge_timeout: settings.value("wedge-timeout", duration(seconds(1)..=A_DAY)),
        stream_linger: settings
            .value("stream-linger", duration(Duration::ZERO..=LONGEST_LINGER))
            .unwrap_or(defaults.stream_linger),
        queue_timeout: settings
            .value("queue-timeout", duration(Duration::ZERO..=A_DAY))
            .unwrap_or(defaults.queue_timeout),
        max_index_bytes: settings
            .value("max-index-bytes", bytes(1 << 20..=1 << 40))
            .map_or(defaults.max_index_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
    }
}

fn whole(given: &str) -> Result<i64, String> {
    given.trim().parse().map_err(|_| format!("`{given}` is not a 64-bit integer such as 42"))
}

pub(super) fn shutdown_timeout(settings: &mut Settings) -> Duration {
    settings.value("shutdown-timeout", duration(Duration::ZERO..=A_DAY)).unwrap_or_default()
}

pub(super) fn small(settings: &mut Settings, name: &'static str, least: u32, most: u32) -> Option<u32> {
    settings.value(name, count(u64::from(least)..=u64::from(most))).map(|value| value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_not_told_as_a_count() {
        assert_eq!((port("8000"), port(" 0 ")), (Ok(8000), Ok(0)));
        for given in ["18432x", "8k", "-1", ""] {
            let expected =
                format!("`{given}` is not a port; give a number from 0 to 65535 (0 = any free one)");
            assert_eq!(port(given), Err(expected));
        }
        assert_eq!(port("99999"), Err("99999 is out of range; it must be 0 to 65535".to_owned()));
    }
}
