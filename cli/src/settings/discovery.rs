//! `--discovery`, and what etcd needs: a user, a password, certificates.

use std::path::Path;
use std::time::Duration;

use skein_node::config::{Origin, Settings, duration, text};
use skein_node::discovery::etcd::{EtcdSettings, LEASE_TTL, Tls, check_name};
use skein_node::discovery::{MembershipSource, is_host_and_port};
use skein_tls::Certificate;

/// Largest certificate or password file, which is read whole.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Valid lease times. etcd refuses shorter leases; much longer ones would keep dead workers listed.
const LEASE_TTLS: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(3600);
/// Settings that only apply with etcd.
const OF_ETCD: [&str; 5] = ["etcd-user", "etcd-password-file", "etcd-ca", "etcd-cert", "etcd-key"];
/// Settings of a worker that only apply with etcd.
const OF_REGISTRATION: [&str; 3] = ["advertise", "worker-id", "etcd-lease-ttl"];

/// Where a process finds the cluster's members.
#[derive(Debug)]
pub struct DiscoverySettings {
    /// `None` if `--discovery` is unset.
    pub source: Option<MembershipSource>,
    /// Access to etcd, if that is the source.
    pub etcd: EtcdSettings,
    /// What etcd is shown.
    pub etcd_certificate: Option<Certificate>,
}

impl DiscoverySettings {
    /// Reads the settings; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let source = settings.value("discovery", MembershipSource::parse);
        let etcd = match &source {
            Some(MembershipSource::Etcd { endpoints, tls, .. }) => EtcdSettings {
                endpoints: endpoints.clone(),
                user: user(settings),
                tls: certificates(settings, *tls),
            },
            _ => {
                refuse_without_etcd(settings, &OF_ETCD);
                EtcdSettings::default()
            }
        };
        let shown = etcd.tls.as_ref().and_then(|tls| tls.identity.as_ref());
        // One that has no dates to read is etcd's to judge.
        let read = |path: &str| Ok(Certificate::read(Path::new(path)).ok());
        let etcd_certificate = shown.and_then(|_| settings.value("etcd-cert", read)).flatten();
        Self { source, etcd, etcd_certificate }
    }

    /// Has the end of the certificate for etcd exported and spoken of.
    pub fn watch(&self) {
        if let Some(certificate) = self.etcd_certificate.clone() {
            skein_node::certificates::watch("etcd-cert", move || Some(certificate.clone()));
        }
    }
}

/// How a worker registers in etcd.
#[derive(Debug)]
pub struct RegistrationSettings {
    /// `host:port` for routers; `None` = the address that it listens on.
    pub advertise: Option<String>,
    /// Name in etcd; `None` = its address.
    pub worker_id: Option<String>,
    /// How long its entry survives without a keep-alive.
    pub lease_ttl: Duration,
}

impl RegistrationSettings {
    /// Reads the settings; problems are recorded in `settings`. `listen` is the address the worker will
    /// listen on.
    pub fn read(
        settings: &mut Settings,
        source: Option<&MembershipSource>,
        listen: std::net::IpAddr,
    ) -> Self {
        let registration = Self {
            advertise: settings.value("advertise", |given| {
                if is_host_and_port(given.trim()) {
                    Ok(given.trim().to_owned())
                } else {
                    Err(format!("`{given}` is not host:port, for example 10.0.0.7:9000"))
                }
            }),
            worker_id: settings.value("worker-id", |given| check_name(given).map(|()| given.to_owned())),
            lease_ttl: settings.value("etcd-lease-ttl", duration(LEASE_TTLS)).unwrap_or(LEASE_TTL),
        };
        if matches!(source, Some(MembershipSource::Dns(_))) {
            settings.problem(
                "--discovery: dns:// is for routers, which look workers up by a DNS name; a worker cannot register there. \
                 Leave it out here and let the name resolve to this worker, or use etcd://",
            );
        }
        let in_etcd = matches!(source, Some(MembershipSource::Etcd { .. }));
        if !in_etcd {
            refuse_without_etcd(settings, &OF_REGISTRATION);
        } else if listen.is_unspecified() && settings.origin("advertise") == &Origin::Default {
            settings.problem(format!(
                "--advertise: this worker listens on {listen}, which routers cannot connect to; give the host:port at \
                 which they reach it, for example --advertise 10.0.0.7:9000"
            ));
        }
        registration
    }
}

fn refuse_without_etcd(settings: &mut Settings, names: &[&'static str]) {
    for name in names.iter().filter(|name| settings.origin(name) != &Origin::Default).collect::<Vec<_>>() {
        settings.problem(format!(
            "--{name}: applies only with etcd; add --discovery etcd://host:2379 or leave it out"
        ));
    }
}

fn user(settings: &mut Settings) -> Option<(String, String)> {
    let name = settings.value("etcd-user", text);
    let password = settings.value("etcd-password-file", |path| {
        let password = read(path)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| format!("{path} is not UTF-8 text")))?;
        match password.trim_end_matches(['\r', '\n']) {
            "" => Err(format!("{path} is empty")),
            password => Ok(password.to_owned()),
        }
    });
    both(settings, "etcd-user", "etcd-password-file");
    name.zip(password)
}

