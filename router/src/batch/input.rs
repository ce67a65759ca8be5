//! Parses a line of batch input into a request.

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use xxhash_rust::xxh3::xxh3_128;

/// Longest input line, in bytes.
pub const MAX_LINE_BYTES: u64 = 16 << 20;
/// Longest `custom_id`, in bytes.
pub const MAX_CUSTOM_ID_BYTES: usize = 512;

/// APIs that a batch may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Chat completions, `/v1/chat/completions`.
    Chat,
    /// Text completions, `/v1/completions`.
    Completions,
    /// Vectors of texts, `/v1/embeddings`.
    Embeddings,
    /// Scores of pairs, `/v1/score`.
    Score,
    /// Documents by relevance, `/v1/rerank`.
    Rerank,
}

impl Endpoint {
    const ALL: [Self; 5] = [Self::Chat, Self::Completions, Self::Embeddings, Self::Score, Self::Rerank];

    /// URL path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Score => "/v1/score",
            Self::Rerank => "/v1/rerank",
        }
    }

    /// The paths of all, for errors.
    pub fn paths() -> String {
        let [others @ .., last] = Self::ALL.map(|endpoint| format!("\"{}\"", endpoint.path()));
        format!("{} or {last}", others.join(", "))
    }

    /// Endpoint with the path `url`.
    pub fn of(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == url)
    }
}

/// A valid request.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Endpoint of the request.
    pub endpoint: Endpoint,
    /// JSON object of the request.
    pub body: Value,
}

impl Call {
    /// Whether the client has given the request an id, which then takes the place of the idempotency key.
    pub fn names_itself(&self) -> bool {
        self.body.get("request_id").is_some_and(|id| !id.is_null())
    }
}

/// A parsed input line.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Client's id of the request, unique in the file.
    pub custom_id: String,
    /// Hash of the whole line. It is the basis of the idempotency key: a request sent twice is generated
    /// once, with the same tokens.
    pub digest: u128,
    /// The request, or why it is invalid.
    pub call: Result<Call, String>,
}

impl Item {
    /// Idempotency key of the request, which is also its id in the output.
    pub fn key(&self) -> String {
        format!("batch_req_{:032x}", self.digest)
    }

    /// Parses a line.
    ///
    /// # Errors
    /// If the line has no usable `custom_id`, so no output line could refer to it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let line = line.trim_ascii();
        let mut value: Value =
            serde_json::from_slice(line).map_err(|error| format!("it is not JSON: {error}"))?;
        let Some(object) = value.as_object_mut() else {
            return Err("it is not a JSON object".to_owned());
        };
        let custom_id = match object.get("custom_id") {
            Some(Value::String(id)) if (1..=MAX_CUSTOM_ID_BYTES).contains(&id.len()) => id.clone(),
            Some(Value::String(id)) => {
                return Err(format!(
                    "custom_id has {} bytes; it must have 1 to {MAX_CUSTOM_ID_BYTES}",
                    id.len()
                ));
            }
            Some(other) => return Err(format!("custom_id must be a string, not {other}")),
            None => return Err("it has no custom_id, a string that is unique in the file".to_owned()),
        };
        let call = call(object.get("method"), object.get("url"), object.get("body"));
        Ok(Self { custom_id, digest: xxh3_128(line), call })
    }
}

fn call(method: Option<&Value>, url: Option<&Value>, body: Option<&Value>) -> Result<Call, String> {
    if method.is_some_and(|method| method != "POST") {
        return Err("method must be \"POST\"".to_owned());
    }
    let supported = || format!("url must be {}", Endpoint::paths());
    let endpoint = url.and_then(Value::as_str).and_then(Endpoint::of);
    let Some(endpoint) = endpoint else {
        return Err(url.map_or_else(supported, |url| format!("{}, not {url}", supported())));
    };
    let Some(body @ Value::Object(fields)) = body else {
        return Err("body must be a JSON object, the request".to_owned());
    };
    if fields.get("stream").is_some_and(|stream| stream != &Value::Bool(false)) {
        return Err("body.stream must be false or absent: each answer is one output line".to_owned());
    }
    Ok(Call { endpoint, body: body.clone() })
}

