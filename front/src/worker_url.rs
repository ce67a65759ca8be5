//! Address of a worker.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::Uri;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Https,
    Kserve,
}

impl Protocol {
    fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Kserve => "grpc",
        }
    }
}

/// Before the scheme of a URL whose host is a name that stands for all of its addresses.
const BY_NAME: &str = "dns+";

/// Address of a server that speaks the OpenAI API, `http://host:port` or `https://host:port`, perhaps with a
/// path before `/v1`, or KServe v2, `grpc://host:port`. With `dns+` before it, each address of the host is a
/// server of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerUrl {
    protocol: Protocol,
    is_name: bool,
    host: String,
    port: u16,
    base: String,
}

impl WorkerUrl {
    /// Parses `http://host:port` or `https://host:port`, with or without a path and `/v1`, or
    /// `grpc://host:port`; those of HTTP may begin with `dns+`.
    ///
    /// # Errors
    /// If it is not such a URL, with what to write instead.
    pub fn parse(given: &str) -> Result<Self, String> {
        let example = "give a URL such as http://10.0.0.1:8000";
        let plain = given.trim().strip_prefix(BY_NAME);
        let (is_name, plain) = (plain.is_some(), plain.unwrap_or(given.trim()));
        let uri: Uri = plain.parse().map_err(|_| format!("`{given}` is not a URL; {example}"))?;
        let protocols = [Protocol::Http, Protocol::Https, Protocol::Kserve];
        let protocol = protocols.into_iter().find(|known| uri.scheme_str() == Some(known.scheme()));
        let (Some(protocol), Some(authority)) = (protocol, uri.authority()) else {
            return Err(format!("`{given}` does not begin with http:// or https:// and a host; {example}"));
        };
        let is_kserve = protocol == Protocol::Kserve;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(format!("`{given}`: a user or a query is not supported; {example}"));
        }
        if is_kserve && (authority.port_u16().is_none() || !uri.path().trim_matches('/').is_empty()) {
            return Err(format!("`{given}`: give a host and a port alone, such as grpc://10.0.0.1:8001"));
        }
        if is_name && (is_kserve || authority.host().trim_matches(['[', ']']).parse::<IpAddr>().is_ok()) {
            return Err(format!(
                "`{given}`: after dns+ give an http:// or https:// URL with a name, such as dns+http://vllm:8000"
            ));
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let port = authority.port_u16().unwrap_or(if protocol == Protocol::Https { 443 } else { 80 });
        Ok(Self { protocol, is_name, host: authority.host().to_owned(), port, base: base.to_owned() })
    }

    /// Whether it speaks KServe v2.
    pub fn is_kserve(&self) -> bool {
        self.protocol == Protocol::Kserve
    }

    /// Whether it is reached with TLS.
    pub fn is_tls(&self) -> bool {
        self.protocol == Protocol::Https
    }

    /// Whether its host stands for all of its addresses.
    pub fn is_name(&self) -> bool {
        self.is_name
    }

    /// Shown name of its server at `address`.
    pub fn at(&self, address: SocketAddr) -> String {
        format!("{}://{address}{}", self.protocol.scheme(), self.base)
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
        let (by_name, scheme) = (if self.is_name { BY_NAME } else { "" }, self.protocol.scheme());
        write!(f, "{by_name}{scheme}://{}:{}{}", self.host, self.port, self.base)
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
        check("https://a/v1", "https://a:443", "/health");
        check(" dns+https://a.b:8443/x", "dns+https://a.b:8443/x", "/x/health");
        let url = WorkerUrl::parse("dns+https://a.b:8443/x").unwrap();
        assert!(url.is_name() && url.is_tls() && url.endpoint() == ("a.b", 8443));
        assert_eq!(url.at(([10, 0, 0, 1], 8443).into()), "https://10.0.0.1:8443/x");
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
        for given in ["dns+grpc://a:1", "dns+http://10.0.0.1", "dns+https://[::1]:8"] {
            assert!(WorkerUrl::parse(given).unwrap_err().contains("dns+http://vllm:8000"), "{given}");
        }
    }
}
