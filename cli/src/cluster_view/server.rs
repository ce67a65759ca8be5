//! The server that is looked at.

use std::time::Duration;

use clap::{ArgMatches, FromArgMatches};
use skein_client::{Client, Limits, Response};

use crate::exit::Failure;
use crate::server_access::Certificates;

/// Longest wait for a connection, and for the next snapshot: one comes each second.
const WITHIN: Duration = Duration::from_secs(10);
/// Where `skein serve` listens by default.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// A server, and the key for it.
pub struct Server {
    http: Client,
    /// Its address, without a path.
    pub base_url: String,
    api_key: Option<String>,
}

impl Server {
    /// Reads the arguments that both commands have.
    pub fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let certificates = Certificates::from_arg_matches(matches).map_err(|error| error.exit())?;
        let url = matches.get_one::<String>("url").map_or(DEFAULT_URL, String::as_str);
        // The address of the page, as the server prints it, means the server.
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/ui").unwrap_or(url);
        let limits = Limits { connect: WITHIN, read: Some(WITHIN), whole: None };
        let (http, base_url) = certificates.client("--url", url, limits)?;
        Ok(Self { http, base_url, api_key: matches.get_one::<String>("api-key").cloned() })
    }

    /// Answer to a GET; an error says what to do.
    pub async fn get(&self, path: &str) -> Result<Response, String> {
        let request = self.http.get(&format!("{}{path}", self.base_url)).bearer(self.api_key.as_deref());
        self.checked(request.send().await.map_err(|error| error.to_string())?).await
    }

    /// Answer to a POST of `body`.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Result<Response, String> {
        let request =
            self.http.post(&format!("{}{path}", self.base_url), body).bearer(self.api_key.as_deref());
        self.checked(request.send().await.map_err(|error| error.to_string())?).await
    }

    async fn checked(&self, response: Response) -> Result<Response, String> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let answer = response.json().await.unwrap_or_default();
        Err(match answer["error"]["message"].as_str() {
            Some(message) if status.as_u16() == 401 => {
                format!("{message} Give one with --api-key or SKEIN_API_KEY.")
            }
            Some(message) => message.to_owned(),
            None if status.as_u16() == 404 => {
                "this server has no /v1/cluster: it is no Skein, an older one, or one with --worker-urls"
                    .into()
            }
            None => format!("the server answered {status}"),
        })
    }
}
