//! A client of the server that is checked, and its answers.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::DATE;
use serde_json::Value;

use crate::server_access::Certificates;

/// Longest wait for a name, for a connection, and for an answer.
pub const WITHIN: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const MAX_ANSWER: usize = 16 << 20;

/// The server, as the command line names it.
pub struct Server {
    /// `http://host:port`, or with `https`.
    pub url: String,
    /// Where its metrics have a port of their own.
    pub metrics_url: Option<String>,
    /// Certificates for `https`.
    pub certificates: Certificates,
    /// Key of a client.
    pub api_key: Option<String>,
    /// Name of a model that it should serve.
    pub model: Option<String>,
}

/// What a server answers.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Time of day there.
    pub date: Option<SystemTime>,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The sentence of an error, else the status.
    pub fn sentence(&self) -> String {
        let said: Value = serde_json::from_str(&self.body).unwrap_or_default();
        said["error"]["message"].as_str().map_or_else(|| self.status.to_string(), str::to_owned)
    }

    /// Whether it is Skein's answer to `/livez`.
    pub fn is_skeins(&self) -> bool {
        self.status.is_success() && self.body.contains("\"status\":\"ok\"")
    }

    /// Whether a port for HTTPS has answered plain HTTP; nginx says it in the second form.
    pub fn wants_https(&self) -> bool {
        let said = ["speaks HTTPS", "sent to HTTPS port"];
        self.status == StatusCode::BAD_REQUEST && said.iter().any(|said| self.body.contains(said))
    }
}

/// Asks the server.
pub struct Client<'a> {
    /// Sends requests.
    pub http: skein_client::Client,
    /// Scheme, host and port.
    pub base: String,
    /// Key of a client.
    pub api_key: Option<&'a str>,
}

impl Client<'_> {
    /// Asks for `path`.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn get(&self, path: &str, with_key: bool) -> Result<Answer, String> {
        let request = self.http.get(&format!("{}{path}", self.base));
        let request = request.bearer(self.api_key.filter(|_| with_key));
        let response = request.send().await.map_err(|error| error.to_string())?;
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let status = response.status();
        let body = response.bytes(MAX_ANSWER).await.map_err(|error| format!("{path}: {error}"))?;
        Ok(Answer { status, date, body: String::from_utf8_lossy(&body).into_owned() })
    }
}
