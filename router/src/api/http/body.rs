//! Reads the body of a request, within limits of length and time.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;

use crate::refusal::Refusal;

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a whole body of at most `limit` bytes.
pub async fn read_body<B>(body: B, limit: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit).collect());
    match collected.await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(Refusal::TooLarge { limit })
        }
        Ok(Err(_)) => Err(Refusal::InvalidJson("The body ended early.".to_owned())),
        Err(_) => {
            let seconds = BODY_TIMEOUT.as_secs();
            Err(Refusal::InvalidJson(format!("The body did not arrive within {seconds} s.")))
        }
    }
}

/// Refuses a body that does not say it is JSON.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = lower(value);
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(Refusal::UnsupportedMediaType(quotable(kind)))
}

/// A compressed body's size is unknown until it is unpacked, so none is accepted.
pub fn check_content_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter().map(lower);
    let refused = encodings.find(|encoding| !matches!(encoding.trim(), "" | "identity"));
    refused.map_or(Ok(()), |encoding| Err(Refusal::CompressedBody(quotable(encoding.trim()))))
}

/// Refuses a body by its `Content-Length`, before any of it arrives.
pub fn check_content_length(headers: &HeaderMap, limit: usize) -> Result<(), Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match announced {
        Some(length) if length > limit as u64 => Err(Refusal::TooLarge { limit }),
        _ => Ok(()),
    }
}

fn lower(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase()
}

/// Escapes before cutting: 100 characters of escaped text are 100 bytes, so the answer stays small.
fn quotable(text: &str) -> String {
    text.escape_default().take(100).collect()
}