fn certificates(settings: &mut Settings, tls: bool) -> Option<Tls> {
    let mut pem = |name, kind: &str| {
        settings.value(name, |path| {
            let bytes = read(path)?;
            let text = String::from_utf8_lossy(&bytes);
            let has_one = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind));
            if has_one { Ok(bytes) } else { Err(format!("{path} contains no {kind} in PEM format")) }
        })
    };
    let (ca, certificate) = (pem("etcd-ca", "CERTIFICATE"), pem("etcd-cert", "CERTIFICATE"));
    let key = pem("etcd-key", "PRIVATE KEY");
    both(settings, "etcd-cert", "etcd-key");
    let given = |settings: &Settings, name: &str| settings.origin(name) != &Origin::Default;
    if !tls {
        for name in ["etcd-ca", "etcd-cert", "etcd-key"] {
            if given(settings, name) {
                settings.problem(format!(
                    "--{name}: applies only with TLS; use --discovery etcds://... instead of etcd://..."
                ));
            }
        }
        return None;
    }
    if !given(settings, "etcd-ca") {
        settings.problem(
            "--etcd-ca: etcds:// needs the PEM file of the authority that signed the servers' certificates",
        );
    }
    Some(Tls { ca: ca?, identity: certificate.zip(key) })
}

/// Records a problem if only one of two settings is given.
fn both(settings: &mut Settings, first: &'static str, second: &'static str) {
    let given = |name| settings.origin(name) != &Origin::Default;
    match (given(first), given(second)) {
        (true, false) => settings.problem(format!("--{second}: required with --{first}")),
        (false, true) => settings.problem(format!("--{first}: required with --{second}")),
        _ => {}
    }
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("cannot read {path}: {error}");
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("{path} has {size} bytes; at most {MAX_FILE_BYTES} are read"));
    }
    std::fs::read(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use clap::Command;

    use super::*;
    use crate::settings::{load, table::WORKER, with_flags};

    fn problems(listen: &str, arguments: &[&str]) -> Vec<String> {
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let matches = command.try_get_matches_from(arguments).expect("the flags parse");
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let discovery = DiscoverySettings::read(&mut settings);
        let listen: IpAddr = listen.parse().expect("an address");
        RegistrationSettings::read(&mut settings, discovery.source.as_ref(), listen);
        settings.finish().map_or_else(|problems| problems.0, |()| Vec::new())
    }

    #[test]
    fn each_problem_names_its_flag_and_its_fix() {
        let check = |listen: &str, line: &str, expected: &[&str]| {
            let arguments: Vec<&str> = line.split_whitespace().collect();
            let got = problems(listen, &arguments);
            assert_eq!(got.len(), expected.len(), "{line}: {got:?}");
            for (got, expected) in got.iter().zip(expected) {
                assert!(got.contains(expected), "{line}: {got}");
            }
        };
        check("127.0.0.1", "", &[]);
        check("127.0.0.1", "--discovery etcd://a:2379", &[]);
        check("0.0.0.0", "--discovery dns://workers:9000", &["--discovery: dns:// is for routers"]);
        check(
            "0.0.0.0",
            "--discovery etcd://a:2379 --advertise b:9000 --worker-id w-1 --etcd-lease-ttl 5s",
            &[],
        );
        check("0.0.0.0", "--discovery etcd://a:2379", &["--advertise: this worker listens on 0.0.0.0"]);
        check("::", "--discovery etcd://a:2379 --advertise b", &["--advertise: `b` is not host:port"]);
        check(
            "127.0.0.1",
            "--discovery etcd://a:2379 --worker-id a/b --etcd-lease-ttl 1s",
            &["--worker-id", "lease-ttl"],
        );
        check(
            "127.0.0.1",
            "--advertise b:1 --etcd-user me",
            &["--etcd-user: applies only with etcd", "--advertise: applies only with etcd"],
        );
        check(
            "127.0.0.1",
            "--discovery etcd://a:1 --etcd-user me",
            &["--etcd-password-file: required with --etcd-user"],
        );
        check(
            "127.0.0.1",
            "--discovery etcd://a:1 --etcd-user me --etcd-password-file /nowhere",
            &["cannot read /nowhere"],
        );
        check("127.0.0.1", "--discovery etcds://a:1", &["--etcd-ca: etcds:// needs"]);
        check(
            "127.0.0.1",
            "--discovery etcds://a:1 --etcd-ca Cargo.toml",
            &["contains no CERTIFICATE in PEM format"],
        );
        check("127.0.0.1", "--discovery nowhere", &["is not a source of membership"]);
    }

    #[test]
    fn a_password_loses_its_line_end_and_is_never_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("password");
        std::fs::write(&file, "hunter2\n").expect("written");
        let path = file.display().to_string();
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let arguments = ["--discovery", "etcd://a:1", "--etcd-user", "me", "--etcd-password-file", &path];
        let matches = command.try_get_matches_from(arguments).expect("the flags parse");
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let discovery = DiscoverySettings::read(&mut settings);
        assert_eq!(discovery.etcd.user, Some(("me".to_owned(), "hunter2".to_owned())));
        let shown = format!("{discovery:?} {:?}", settings.effective());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn the_certificate_for_etcd_is_known_by_its_end() {
        let pki = skein_tests::pki::Pki::new();
        let pair = pki.issue("me", &["me"], skein_tests::pki::Dates::Always);
        let [ca, cert, key] = [pki.ca(), pair.cert.clone(), pair.key].map(|path| path.display().to_string());
        let files = ["--etcd-ca", &ca, "--etcd-cert", &cert, "--etcd-key", &key];
        let read = |source: &str| {
            let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
            let arguments = [&["--discovery", source], &files[..]].concat();
            let matches = command.try_get_matches_from(arguments).expect("the flags parse");
            let mut settings = load(WORKER, &matches).expect("nothing to read");
            DiscoverySettings::read(&mut settings).etcd_certificate.map(|certificate| certificate.path)
        };
        assert_eq!(read("etcds://a:1"), Some(pair.cert));
        assert_eq!(read("etcd://a:1"), None, "without TLS nothing is shown");
    }
}
