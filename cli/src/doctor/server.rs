//! A server behind a URL: whether it is reached, whether it is Skein, whether it takes the key, and what its
//! workers are like.

use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{StatusCode, Uri};
use serde_json::Value;
use skein_client::Limits;

use super::report::Report;
use super::scrape::Scrape;
use crate::server_access::Certificates;

/// Longest wait for a name, for a connection, and for an answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const MAX_ANSWER: usize = 16 << 20;
/// Clocks this far apart confuse logs and traces; certificates and logins begin to fail.
const SKEW: Duration = Duration::from_secs(5);

/// The server, as the command line names it.
pub struct Server {
    /// `http://host:port`, or with `https`.
    pub url: String,
    /// Certificates for `https`.
    pub certificates: Certificates,
    /// Key of a client.
    pub api_key: Option<String>,
    /// Name of a model that it should serve.
    pub model: Option<String>,
}

struct Answer {
    status: StatusCode,
    date: Option<SystemTime>,
    body: String,
}

/// Checks the server. Each step needs the one before.
pub async fn check(report: &mut Report, server: &Server) {
    let limits = Limits { connect: WITHIN, read: Some(WITHIN), whole: Some(WITHIN) };
    let (http, base) = match server.certificates.client("--url", &server.url, limits) {
        Ok(client) => client,
        Err(failure) => return report.fail("URL", failure.message, "for example http://127.0.0.1:8000"),
    };
    let Some(url) = base.parse::<Uri>().ok().filter(|url| url.host().is_some()) else {
        return report.fail("URL", format!("`{base}` is not a URL"), "for example http://127.0.0.1:8000");
    };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    if !is_reached(report, &host, port).await {
        return;
    }
    let client = Client { http, base, api_key: server.api_key.as_deref() };
    let alive = match client.get("/livez", false).await {
        Ok(alive) => alive,
        Err(why) => {
            let is_https = client.base.starts_with("https://");
            let spoken = if is_https { "HTTPS" } else { "HTTP" };
            let found = format!("{host}:{port} does not answer in {spoken}: {why}");
            let fix = if is_https {
                "--cacert names the CA of its certificate, --cert and --key what it wants to see; if it speaks plain HTTP, \
                 the URL begins with http://"
            } else {
                "if it speaks TLS, the URL begins with https://; else another program has this port"
            };
            return report.fail("server", found, fix);
        }
    };
    clock(report, alive.date);
    let scraped = client.get("/metrics", false).await.ok().filter(|answer| answer.status.is_success());
    let scrape = Scrape::of(scraped.as_ref().map_or("", |answer| &answer.body));
    if scrape.value("skein_worker_streams").is_some() && scrape.value("skein_workers").is_none() {
        return is_worker(report, &format!("{host}:{port}"));
    }
    if !identify(report, &alive, &scrape) {
        return;
    }
    key_and_models(report, &client, server).await;
    readiness(report, &client, &scrape).await;
}

/// Resolves and connects; says which of the two fails, and how.
async fn is_reached(report: &mut Report, host: &str, port: u16) -> bool {
    let found = tokio::time::timeout(WITHIN, tokio::net::lookup_host((host, port))).await;
    let addresses: Vec<_> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => {
            report.fail(
                "name",
                format!("`{host}` does not resolve: {error}"),
                "check the spelling and the name server (/etc/resolv.conf; in Kubernetes name.namespace.svc)",
            );
            return false;
        }
        Err(_) => {
            report.fail(
                "name",
                format!("no name server answered for `{host}` within {} s", WITHIN.as_secs()),
                "check /etc/resolv.conf and the way to the name server",
            );
            return false;
        }
    };
    let Some(address) = addresses.first() else {
        report.fail("name", format!("`{host}` has no address"), "check the record of that name");
        return false;
    };
    match tokio::time::timeout(WITHIN, tokio::net::TcpStream::connect(&addresses[..])).await {
        Ok(Ok(_)) => {
            report.ok("connection", address.to_string());
            true
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            report.fail(
                "connection",
                format!("{address} refuses connections: nothing listens there"),
                "start the server (skein serve), or correct the port; a server on 127.0.0.1 is not reached from other \
                 machines (--host 0.0.0.0 with a key)",
            );
            false
        }
        Ok(Err(error)) => {
            report.fail(
                "connection",
                format!("{address}: {error}"),
                "check routes and firewalls between the machines",
            );
            false
        }
        Err(_) => {
            report.fail(
                "connection",
                format!("{address} does not answer within {} s", WITHIN.as_secs()),
                "a firewall or network policy drops the packets, or the machine is down",
            );
            false
        }
    }
}

fn is_worker(report: &mut Report, address: &str) {
    report.fail(
        "server",
        format!("{address} is the port of a worker, which serves routers only"),
        "give the address of a router, a gateway or skein serve (port 8000 by default)",
    );
}

fn clock(report: &mut Report, theirs: Option<SystemTime>) {
    let Some(theirs) = theirs else { return };
    #[allow(clippy::disallowed_methods)] // a server's Date header is compared with the time of day
    let ours = SystemTime::now();
    let apart = ours.duration_since(theirs).unwrap_or_else(|ahead| ahead.duration());
    if apart <= SKEW {
        return report.ok("clocks", "this machine's and the server's agree");
    }
    report.warn(
        "clocks",
        format!("the server's clock is {} s from this machine's", apart.as_secs()),
        "keep both right by NTP (timedatectl set-ntp true)",
    );
}

