//! Headers on their way through: those of one connection and those that frame a body are not passed on
//! (RFC 9110, section 7.6.1; RFC 9112, section 6). Pure.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use skein_router::api::http::receipts::RECEIPT;

use super::routes::RESUME;

/// Headers of one connection.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Name of a request in logs, here and at its worker.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's key without a scheme.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Removes the headers of one connection, and those that `connection` names.
pub fn strip(headers: &mut HeaderMap) {
    let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    for name in lines.iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
        if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Headers for a worker. The length is that of the body that is sent, and streams must not be compressed,
/// because their events could not be told apart. A key for this router is not for the worker.
pub fn to_worker(mut headers: HeaderMap, has_keys: bool, authorization: Option<&HeaderValue>) -> HeaderMap {
    strip(&mut headers);
    for name in [HOST, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ACCEPT_ENCODING, RESUME, RECEIPT] {
        headers.remove(name);
    }
    if has_keys || authorization.is_some() {
        headers.remove(AUTHORIZATION);
        headers.remove(X_API_KEY);
    }
    if let Some(authorization) = authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    headers
}

/// The head of a worker's response as this process sends it: status and headers. The body is framed anew by
/// whoever sends it, so neither a length nor a version of the worker's connection reaches the client.
///
/// # Errors
/// Why the response is none that a client may get.
pub fn from_worker(head: Parts) -> Result<Parts, &'static str> {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it switched protocols without being asked");
    }
    let codings = head.headers.get_all(TRANSFER_ENCODING);
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if codings.iter().count() > 1 || !codings.iter().all(is_chunked) {
        return Err("its transfer-encoding is not `chunked`");
    }
    let (mut own, ()) = Response::new(()).into_parts();
    (own.status, own.headers) = (head.status, head.headers);
    strip(&mut own.headers);
    own.headers.remove(CONTENT_LENGTH);
    Ok(own)
}

/// Whether a response is framed twice. Chunks decide where it ends, and its connection is not used again.
pub fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH)
}

/// Whether a response is a stream of server-sent events.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
    }

    #[test]
    fn headers_of_a_connection_end_with_it() {
        let mut given = headers(&[
            ("connection", "close, X-Private , bad name"),
            ("connection", "x-other"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("keep-alive", "5"),
            ("x-public", "1"),
        ]);
        strip(&mut given);
        assert_eq!(names(&given), ["x-public"]);
    }

    #[test]
    fn a_clients_key_goes_only_to_workers_that_check_it() {
        let given = [("authorization", "Bearer client"), ("x-api-key", "client"), ("x-request-id", "a")];
        let open = to_worker(headers(&given), false, None);
        assert_eq!(open["authorization"], "Bearer client");
        assert_eq!(names(&to_worker(headers(&given), true, None)), ["x-request-id"]);
        let ours = to_worker(headers(&given), false, Some(&HeaderValue::from_static("Bearer worker")));
        assert_eq!(ours["authorization"], "Bearer worker");
        assert!(!ours.contains_key("x-api-key"));
    }
}
