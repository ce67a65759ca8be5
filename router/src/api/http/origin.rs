//! Whether a request to a server on loopback may come from a page of somebody else. Browsers keep such
//! pages from reading answers, unless their name was made to lead here ("DNS rebinding"), and the `Host`
//! then tells.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;

/// Whether the host is an address or localhost, and the origin, if a page sent it, is the same. Browsers send
/// `Host` wherever a page's name could be forged: HTTP/2 needs a certificate.
pub fn is_own(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let Some(authority) = authority else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_localhost =
        name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    if !is_localhost && name.parse::<IpAddr>().is_err() {
        return false;
    }
    headers.get(ORIGIN).is_none_or(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(authority.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_name_or_origin_is_told_from_ones_own() {
        let own = |host: Option<&str>, origin: Option<&str>| {
            let host = host.map(|host| (HOST, host.parse().unwrap()));
            let origin = origin.map(|origin| (ORIGIN, origin.parse().unwrap()));
            is_own(&host.into_iter().chain(origin).collect())
        };
        for host in
            ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "skein.localhost:8000", "10.0.0.7"]
        {
            assert!(own(Some(host), None), "{host}");
            assert!(own(Some(host), Some(&format!("http://{host}"))), "{host}");
            assert!(!own(Some(host), Some("https://elsewhere.example")), "{host}");
        }
        for host in ["elsewhere.example", "localhost.example:8000", "127.0.0.1.example", ""] {
            assert!(!own(Some(host), None), "{host}");
        }
        assert!(own(None, None));
        assert!(!own(Some("127.0.0.1:8000"), Some("null")));
        assert!(
            !own(Some("127.0.0.1:8000"), Some("http://127.0.0.1:9000")),
            "another port is another origin"
        );
    }
}
