//! Certificates and keys as text: ECDSA over P-256, which every TLS library and HSM supports. Pure, but for
//! the random numbers of new keys.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};

use x509_parser::extensions::GeneralName;

use super::error::CertsError;

/// Name in every node's certificate, by which nodes recognise each other wherever they run.
pub const CLUSTER_NAME: &str = "skein-cluster";
const AUTHORITY_NAME: &str = "Skein cluster CA";
/// Longest life of a certificate.
const MAX_DAYS: u32 = 36_500;
const DAY: Duration = Duration::from_secs(86_400);
/// How far the clocks of nodes may be behind that of the machine which signs.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// Longest name: that of a DNS label, and below what a certificate's subject allows.
const MAX_NAME: usize = 63;

/// A certificate and its key in PEM.
pub struct Pair {
    /// Certificate.
    pub certificate: String,
    /// Private key in PKCS #8.
    pub key: String,
}

/// A new authority.
///
/// # Errors
/// If `days` are out of range.
pub fn authority(days: u32, now: Duration) -> Result<Pair, CertsError> {
    let mut parameters = parameters(AUTHORITY_NAME, checked_days(days)?, now);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok(Pair { certificate: parameters.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn parameters(name: &str, days: u32, now: Duration) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut parameters = CertificateParams::default();
    parameters.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    parameters.not_after = epoch + now + DAY * days;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

/// An authority that can sign.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    not_after: Duration,
    now: Duration,
}

impl Authority {
    /// Reads the authority's certificate and key, each with its path for errors.
    ///
    /// # Errors
    /// If they are not an authority's, do not belong together, or have expired.
    pub fn parse(
        (certificate, path): (&str, &PathBuf),
        (key, key_path): (&str, &PathBuf),
        now: Duration,
    ) -> Result<Self, CertsError> {
        let unusable = |why: String| CertsError::Unusable { path: path.clone(), what: "certificate", why };
        let key = private_key(key, key_path)?;
        let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|error| unusable(error.to_string()))?;
        let parsed = block.parse_x509().map_err(|error| unusable(error.to_string()))?;
        if !parsed.is_ca() {
            return Err(CertsError::NotAnAuthority(path.clone()));
        }
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(CertsError::OtherKey { key: key_path.clone(), certificate: path.clone() });
        }
        let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let not_after = Duration::from_secs(not_after);
        if not_after <= now {
            return Err(CertsError::Expired(path.clone()));
        }
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        Ok(Self { pem: certificate.to_owned(), issuer, not_after, now })
    }

    /// Its certificate in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A node's certificate for `name`, `hosts` and [`CLUSTER_NAME`], with a new key, or with the one given
    /// as text and path.
    ///
    /// # Errors
    /// If a name, a host or `days` are invalid, or the certificate would outlive the authority.
    pub fn node(
        &self,
        name: &str,
        hosts: &[String],
        days: u32,
        key: Option<(&str, &Path)>,
    ) -> Result<Pair, CertsError> {
        let mut parameters = parameters(checked_name(name)?, checked_days(days)?, self.now);
        if self.now + DAY * days > self.not_after + CLOCK_SKEW {
            let left = (self.not_after - self.now).as_secs() / DAY.as_secs();
            return Err(CertsError::Outlives { left, days });
        }
        let own = [CLUSTER_NAME, name].into_iter().chain(hosts.iter().map(String::as_str));
        for host in own.filter(|host| *host != name || is_dns_name(host)) {
            let host = alternative_name(host)?;
            if !parameters.subject_alt_names.contains(&host) {
                parameters.subject_alt_names.push(host);
            }
        }
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = match key {
            Some((pem, path)) => private_key(pem, path)?,
            None => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
        };
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

/// The hosts of a certificate that exists, with its path for errors.
///
/// # Errors
/// If it is none.
pub fn hosts((certificate, path): (&str, &PathBuf)) -> Result<Vec<String>, CertsError> {
    let unusable = |why: String| CertsError::Unusable { path: path.clone(), what: "certificate", why };
    let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
        .map_err(|error| unusable(error.to_string()))?;
    let parsed = block.parse_x509().map_err(|error| unusable(error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| unusable(error.to_string()))?;
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes).to_string()),
            _ => bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes).to_string()),
        },
        _ => None,
    };
    Ok(names.iter().flat_map(|names| &names.value.general_names).filter_map(host).collect())
}

