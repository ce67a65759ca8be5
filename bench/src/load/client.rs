//! Sends one request to an OpenAI-compatible server and follows its stream.

use std::time::Duration;

use serde_json::{Value, json};
use skein_client::{Client, Limits, Request, RequestError, Response};
use skein_node::clock::{self, Timestamp};

use super::metrics::Record;
use super::sse::StreamReader;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a server's metrics that are read.
const MAX_METRICS_BYTES: usize = 64 << 20;
/// Longest part of a refusal's body that is read, in bytes.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Longest part of a refusal's message that is shown, in characters.
const MAX_REFUSAL_CHARS: usize = 200;

/// The server under load.
#[derive(Debug, Clone)]
pub struct Server {
    http: Client,
    base_url: String,
    model: String,
    api_key: Option<String>,
    extra: Value,
}

/// Why a server is unusable for the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No connection, or a response that is not JSON.
    #[error("{url} does not answer: {reason}; is the server running there? Start one with `skein serve`")]
    Unreachable {
        /// The URL that was requested.
        url: String,
        /// The cause of the failure.
        reason: String,
    },
    /// A response without a model name.
    #[error("{url} answered {status} and names no model; give --model and check --api-key")]
    NoModel {
        /// The URL that was requested.
        url: String,
        /// Status code of the response.
        status: u16,
    },
    /// `/tokenize` returned no tokens.
    #[error("{url} answered {status} without tokens; prompts as text need a server that tokenizes")]
    NoTokens {
        /// The URL that was requested.
        url: String,
        /// Status code of the response.
        status: u16,
    },
}

impl Server {
    /// Limits of a benchmark's client: a request may take `whole`, and pauses within an answer are no error.
    pub fn limits(whole: Duration) -> Limits {
        Limits { connect: CONNECT_TIMEOUT, read: None, whole: Some(whole) }
    }

    /// Connects with `http` and determines the server's model, unless `model` names one.
    ///
    /// # Errors
    /// If the server is unreachable or reports no model.
    pub async fn connect(
        http: Client,
        base_url: &str,
        model: Option<String>,
        api_key: Option<String>,
        extra: Value,
    ) -> Result<Self, ServerError> {
        let base_url = base_url.trim_end_matches('/').to_owned();
        let url = format!("{base_url}/v1/models");
        let unreachable =
            |error: RequestError| ServerError::Unreachable { url: url.clone(), reason: error.to_string() };
        let mut server = Self { http, base_url, model: String::new(), api_key, extra };
        server.model = match model {
            Some(model) => model,
            None => {
                let (status, body) = server.models().await.map_err(unreachable)?;
                let id = body["data"][0]["id"].as_str().map(str::to_owned);
                id.ok_or(ServerError::NoModel { url: url.clone(), status })?
            }
        };
        Ok(server)
    }

    /// Whether `GET /health` returns 200.
    pub async fn is_healthy(http: &Client, base_url: &str) -> bool {
        let url = format!("{}/health", base_url.trim_end_matches('/'));
        http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Most tokens in a sequence, prompt and output together, if the server reports it.
    pub async fn max_model_len(&self) -> Option<u32> {
        let (_, body) = self.models().await.ok()?;
        let card = body["data"].as_array()?.iter().find(|card| card["id"] == self.model.as_str())?;
        card["max_model_len"].as_u64()?.try_into().ok()
    }

    /// Tokens of `text`, by the server's tokenizer.
    ///
    /// # Errors
    /// If the server is unreachable or does not tokenize.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<u32>, ServerError> {
        let url = format!("{}/tokenize", self.base_url);
        let body = json!({"model": self.model, "prompt": text});
        let unreachable =
            |error: RequestError| ServerError::Unreachable { url: url.clone(), reason: error.to_string() };
        let response = self.authorised(self.http.post(&url, &body)).send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let body = response.json().await.map_err(unreachable)?;
        let tokens = body["tokens"].as_array().ok_or(ServerError::NoTokens { url, status })?;
        Ok(tokens.iter().filter_map(Value::as_u64).filter_map(|token| u32::try_from(token).ok()).collect())
    }

    /// The server's metrics in Prometheus' text format, if it serves them.
    pub async fn metrics(&self) -> Option<String> {
        let response = self.http.get(&format!("{}/metrics", self.base_url)).send().await.ok()?;
        let body = if response.status().is_success() {
            response.bytes(MAX_METRICS_BYTES).await.ok()?
        } else {
            return None;
        };
        String::from_utf8(body).ok()
    }

    /// Status and body of the list of models.
    async fn models(&self) -> Result<(u16, Value), RequestError> {
        let response = self.authorised(self.http.get(&format!("{}/v1/models", self.base_url))).send().await?;
        Ok((response.status().as_u16(), response.json().await.unwrap_or_default()))
    }

    /// Sends `prompt` and reads the stream to its end. Also returns the output's token ids, if the server
    /// sends them.
    pub async fn complete(
        &self,
        prompt: &[u32],
        output_tokens: u32,
        intended: Duration,
        start: Timestamp,
    ) -> (Record, Vec<u32>) {
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
            "return_token_ids": true,
        });
        if let (Some(body), Some(extra)) = (body.as_object_mut(), self.extra.as_object()) {
            body.extend(extra.clone());
        }
        let elapsed = || clock::now().since(start);
        let request = self.authorised(self.http.post(&format!("{}/v1/completions", self.base_url), &body));
        let mut reader = StreamReader::default();
        let mut record =
            Record { intended, sent: elapsed(), prompt_tokens: prompt.len() as u64, ..Record::default() };
        match request.send().await {
            Ok(mut response) if response.status().is_success() => {
                while let Some(chunk) = response.chunk().await.transpose() {
                    match chunk {
                        Ok(bytes) => reader.take(&bytes, elapsed(), &mut record),
                        Err(error) => record.error = Some(kind_of(&error).into()),
                    }
                    if record.error.is_some() {
                        break;
                    }
                }
                record.end = elapsed();
                reader.finish(&mut record);
            }
            Ok(response) => {
                record.error = Some(format!("http {}", response.status().as_u16()));
                record.refusal = refusal(response).await;
            }
            Err(error) => record.error = Some(kind_of(&error).into()),
        }
        if record.error.is_some() {
            record.end = elapsed();
        }
        (record, reader.token_ids)
    }

    fn authorised<'a>(&self, request: Request<'a>) -> Request<'a> {
        request.bearer(self.api_key.as_deref())
    }
}

/// The message of an OpenAI error object, truncated.
async fn refusal(mut response: Response) -> Option<String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REFUSAL_BYTES {
            return None;
        }
    }
    let body: Value = serde_json::from_slice(&body).ok()?;
    let message = body["error"]["message"].as_str()?;
    Some(
        message
            .chars()
            .take(MAX_REFUSAL_CHARS)
            .map(|sign| if sign.is_control() { ' ' } else { sign })
            .collect(),
    )
}

fn kind_of(error: &RequestError) -> &'static str {
    match error {
        RequestError::Timeout(_) => "timeout",
        RequestError::Connect(_) => "connect",
        RequestError::Cut(_) | RequestError::NotJson(_) | RequestError::TooLong(_) => "stream cut",
        RequestError::Invalid(_) | RequestError::Broken(_) => "transport",
    }
}
