//! How the commands that talk to a running server reach it: `run --url`, `run-batch --server` and `bench
//! serve`. Their flags for TLS have curl's names.

use std::path::PathBuf;

use clap::Args;
use skein_client::{Client, Limits};
use skein_tls::{ClientFiles, ClientTls, IdentityFiles};

use crate::exit::{Failure, USAGE};

/// Certificates for a server with an `https` URL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Certificates {
    #[arg(
        long,
        value_name = "FILE",
        help = "For https: trust servers with a certificate of this CA, in PEM [default: the system's CAs]"
    )]
    cacert: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = "For https: show the server this certificate, in PEM")]
    cert: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "Private key of --cert, in PEM [default: the one in the file of --cert]"
    )]
    key: Option<PathBuf>,
}

impl Certificates {
    /// A client of the server at `url`, the value of `flag`; also the URL without `/v1` at its end.
    ///
    /// # Errors
    /// If `url` is no URL of a server, or a file cannot be used.
    pub fn client(&self, flag: &str, url: &str, limits: Limits) -> Result<(Client, String), Failure> {
        let base_url = base_url(flag, url)?;
        let tls = if base_url.starts_with("https://") {
            Some(self.read()?)
        } else if *self == Self::default() {
            None
        } else {
            let message = format!("--cacert, --cert and --key are for https, but {flag} is {url}");
            return Err(Failure::new(USAGE, message));
        };
        Ok((Client::new(tls.as_ref(), limits), base_url))
    }

    fn read(&self) -> Result<ClientTls, Failure> {
        let key = || self.key.clone().or_else(|| self.cert.clone());
        let identity = self.cert.clone().zip(key()).map(|(cert, key)| IdentityFiles { cert, key });
        if identity.is_none() && self.key.is_some() {
            return Err(Failure::new(USAGE, "--key needs --cert, the certificate that it belongs to"));
        }
        let files = ClientFiles { ca: self.cacert.clone(), identity };
        ClientTls::read(&files).map_err(|error| Failure::new(USAGE, error.to_string()))
    }
}

/// Removes `/v1` from the end of `url`, the value of `flag`.
fn base_url(flag: &str, url: &str) -> Result<String, Failure> {
    let base_url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let host = base_url.strip_prefix("http://").or_else(|| base_url.strip_prefix("https://"));
    if host.is_some_and(|host| !host.is_empty()) {
        return Ok(base_url);
    }
    let message = format!(
        "{flag} {url} must be an http:// or https:// URL, for example http://127.0.0.1:8000 or https://skein.example"
    );
    Err(Failure::new(USAGE, message))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn urls_and_files_are_checked_together() {
        let limits = Limits { connect: Duration::from_secs(1), read: None, whole: None };
        let check = |url: &str, cert: Option<&str>, key: Option<&str>, expected: Result<&str, &str>| {
            let certificates =
                Certificates { cacert: None, cert: cert.map(Into::into), key: key.map(Into::into) };
            let got = certificates.client("--url", url, limits).map(|(_, base_url)| base_url);
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected),
                (Err(got), Err(expected)) => assert!(got.message.contains(expected), "{got}"),
                (got, expected) => panic!("{url}: {got:?}, expected {expected:?}"),
            }
        };
        check("http://a:1/v1/", None, None, Ok("http://a:1"));
        check("https://a/v1", None, None, Ok("https://a"));
        check("a:1", None, None, Err("must be an http:// or https:// URL"));
        check("https://", None, None, Err("must be an http:// or https:// URL"));
        check("http://a", Some("c"), Some("k"), Err("are for https, but --url is http://a"));
        check("https://a", None, Some("k"), Err("--key needs --cert"));
        check("https://a", Some("/nowhere.pem"), None, Err("/nowhere.pem"));
    }
}
