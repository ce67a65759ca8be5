//! Why a client's handshake failed, for the operator who reads it in a log.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// A client has no connection to its server.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Neither a DNS name nor an IP address.
    #[error("`{host}` cannot be the name in a certificate; use a DNS name or an IP address")]
    Name {
        /// The host as it was given.
        host: String,
    },
    /// The server is not trusted, or does not trust this client, or does not speak TLS.
    #[error("TLS: {}", explain(.0))]
    Failed(io::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn explain(error: &io::Error) -> String {
    let rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let advice = match rustls {
        Some(Error::InvalidCertificate(why)) => of_server(why),
        Some(Error::InvalidMessage(_)) => Some("the peer does not speak TLS on this port"),
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            Some("the peer asks for a certificate, and this process has shown none")
        }
        Some(Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        )) => Some("the peer does not accept this process' own certificate"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            Some("the peer closed the connection; does it speak TLS on this port?")
        }
        _ => None,
    };
    match advice {
        Some(advice) => format!("{advice} ({error})"),
        None => error.to_string(),
    }
}

fn of_server(why: &CertificateError) -> Option<&'static str> {
    Some(match why {
        // The second: a CA of the same name, made anew.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no trusted CA has issued the peer's certificate"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the peer's certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the peer's certificate is for another name"
        }
        CertificateError::Other(why) if why.to_string().contains("CaUsedAsEndEntity") => {
            "the peer shows the certificate of a CA (CA:TRUE), which is for issuing others; it needs one of its own"
        }
        _ => return None,
    })
}
