//! The source of membership as one line of text: `etcd://h1:2379,h2:2379/cluster`, `etcds://…` for TLS, or
//! `dns://name:port?interval=5s`.

use std::time::Duration;

use super::dns::{self, DnsName};
use super::etcd::check_name;
use super::is_host_and_port;
use crate::config::duration;

/// Name of the cluster if none is given.
pub const DEFAULT_CLUSTER: &str = "default";
/// Most etcd servers in one source.
pub const MAX_ENDPOINTS: usize = 16;
/// Valid intervals between DNS lookups.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
const FORMS: &str =
    "write etcd://host:2379[,host:2379][/cluster], etcds://... for TLS, or dns://name:port[?interval=5s]";

/// A source of membership outside this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipSource {
    /// An etcd cluster.
    Etcd {
        /// `host:port` of each server.
        endpoints: Vec<String>,
        /// Name of the cluster, under which its keys are stored.
        cluster: String,
        /// Whether to connect with TLS.
        tls: bool,
    },
    /// A DNS name that resolves to all workers.
    Dns(DnsName),
}

impl MembershipSource {
    /// Parses a source.
    ///
    /// # Errors
    /// A message that says what is wrong and what is valid.
    pub fn parse(given: &str) -> Result<Self, String> {
        match given.trim().split_once("://") {
            Some((scheme @ ("etcd" | "etcds"), rest)) => etcd(rest, scheme == "etcds"),
            Some(("dns", rest)) => dns_name(rest).map(Self::Dns),
            _ => Err(format!("`{given}` is not a source of membership; {FORMS}")),
        }
    }
}

fn etcd(rest: &str, tls: bool) -> Result<MembershipSource, String> {
    let (servers, cluster) = rest.split_once('/').unwrap_or((rest, ""));
    let cluster = if cluster.is_empty() { DEFAULT_CLUSTER } else { cluster };
    check_name(cluster).map_err(|reason| format!("the cluster's {reason}"))?;
    if servers.contains('@') {
        return Err(
            "user and password do not belong in the address; use --etcd-user and --etcd-password-file".into(),
        );
    }
    let endpoints: Vec<String> = servers.split(',').map(|server| server.trim().to_owned()).collect();
    if let Some(bad) = endpoints.iter().find(|server| !is_host_and_port(server)) {
        return Err(format!("`{bad}` is not host:port; {FORMS}"));
    }
    if endpoints.len() > MAX_ENDPOINTS {
        return Err(format!("{} servers are listed; at most {MAX_ENDPOINTS} are allowed", endpoints.len()));
    }
    Ok(MembershipSource::Etcd { endpoints, cluster: cluster.to_owned(), tls })
}

fn dns_name(rest: &str) -> Result<DnsName, String> {
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = address.trim_end_matches('/');
    if !is_host_and_port(address) {
        return Err(format!("`{address}` is not name:port; {FORMS}"));
    }
    let interval = match query.split_once('=') {
        None if query.is_empty() => dns::INTERVAL,
        Some(("interval", value)) => duration(INTERVALS)(value)?,
        _ => return Err(format!("`?{query}` is not known; {FORMS}")),
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = host.trim_matches(['[', ']']).to_owned();
    Ok(DnsName { host, port: port.parse().unwrap_or_default(), interval })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(endpoints: &[&str], cluster: &str, tls: bool) -> MembershipSource {
        let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
        MembershipSource::Etcd { endpoints, cluster: cluster.into(), tls }
    }

    fn dns(host: &str, port: u16, interval_ms: u64) -> MembershipSource {
        MembershipSource::Dns(DnsName {
            host: host.into(),
            port,
            interval: Duration::from_millis(interval_ms),
        })
    }

    #[test]
    fn sources_are_read() {
        let check = |given: &str, expected: MembershipSource| {
            assert_eq!(MembershipSource::parse(given), Ok(expected), "{given}")
        };
        check("etcd://a:2379", etcd(&["a:2379"], "default", false));
        check("etcd://a:2379/", etcd(&["a:2379"], "default", false));
        check("etcds://a:2379, [::1]:2379/blue", etcd(&["a:2379", "[::1]:2379"], "blue", true));
        check("dns://workers.skein.svc:9000", dns("workers.skein.svc", 9000, 5000));
        check("dns://workers:9000/?interval=250ms", dns("workers", 9000, 250));
        check("dns://[::1]:9000", dns("::1", 9000, 5000));
    }

    #[test]
    fn an_invalid_source_is_refused_with_the_valid_forms() {
        let check = |given: &str, reason: &str| {
            let got = MembershipSource::parse(given).expect_err(given);
            assert!(got.contains(reason), "{given}: {got}");
        };
        check("a:2379", "write etcd://host:2379");
        check("http://a:2379", "is not a source of membership");
        check("etcd://", "is not host:port");
        check("etcd://a", "is not host:port");
        check("etcd://a:2379,", "is not host:port");
        check("etcd://a:2379/b/c", "letters, digits");
        check("etcd://me:secret@a:2379", "--etcd-password-file");
        check(&format!("etcd://{}", vec!["a:1"; 17].join(",")), "at most 16");
        check("dns://workers", "is not name:port");
        check("dns://workers:9000?interval=5", "did you mean 5s");
        check("dns://workers:9000?every=5s", "is not known");
    }
}
