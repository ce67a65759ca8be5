//! What can be wrong with files of certificates and keys.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A file cannot be used. Every message names the file, what is wrong with it, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Missing, or no permission, or no regular file.
    #[error("{}: {why}; give a PEM file that this process may read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// Not a file of certificates by its size.
    #[error("{} has more than {limit} bytes; give a PEM file of certificates or a key", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes that are read.
        limit: u64,
    },
    /// A section is not valid PEM.
    #[error("{} is not valid PEM: {why}; write it again", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        why: String,
    },
    /// PEM, or not, but without a certificate.
    #[error("{}: no certificate in it; give a PEM file with `BEGIN CERTIFICATE`", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A certificate that cannot be parsed.
    #[error("{}: a certificate cannot be used: {why}; issue it again, as X.509 version 3", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        why: String,
    },
    /// PEM, or not, but without a private key.
    #[error("{}: no private key in it; give a PEM file with `BEGIN PRIVATE KEY`", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A key behind a passphrase.
    #[error(
        "{}: the private key is encrypted; write it without a passphrase (`openssl pkey`) to a file that only this \
         process may read",
        path.display()
    )]
    EncryptedKey {
        /// The file.
        path: PathBuf,
    },
    /// A key of a kind that is not supported.
    #[error("{}: the private key cannot be used: {why}; use ECDSA P-256 or P-384, Ed25519 or RSA", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        why: String,
    },
    /// The two files are not a pair.
    #[error(
        "the key in {} does not belong to the first certificate in {}; give both files of one certificate, the \
         server's own first and its issuers after it",
        key.display(),
        cert.display()
    )]
    KeyMismatch {
        /// The file of the certificates.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate was valid once.
    #[error("{}: the certificate expired {} ago; renew it, or set this machine's clock", path.display(), about(*ago))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Time since its end.
        ago: Duration,
    },
    /// The certificate will be valid.
    #[error(
        "{}: the certificate is valid only in {}; set this machine's clock, or issue it again",
        path.display(),
        about(*wait)
    )]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Time until its begin.
        wait: Duration,
    },
    /// A node's certificate without the name that says that it is one.
    #[error(
        "{}: the certificate lacks the DNS name `{name}`, by which nodes of a cluster recognise each other; issue it \
         with that name, as `skein certs` does",
        path.display()
    )]
    NotOfCluster {
        /// The file.
        path: PathBuf,
        /// The name that is missing.
        name: &'static str,
    },
}

/// A duration in its largest whole unit.
fn about(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match duration.as_secs() {
        seconds if seconds >= 2 * DAY => format!("{} days", seconds / DAY),
        seconds if seconds >= 2 * HOUR => format!("{} hours", seconds / HOUR),
        seconds if seconds >= 2 * MINUTE => format!("{} minutes", seconds / MINUTE),
        seconds => format!("{seconds} s"),
    }
}
