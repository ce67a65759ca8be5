//! Why a request has no answer.

use std::error::Error;
use std::io;
use std::time::Duration;

use skein_tls::HandshakeError;

/// A request without an answer, or with a part of one.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request cannot be written.
    #[error("{0}")]
    Invalid(String),
    /// No connection.
    #[error("{0}")]
    Connect(String),
    /// Nothing arrived in time.
    #[error("the server sent nothing for {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The connection broke before the answer.
    #[error("{0}")]
    Broken(String),
    /// The connection broke within the answer.
    #[error("{0}")]
    Cut(String),
    /// The answer is not what was expected.
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The answer is too long.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// The innermost cause: the outer ones say only that sending failed. A failed handshake says what to do.
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    loop {
        if let Some(failed) = handshake(cause) {
            return failed.to_string();
        }
        match cause.source() {
            Some(inner) => cause = inner,
            None => return cause.to_string(),
        }
    }
}

fn handshake(error: &(dyn Error + 'static)) -> Option<HandshakeError> {
    let error = error.downcast_ref::<io::Error>()?;
    let inner = error.get_ref()?;
    match inner.downcast_ref::<rustls::Error>() {
        Some(rustls) => Some(io::Error::new(error.kind(), rustls.clone()).into()),
        // Connectors wrap it once more, and `source` would skip what is inside.
        None => handshake(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_handshake_says_what_to_do_however_it_is_wrapped() {
        let rustls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let once = io::Error::new(io::ErrorKind::InvalidData, rustls);
        let twice = io::Error::other(io::Error::other(once));
        let said = root_cause(&twice);
        assert!(said.contains("no trusted CA has issued the peer's certificate"), "{said}");
        assert_eq!(root_cause(&io::Error::other("refused")), "refused");
    }
}
