//! Answers with an entity tag: compressed for clients that take gzip, and empty (304) for those that have the
//! same content already. RFC 9110, sections 8.8.3, 12.5.3 and 13.1.2.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ETAG, HeaderName, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};

/// Answers a GET with `headers`. `tag` is weak, because both encodings have the same one. `plain` is called
/// for clients that do not take `gzip`; if it returns `None`, the answer is a 500.
pub fn answer(
    headers: &HeaderMap,
    tag: HeaderValue,
    gzip: Bytes,
    plain: impl FnOnce() -> Option<Bytes>,
) -> Response {
    if has(headers, &tag) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    if takes_gzip(headers) {
        return ([(ETAG, tag)], [(CONTENT_ENCODING, "gzip")], Body::from(gzip)).into_response();
    }
    match plain() {
        Some(plain) => ([(ETAG, tag)], Body::from(plain)).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether the client has the content with this tag. A proxy that compresses makes strong tags weak.
fn has(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    let tag = tag.to_str().map(opaque).unwrap_or_default();
    items(headers, &IF_NONE_MATCH).any(|known| known == "*" || opaque(known) == tag)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    items(headers, &ACCEPT_ENCODING).any(|item| {
        let (coding, parameter) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameter.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        coding.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
    })
}

/// Items of a header that is a list.
fn items<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(name: HeaderName, value: &'static str) -> (u16, bool) {
        let headers = [(name, HeaderValue::from_static(value))].into_iter().collect();
        let tag = HeaderValue::from_static("W/\"1f\"");
        let answer =
            answer(&headers, tag.clone(), Bytes::from_static(b"z"), || Some(Bytes::from_static(b"plain")));
        assert_eq!(answer.headers().get(ETAG), Some(&tag));
        (answer.status().as_u16(), answer.headers().contains_key(CONTENT_ENCODING))
    }

    #[test]
    fn gzip_is_sent_to_those_that_take_it() {
        for takes in ["gzip", "GZIP", "br, gzip;q=0.5", "deflate,gzip ; q=1"] {
            assert_eq!(answered(ACCEPT_ENCODING, takes), (200, true), "{takes}");
        }
        for takes_not in ["", "br", "gzip;q=0", "identity, gzip; q=0.0", "notgzip"] {
            assert_eq!(answered(ACCEPT_ENCODING, takes_not), (200, false), "{takes_not}");
        }
    }

    #[test]
    fn the_same_content_is_not_sent_again() {
        for known in ["W/\"1f\"", "\"1f\"", "\"0\", W/\"1f\"", "*"] {
            assert_eq!(answered(IF_NONE_MATCH, known), (304, false), "{known}");
        }
        for other in ["\"1e\"", "1f", "W/\"\""] {
            assert_eq!(answered(IF_NONE_MATCH, other), (200, false), "{other}");
        }
    }
}
