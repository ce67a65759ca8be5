//! Reads the body of a request, within limits of length and time.

use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::refusal::Refusal;

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a whole body of at most `limit` bytes. Memory is that of its bytes, in however many chunks they
/// come.
pub async fn read_body<B>(body: B, limit: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let late = |_| {
        let seconds = BODY_TIMEOUT.as_secs();
        Refusal::InvalidJson(format!("The body did not arrive within {seconds} s."))
    };
    tokio::time::timeout(BODY_TIMEOUT, joined(body, limit)).await.map_err(late)?
}

/// The chunks of a body as one. They are copied, because a chunk of one byte keeps the buffer that it came
/// in: kept as they are, eight million of them take hundreds of megabytes.
async fn joined<B>(body: B, limit: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let mut body = std::pin::pin!(body);
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::InvalidJson("The body ended early.".to_owned()))?;
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > limit - first.len() - rest.len() {
            return Err(Refusal::TooLarge { limit });
        }
        if first.is_empty() && rest.is_empty() {
            first = chunk;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&chunk);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Refuses a body that does not say it is JSON.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(CONTENT_TYPE).filter(|value| *value != "application/json") else {
        return Ok(());
    };
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use futures::FutureExt;
    use hyper::body::Frame;

    use super::*;

    /// A chunk that is counted as long as it is kept.
    struct Chunk(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Chunk {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Drop for Chunk {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// So many chunks; notes the most that were kept at once.
    struct Chunks {
        left: usize,
        kept: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            self.most.fetch_max(self.kept.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(Chunk(self.kept.clone()))))))
        }
    }

    #[tokio::test]
    async fn many_small_chunks_are_not_kept_beside_the_body() {
        let most = Arc::new(AtomicUsize::new(0));
        let body = |left| Chunks { left, kept: Arc::default(), most: most.clone() };
        assert_eq!(read_body(body(1), 10).await.unwrap(), "x");
        assert_eq!(read_body(body(10_000), 10_000).await.unwrap(), "x".repeat(10_000));
        assert!(most.load(Ordering::Relaxed) <= 3, "{} chunks were kept", most.load(Ordering::Relaxed));
        assert!(matches!(read_body(body(11), 10).await, Err(Refusal::TooLarge { limit: 10 })));
        assert_eq!(read_body(body(0), 0).now_or_never().unwrap().unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_refused_after_its_time() {
        let slowly = futures::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let began = tokio::time::Instant::now();
        let refused = read_body(http_body_util::StreamBody::new(slowly), 1000).await;
        assert!(matches!(refused, Err(Refusal::InvalidJson(text)) if text.contains("within 60 s")));
        assert_eq!(began.elapsed(), BODY_TIMEOUT);
    }
}
