//! Why certificates cannot be made.

use std::path::PathBuf;

/// A failure of `skein certs`.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    #[error("{} exists and is not overwritten: choose another --out, or move it away{hint}", path.display())]
    Exists { path: PathBuf, hint: &'static str },
    #[error("{} cannot be {doing}: {error}", path.display())]
    File { path: PathBuf, doing: &'static str, error: std::io::Error },
    #[error("{} does not exist: skein certs ca makes it, and --ca names its directory", .0.display())]
    NoAuthority(PathBuf),
    #[error("{} does not exist: there is nothing to renew; leave out --renew", .0.display())]
    NothingToRenew(PathBuf),
    #[error("{} is not a {what} in PEM: {why}", path.display())]
    Unusable { path: PathBuf, what: &'static str, why: String },
    #[error("{} is the certificate of a node, not of an authority, and cannot sign others", .0.display())]
    NotAnAuthority(PathBuf),
    #[error("{} does not belong to {}: the public keys differ", key.display(), certificate.display())]
    OtherKey { key: PathBuf, certificate: PathBuf },
    #[error(
        "the authority expires in {left} days, before the certificate's {days}: lower --days, or make a new authority"
    )]
    Outlives { left: u64, days: u32 },
    #[error("the authority in {} has expired: make a new one with skein certs ca --out", .0.display())]
    Expired(PathBuf),
    #[error(
        "a node's name has 1 to 63 letters, digits, hyphens, dots or underscores and is not \"ca\"; this one is {0:?}"
    )]
    Name(String),
    #[error(
        "--host {0:?} is neither a DNS name nor an IP address; without a scheme and a port, for example worker-1.example or 10.0.0.7"
    )]
    Host(String),
    #[error("--days is 1 to {most}; this is {days}")]
    Days { days: u32, most: u32 },
    #[error("cannot make the certificate: {0}")]
    Making(#[from] rcgen::Error),
}

impl CertsError {
    /// Whether other flags would help.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Making(_))
    }

    /// Ignores that a file exists already.
    pub fn allow_existing(self) -> Result<(), Self> {
        if matches!(self, Self::Exists { .. }) { Ok(()) } else { Err(self) }
    }
}
