//! Reads a body that may be compressed and may have binary tensors behind its JSON.

use std::io::{self, Read};

use axum::extract::Request;
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName};

use crate::api::http::body::{check_content_encoding, check_content_length, read_body};
use crate::app::App;
use crate::refusal::Refusal;

/// Bytes of JSON at the start of a body with binary tensors, in requests and answers.
pub const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// A body in its two parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// The JSON.
    pub json: Bytes,
    /// Raw elements of the tensors that the JSON gives sizes for, in its order.
    pub binary: Bytes,
}

/// Compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    /// RFC 9110: the zlib format.
    Deflate,
}

/// Reads the body of `request` within the limits of `app` and gives it to `parse`, off the async threads.
///
/// # Errors
/// If the body is too large, compressed otherwise or damaged, and those of `parse`.
pub async fn read<T: Send + 'static>(
    request: Request,
    app: &App,
    parse: impl FnOnce(Parts) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let (parts, body) = request.into_parts();
    let encoding = encoding(&parts.headers)?;
    let limit = app.config.limits.body_bytes;
    check_content_length(&parts.headers, limit)?;
    let body = read_body(body, limit).await?;
    // A compressed body may take as much work as the largest plain one.
    let work = if encoding.is_some() { limit } else { body.len() };
    let parsed = move || {
        let plain = encoding.map_or(Ok(body.clone()), |encoding| unpacked(encoding, &body, limit))?;
        parse(split(&parts.headers, plain)?)
    };
    app.text_work(work, parsed).await
}

fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Refusal> {
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii().to_ascii_lowercase()) {
        Some(value) if value == b"gzip" => Ok(Some(Encoding::Gzip)),
        Some(value) if value == b"deflate" => Ok(Some(Encoding::Deflate)),
        _ => check_content_encoding(headers).map(|()| None),
    }
}

/// The plain form of a compressed body, of at most `limit` bytes.
fn unpacked(encoding: Encoding, body: &[u8], limit: usize) -> Result<Bytes, Refusal> {
    let mut plain = Vec::new();
    let most = limit as u64 + 1;
    let read: io::Result<usize> = match encoding {
        Encoding::Gzip => MultiGzDecoder::new(body).take(most).read_to_end(&mut plain),
        Encoding::Deflate => ZlibDecoder::new(body).take(most).read_to_end(&mut plain),
    };
    if plain.len() > limit {
        return Err(Refusal::TooLarge { limit });
    }
    let name = if encoding == Encoding::Gzip { "gzip" } else { "deflate (zlib)" };
    read.map(|_| plain.into())
        .map_err(|_| Refusal::InvalidJson(format!("The body is not valid {name}, as content-encoding says.")))
}

fn split(headers: &HeaderMap, mut body: Bytes) -> Result<Parts, Refusal> {
    let Some(length) = headers.get(HEADER_LENGTH) else {
        return Ok(Parts { json: body, binary: Bytes::new() });
    };
    let length = length.to_str().ok().and_then(|length| length.trim().parse::<usize>().ok());
    let length = length.filter(|length| *length <= body.len()).ok_or_else(|| {
        let most = body.len();
        Refusal::InvalidJson(format!(
            "Inference-Header-Content-Length must be the bytes of JSON at the start of the body, which has {most} bytes."
        ))
    })?;
    Ok(Parts { json: body.split_to(length), binary: body })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_compressed_body_is_unpacked_within_the_limit() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(b"{}").unwrap();
        let zlib = zlib.finish().unwrap();
        assert_eq!(unpacked(Encoding::Deflate, &zlib, 2).unwrap(), "{}");
        let two = [gzip(b"{"), gzip(b"}")].concat();
        assert_eq!(unpacked(Encoding::Gzip, &two, 2).unwrap(), "{}");
        let large = gzip(&vec![b'a'; 1 << 20]);
        assert!(large.len() < 2048);
        assert!(matches!(unpacked(Encoding::Gzip, &large, 1000), Err(Refusal::TooLarge { limit: 1000 })));
        let cut = &large[..large.len() / 2];
        for (encoding, damaged) in [(Encoding::Gzip, cut), (Encoding::Gzip, b"{}"), (Encoding::Deflate, cut)]
        {
            let refused = unpacked(encoding, damaged, 1 << 21).unwrap_err();
            assert!(refused.to_string().contains("as content-encoding says"), "{refused}");
        }
    }

    #[test]
    fn the_header_says_where_the_json_ends() {
        let check = |length: &str| {
            let headers = HeaderMap::from_iter([(HEADER_LENGTH, length.parse().unwrap())]);
            split(&headers, Bytes::from_static(b"{}\x01")).map(|parts| (parts.json, parts.binary))
        };
        assert_eq!(check("2").unwrap(), (Bytes::from_static(b"{}"), Bytes::from_static(b"\x01")));
        assert_eq!(check(" 3 ").unwrap().1, "");
        for wrong in ["4", "-1", "x", "", "18446744073709551616"] {
            assert!(check(wrong).unwrap_err().to_string().contains("which has 3 bytes"), "{wrong}");
        }
    }
}