fn private_key(pem: &str, path: &Path) -> Result<KeyPair, CertsError> {
    KeyPair::from_pem(pem).map_err(|error| CertsError::Unusable {
        path: path.into(),
        what: "private key",
        why: error.to_string(),
    })
}

fn checked_days(days: u32) -> Result<u32, CertsError> {
    let is_allowed = (1..=MAX_DAYS).contains(&days);
    is_allowed.then_some(days).ok_or(CertsError::Days { days, most: MAX_DAYS })
}

/// `name` if it may name files and a subject.
///
/// # Errors
/// If it may not.
pub fn checked_name(name: &str) -> Result<&str, CertsError> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let is_allowed =
        (1..=MAX_NAME).contains(&name.len()) && is_plain && !name.starts_with(['.', '-']) && name != "ca";
    is_allowed.then_some(name).ok_or_else(|| CertsError::Name(name.to_owned()))
}

fn alternative_name(host: &str) -> Result<SanType, CertsError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if !is_dns_name(host) {
        return Err(CertsError::Host(host.to_owned()));
    }
    Ok(SanType::DnsName(host.try_into()?))
}

/// Whether `host` is a DNS name, which may begin with a wildcard label.
fn is_dns_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_NAME).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.strip_prefix("*.").unwrap_or(host).split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn parsed(pair: &Pair, now: Duration) -> Result<Authority, CertsError> {
        Authority::parse((&pair.certificate, &"ca.crt".into()), (&pair.key, &"ca.key".into()), now)
    }

    /// What is wrong with a node's certificate of a new authority with ten days.
    fn refusal(name: &str, host: &str, days: u32) -> String {
        let authority = parsed(&authority(10, NOW).unwrap(), NOW).unwrap();
        authority
            .node(name, &[host.to_owned()], days, None)
            .err()
            .map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn names_hosts_and_days_are_checked() {
        for (name, host, days) in
            [("a", "b", 10), ("worker_1.x", "10.0.0.7", 1), ("a", "::1", 1), ("a", "*.skein.svc", 1)]
        {
            assert_eq!(refusal(name, host, days), "");
        }
        for (name, host, days, expected) in [
            ("ca", "b", 1, "is not \"ca\""),
            ("../a", "b", 1, "letters, digits"),
            ("", "b", 1, "1 to 63"),
            ("a", "http://b", 1, "without a scheme"),
            ("a", "b:8000", 1, "without a scheme and a port"),
            ("a", "-b", 1, "neither a DNS name"),
            ("a", "b", 0, "--days is 1 to 36500; this is 0"),
            ("a", "b", 11, "expires in 10 days, before the certificate's 11"),
        ] {
            let got = refusal(name, host, days);
            assert!(got.contains(expected), "{got}");
        }
    }

    #[test]
    fn only_an_authority_with_its_own_key_signs() {
        let [one, other] = [authority(10, NOW).unwrap(), authority(10, NOW).unwrap()];
        let node = parsed(&one, NOW).unwrap().node("a", &[], 1, None).unwrap();
        let why =
            |pair: &Pair, now| parsed(pair, now).err().map_or_else(String::new, |error| error.to_string());
        assert_eq!(why(&one, NOW), "");
        assert!(why(&node, NOW).contains("not of an authority"));
        let mixed = Pair { certificate: one.certificate.clone(), key: other.key };
        assert!(why(&mixed, NOW).contains("the public keys differ"));
        assert!(why(&one, NOW + 11 * DAY).contains("has expired"));
        let garbage = Pair { certificate: "no".into(), key: one.key };
        assert!(why(&garbage, NOW).contains("ca.crt is not a certificate"));
    }

    #[test]
    fn a_renewed_certificate_keeps_its_key_and_its_hosts() {
        let authority = parsed(&authority(10, NOW).unwrap(), NOW).unwrap();
        let given = ["b.example", "10.0.0.7", "fd00::7"].map(str::to_owned);
        let first = authority.node("a", &given, 1, None).unwrap();
        let kept = hosts((&first.certificate, &"a.crt".into())).unwrap();
        assert_eq!(kept, ["skein-cluster", "a", "b.example", "10.0.0.7", "fd00::7"]);
        let renewed = authority.node("a", &[], 2, Some((&first.key, Path::new("a.key")))).unwrap();
        assert_eq!(first.key, renewed.key);
        assert_ne!(first.certificate, renewed.certificate);
    }
}
