//! Certificates made for a test: a CA, and what it issues, as PEM files in a temporary folder. The crates
//! `tls`, which may use nothing of ours, `router` and `front` include this file in their own tests.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;

const WORKS: &str = "the harness works";

/// When a certificate is valid.
#[derive(Debug, Clone, Copy)]
pub enum Dates {
    /// From 1975 to 4096.
    Always,
    /// Until the first day of this year.
    UntilYear(i32),
    /// Until 2001.
    Past,
    /// From 3000.
    Future,
}

/// A CA and its files.
#[derive(Debug)]
pub struct Pki {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of one certificate.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Default for Pki {
    fn default() -> Self {
        Self::new()
    }
}

impl Pki {
    /// A new CA.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a test's CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect(WORKS);
        let certificate = params.self_signed(&key).expect(WORKS);
        let folder = tempfile::tempdir().expect(WORKS);
        fs::write(folder.path().join("ca.pem"), certificate.pem()).expect(WORKS);
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// The file of the CA's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The CA's own certificate and its key, which no server should have.
    pub fn own_pair(&self, file: &str) -> Pair {
        let path = |kind: &str| self.folder.path().join(format!("{file}.{kind}"));
        let pair = Pair { cert: path("pem"), key: path("key") };
        fs::copy(self.ca(), &pair.cert).expect(WORKS);
        fs::write(&pair.key, self.issuer.key().serialize_pem()).expect(WORKS);
        pair
    }

    /// A folder for other files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A certificate for `hosts`, for servers and clients, in files that begin with `file`; existing files
    /// are replaced.
    pub fn issue(&self, file: &str, hosts: &[&str], dates: Dates) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, file);
        for host in hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*host).try_into().expect(WORKS)),
            });
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        match dates {
            Dates::Always => {}
            Dates::UntilYear(year) => params.not_after = date_time_ymd(year, 1, 1),
            Dates::Past => params.not_after = date_time_ymd(2001, 1, 1),
            Dates::Future => params.not_before = date_time_ymd(3000, 1, 1),
        }
        let key = KeyPair::generate().expect(WORKS);
        let certificate = params.signed_by(&key, &self.issuer).expect(WORKS);
        let path = |kind: &str| self.folder.path().join(format!("{file}.{kind}"));
        let pair = Pair { cert: path("pem"), key: path("key") };
        fs::write(&pair.cert, certificate.pem()).expect(WORKS);
        fs::write(&pair.key, key.serialize_pem()).expect(WORKS);
        pair
    }

    /// A node's certificate, valid on this machine.
    pub fn node(&self, file: &str) -> Pair {
        let loopback = Ipv4Addr::LOCALHOST.to_string();
        self.issue(file, &["skein-cluster", "localhost", &loopback], Dates::Always)
    }
}
