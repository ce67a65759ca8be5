//! Address of a worker.

use std::fmt;

use http::Uri;
use http::uri::Scheme;

/// Address of a server that speaks the OpenAI API, `http://host:port`, perhaps with a path before `/v1`, or
/// KServe v2, `grpc://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerUrl {
    is_kserve: bool,
    host: String,
    port: u16,
    base: String,
}

impl WorkerUrl {
    /// Parses `http://host:port`, with or without a path and `/v1`, or `grpc://host:port`.
    ///
    /// # Errors
    /// If it is not such a URL, with what to write instead.
    pub fn parse(given: &str) -> Result<Self, String> {
        let example = "give a URL such as http://10.0.0.1:8000";
        let uri: Uri = given.trim().parse().map_err(|_| format!("`{given}` is not a URL; {example}"))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(format!(
                "`{given}`: workers are reached without TLS; give an http:// URL, or put a TLS proxy between"
            ));
        }
        let is_kserve = uri.scheme_str() == Some("grpc");
        let authority = uri.authority().filter(|_| is_kserve || uri.scheme() == Some(&Scheme::HTTP));
        let authority = authority
            .ok_or_else(|| format!("`{given}` does not begin with http:// and a host; {example}"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(format!("`{given}`: a user or a query is not supported; {example}"));
        }
        if is_kserve && (authority.port_u16().is_none() || !uri.path().trim_matches('/').is_empty()) {
            return Err(format!("`{given}`: give a host and a port alone, such as grpc://10.0.0.1:8001"));
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { is_kserve, host: authority.host().to_owned(), port, base: base.to_owned() })
    }

    /// Whether it speaks KServe v2.
    pub fn is_kserve(&self) -> bool {
        self.is_kserve
    }

    /// Host without brackets, and port, for a connection.
    pub fn endpoint(&self) -> (&str, u16) {
        (self.host.trim_matches(['[', ']']), self.port)
    }

    /// Value of the header `host`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Path at the worker for `path` here.
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_kserve { "grpc" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_a_path() {
        let check = |given: &str, shown: &str, path: &str| {
            let url = WorkerUrl::parse(given).unwrap();
            assert_eq!((url.to_string().as_str(), url.path("/health").as_str()), (shown, path), "{given}");
        };
        check("http://a:8000", "http://a:8000", "/health");
        check(" http://a:8000/v1/ ", "http://a:8000", "/health");
        check("http://10.0.0.1", "http://10.0.0.1:80", "/health");
        check("http://[::1]:9/team/v1", "http://[::1]:9/team", "/team/health");
        check("grpc://a:8001", "grpc://a:8001", "/health");
        assert_eq!(WorkerUrl::parse("http://[::1]:9").unwrap().endpoint(), ("::1", 9));
        assert!(WorkerUrl::parse("grpc://[::1]:9/").unwrap().is_kserve());
    }

    #[test]
    fn other_urls_are_refused_with_what_to_write() {
        for given in
            ["", "a:8000", "localhost", "ftp://a", "http://", "http://u:p@a", "http://a?x=1", "http://a b"]
        {
            let message = WorkerUrl::parse(given).unwrap_err();
            assert!(message.contains("http://10.0.0.1:8000"), "{given}: {message}");
        }
        for given in ["grpc://a", "grpc://a:1/v1"] {
            assert!(WorkerUrl::parse(given).unwrap_err().contains("grpc://10.0.0.1:8001"), "{given}");
        }
        assert!(WorkerUrl::parse("https://a").unwrap_err().contains("TLS"));
    }
}