/// Whether it is a Skein.
fn identify(report: &mut Report, alive: &Answer, scrape: &Scrape) -> bool {
    let ours = env!("CARGO_PKG_VERSION");
    match scrape.versions().first() {
        Some(version) if version == ours => report.ok("server", format!("Skein {version}")),
        Some(version) => report.warn(
            "server",
            format!("Skein {version}, and this program is {ours}"),
            "run one version of Skein, or the doctor of the server's version",
        ),
        None if alive.status.is_success() && alive.body.contains("\"status\":\"ok\"") => report.warn(
            "server",
            "answers /livez as Skein does, but /metrics has no skein_build_info",
            "if a proxy in front keeps /metrics back, run this beside the router",
        ),
        None => {
            report.fail(
                "server",
                format!("HTTP answers there ({} for /livez), but not Skein", alive.status),
                "correct the address; for servers that speak OpenAI's API see the manual's page OpenAI servers",
            );
            return false;
        }
    }
    true
}

async fn key_and_models(report: &mut Report, client: &Client<'_>, server: &Server) {
    let answer = match client.get("/v1/models", true).await {
        Ok(answer) => answer,
        Err(why) => return report.fail("models", why, "see the server's log"),
    };
    if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&answer.status) {
        return match &server.api_key {
            Some(_) => report.fail(
                "key",
                format!("the server refuses this key ({})", answer.status),
                "take one of its --api-key values; SKEIN_API_KEY holds it here",
            ),
            None => report.fail(
                "key",
                "the server requires a key, and none was given",
                "set SKEIN_API_KEY, or give --api-key",
            ),
        };
    }
    if !answer.status.is_success() {
        return report.fail("models", format!("{} for /v1/models", answer.status), "see the server's log");
    }
    match (&server.api_key, client.get_without_key("/v1/models").await) {
        (Some(_), Ok(open)) if open.status.is_success() => report.warn(
            "key",
            "the server needs no key: it answers without one as well",
            "start it with SKEIN_API_KEY if others can reach it",
        ),
        (Some(_), _) => report.ok("key", "taken"),
        (None, _) => report.ok("key", "not required"),
    }
    let list: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let names: Vec<&str> =
        list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
    match &server.model {
        Some(wanted) if !names.contains(&wanted.as_str()) => report.fail(
            "models",
            format!("`{wanted}` is not served there, only {}", names.join(", ")),
            "correct the name, or start the server with that model (--served-model-name)",
        ),
        _ if names.is_empty() => report.fail("models", "none is served", "see the server's log"),
        _ => report.ok("models", names.join(", ")),
    }
}

async fn readiness(report: &mut Report, client: &Client<'_>, scrape: &Scrape) {
    let (listed, ready) = (scrape.value("skein_workers"), scrape.value("skein_workers_ready"));
    let counted = match (listed, ready) {
        (Some(listed), Some(ready)) => format!("{ready} of {listed} workers accept requests"),
        _ => "it does not say how many workers it has".to_owned(),
    };
    let health = client.get("/health", false).await;
    let missing = scrape.labels_where("skein_worker_ready", "worker", |value| value == 0.0);
    match health {
        Ok(answer) if answer.status.is_success() && missing.is_empty() => report.ok("workers", counted),
        Ok(answer) if answer.status.is_success() => report.warn(
            "workers",
            format!("{counted}; not {}", missing.join(", ")),
            "they start, drain or fail: see their logs (journalctl, kubectl logs)",
        ),
        Ok(answer) => {
            let said: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let said = said["error"]["message"].as_str().unwrap_or("not ready").to_owned();
            let fix = if listed == Some(0.0) {
                "no worker is known: check --workers or --discovery of the router, and that workers run (skein worker)"
            } else {
                "the workers are known but not ready: see their logs, and whether the router reaches their ports"
            };
            report.fail("workers", format!("{said} ({counted})"), fix);
        }
        Err(why) => report.fail("workers", why, "see the server's log"),
    }
    let versions = scrape.labels_where("skein_model_version_workers", "version", |value| value > 0.0);
    if versions.len() > 1 {
        report.warn(
            "model versions",
            format!(
                "workers serve {} versions of the model at once: {}",
                versions.len(),
                versions.join(", ")
            ),
            "during a change of the model this is normal; else give all workers the same files and flags",
        );
    }
}

struct Client<'a> {
    http: skein_client::Client,
    base: String,
    api_key: Option<&'a str>,
}

impl Client<'_> {
    async fn get_without_key(&self, path: &str) -> Result<Answer, String> {
        self.get(path, false).await
    }

    async fn get(&self, path: &str, with_key: bool) -> Result<Answer, String> {
        let request = self.http.get(&format!("{}{path}", self.base));
        let request = request.bearer(self.api_key.filter(|_| with_key));
        let response = request.send().await.map_err(|error| error.to_string())?;
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let status = response.status();
        let body = response.bytes(MAX_ANSWER).await.map_err(|error| format!("{path}: {error}"))?;
        Ok(Answer { status, date, body: String::from_utf8_lossy(&body).into_owned() })
    }
}
