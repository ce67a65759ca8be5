//! A server behind a URL: whether it is reached, whether it is Skein, whether it takes the key, and what its
//! workers are like.

use std::time::{Duration, SystemTime};

use http::{StatusCode, Uri};
use skein_client::Limits;

use super::client::{Answer, Client, Server, WITHIN};
use super::key;
use super::reach::is_reached;
use super::report::Report;
use super::scrape::Scrape;
use crate::server_access::Certificates;

/// Clocks this far apart confuse logs and traces; certificates and logins begin to fail.
const SKEW: Duration = Duration::from_secs(5);

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
    if alive.wants_https() {
        let found = format!("{host}:{port} speaks HTTPS, not plain HTTP");
        let fix = "the URL begins with https://; --cacert names the CA of its certificate if the system does not know it";
        return report.fail("server", found, fix);
    }
    clock(report, alive.date);
    let scraped = match &server.metrics_url {
        None => client.get("/metrics", false).await,
        Some(url) => metrics_at(url, &server.certificates, limits).await,
    };
    if let (Some(_), Err(why)) = (&server.metrics_url, &scraped) {
        report.fail(
            "metrics",
            why,
            "--metrics-url is where the server's --metrics-port is, http://host:9100 for example",
        );
    }
    let scraped = scraped.ok();
    // A port of an API without metrics does not know the path, and checks the key before it says so.
    let unknown = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND];
    let has_none = server.metrics_url.is_some()
        || scraped.as_ref().is_some_and(|answer| unknown.contains(&answer.status));
    let scraped = scraped.filter(|answer| answer.status.is_success());
    let scrape = Scrape::of(scraped.as_ref().map_or("", |answer| &answer.body));
    if scrape.value("skein_worker_streams").is_some() && scrape.value("skein_workers").is_none() {
        return is_worker(report, &format!("{host}:{port}"));
    }
    if !identify(report, &alive, &scrape, has_none) {
        return;
    }
    if is_metrics_port(&client, &scrape).await {
        let found = format!("{host}:{port} is the port of a router's metrics, which has no API");
        return report.fail(
            "API",
            found,
            "give the address of the API (port 8000 by default), and this one as --metrics-url",
        );
    }
    key::check(report, &client, server).await;
    readiness(report, &client, &scrape).await;
}

/// Metrics from a port of their own.
async fn metrics_at(url: &str, certificates: &Certificates, limits: Limits) -> Result<Answer, String> {
    let is_https = url.starts_with("https://");
    let none = Certificates::default();
    let certificates = if is_https { certificates } else { &none };
    let (http, base) =
        certificates.client("--metrics-url", url, limits).map_err(|failure| failure.message)?;
    let base = base.trim_end_matches("/metrics").to_owned();
    let client = Client { http, base, api_key: None };
    let answer = client.get("/metrics", false).await?;
    let is_scrape = answer.status.is_success();
    if is_scrape { Ok(answer) } else { Err(format!("{}/metrics: {}", client.base, answer.sentence())) }
}

/// Whether the server has metrics, and no API beside them.
async fn is_metrics_port(client: &Client<'_>, scrape: &Scrape) -> bool {
    let models = client.get("/v1/models", true).await;
    !scrape.versions().is_empty() && models.is_ok_and(|answer| answer.status == StatusCode::NOT_FOUND)
}

/// `https` if what listens on `port` of this machine says that it speaks that, else `http`.
pub async fn scheme_at(port: u16) -> &'static str {
    let limits = Limits { connect: WITHIN, read: Some(WITHIN), whole: Some(WITHIN) };
    let base = format!("http://127.0.0.1:{port}");
    let client = Client { http: skein_client::Client::new(None, limits), base, api_key: None };
    let answer = client.get("/livez", false).await;
    if answer.is_ok_and(|answer| answer.wants_https()) { "https" } else { "http" }
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
fn identify(report: &mut Report, alive: &Answer, scrape: &Scrape, has_no_metrics: bool) -> bool {
    let ours = env!("CARGO_PKG_VERSION");
    match scrape.versions().first() {
        Some(version) if version == ours => report.ok("server", format!("Skein {version}")),
        Some(version) => report.warn(
            "server",
            format!("Skein {version}, and this program is {ours}"),
            "run one version of Skein, or the doctor of the server's version",
        ),
        None if alive.is_skeins() && has_no_metrics => report.ok(
            "server",
            "Skein; metrics have a port of their own (--metrics-port): with --metrics-url, release and workers are checked",
        ),
        None if alive.is_skeins() => report.warn(
            "server",
            "answers /livez as Skein does, but /metrics has no skein_build_info",
            "if a proxy in front keeps /metrics back, run this beside the router",
        ),
        None if alive.status == StatusCode::UNAUTHORIZED => {
            report.fail(
                "server",
                format!("it tells strangers nothing, not even whether it lives: {}", alive.sentence()),
                "a worker with a cluster's secret does that: give the address of its router; else of a proxy that wants a login",
            );
            return false;
        }
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

async fn readiness(report: &mut Report, client: &Client<'_>, scrape: &Scrape) {
    let (listed, ready) = (scrape.value("skein_workers"), scrape.value("skein_workers_ready"));
    let counted = match (listed, ready) {
        (Some(listed), Some(ready)) => format!("{ready} of {listed} workers accept requests"),
        _ => "how many there are is among its metrics".to_owned(),
    };
    let health = client.get("/health", false).await;
    let missing = scrape.labels_where("skein_worker_ready", "worker", |value| value == 0.0);
    match health {
        Ok(answer) if answer.status.is_success() && missing.is_empty() => {
            report.ok("workers", if listed.is_some() { counted } else { format!("ready; {counted}") });
        }
        Ok(answer) if answer.status.is_success() => report.warn(
            "workers",
            format!("{counted}; not {}", missing.join(", ")),
            "they start, drain or fail: see their logs (journalctl, kubectl logs)",
        ),
        Ok(answer) => {
            let said = answer.sentence();
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