/// Reads lines of limited length.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    number: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Reader of the lines in `reader`.
    pub fn new(reader: R) -> Self {
        Self { reader, number: 0 }
    }

    /// Next line that is not blank, and its number from 1; `None` at the end.
    ///
    /// # Errors
    /// If reading fails, or a line is too long or invalid.
    pub async fn next(&mut self) -> Result<Option<(u64, Item)>, InputError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = (&mut self.reader).take(MAX_LINE_BYTES + 1);
            let read = bounded.read_until(b'\n', &mut line).await.map_err(InputError::Unreadable)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read as u64 > MAX_LINE_BYTES {
                let reason = format!("it is longer than {} MiB", MAX_LINE_BYTES >> 20);
                return Err(InputError::Line { number: self.number, reason });
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let item =
                Item::parse(&line).map_err(|reason| InputError::Line { number: self.number, reason })?;
            return Ok(Some((self.number, item)));
        }
    }
}

/// Why the input cannot be processed.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Reading the file failed.
    #[error("the input cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    /// A line without a usable `custom_id`, or too long.
    #[error("line {number} of the input is not a request: {reason}")]
    Line {
        /// Number of the line, from 1.
        number: u64,
        /// Fault in the line.
        reason: String,
    },
    /// A line repeats an earlier `custom_id`.
    #[error("line {number} of the input repeats the custom_id `{custom_id}`; each line needs its own")]
    Repeated {
        /// Number of the second line, from 1.
        number: u64,
        /// `custom_id` of both lines.
        custom_id: String,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(line: Value) -> String {
        Item::parse(line.to_string().as_bytes()).unwrap().call.unwrap_err()
    }

    #[test]
    fn a_line_is_a_request() {
        let line =
            json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}});
        let item = Item::parse(format!("  {line}\r\n").as_bytes()).unwrap();
        assert_eq!(item.custom_id, "a");
        let call = item.call.clone().unwrap();
        assert_eq!((call.endpoint.path(), call.body), ("/v1/completions", json!({"prompt": "x"})));
        assert_eq!(item, Item::parse(line.to_string().as_bytes()).unwrap(), "white space changes nothing");
        assert_eq!(item.key().len(), "batch_req_".len() + 32);
    }

    #[test]
    fn a_request_that_cannot_be_sent_says_why() {
        let chat = "/v1/chat/completions";
        let expected = [
            (
                json!({"custom_id": "a", "url": "/v1/images", "body": {}}),
                "\"/v1/score\" or \"/v1/rerank\", not \"/v1/images\"",
            ),
            (json!({"custom_id": "a", "body": {}}), "url must be"),
            (json!({"custom_id": "a", "method": "GET", "url": chat, "body": {}}), "method must be"),
            (json!({"custom_id": "a", "url": chat, "body": []}), "body must be"),
            (json!({"custom_id": "a", "url": chat, "body": {"stream": true}}), "body.stream"),
        ];
        for (line, part) in expected {
            let fault = fault(line);
            assert!(fault.contains(part), "{fault}");
        }
    }

    #[test]
    fn a_line_without_a_name_is_an_error() {
        for (line, part) in [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            ("{}", "no custom_id"),
            (r#"{"custom_id": 7}"#, "must be a string, not 7"),
            (r#"{"custom_id": ""}"#, "0 bytes"),
        ] {
            let error = Item::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert!(Item::parse(&[0xff]).is_err());
    }

    #[tokio::test]
    async fn lines_are_numbered_and_blank_ones_skipped() {
        let text = "\n{\"custom_id\": \"a\"}\n\n{\"custom_id\": \"b\"}";
        let mut lines = Lines::new(text.as_bytes());
        let (number, item) = lines.next().await.unwrap().unwrap();
        assert_eq!((number, item.custom_id.as_str()), (2, "a"));
        let (number, item) = lines.next().await.unwrap().unwrap();
        assert_eq!((number, item.custom_id.as_str()), (4, "b"));
        assert!(lines.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_line_too_long_is_refused_before_it_is_read_whole() {
        let text = vec![b'x'; MAX_LINE_BYTES as usize + 2];
        let error = Lines::new(&text[..]).next().await.unwrap_err().to_string();
        assert!(error.contains("longer than 16 MiB"), "{error}");
    }
}
