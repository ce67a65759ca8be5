//! `skein status` and `skein top`: a running cluster in the terminal, once or until `q`. Both read what the page
//! at `/ui` reads.

mod screen;
mod snapshot;
mod status;
mod top;

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use skein_client::{Client, Limits, Response};

use crate::exit::Failure;
use crate::server_access::Certificates;

/// Names of the commands.
pub const STATUS: &str = "status";
pub const TOP: &str = "top";

/// Longest wait for a connection, and for the next snapshot: one comes each second.
const WITHIN: Duration = Duration::from_secs(10);
const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// A server, and the key for it.
struct Server {
    http: Client,
    base_url: String,
    api_key: Option<String>,
}

/// The commands' definitions for clap.
pub fn commands() -> [Command; 2] {
    let json =
        Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print what the server says, as JSON");
    [
        with_server(STATUS, "Show a running cluster: workers, caches, moves, latest requests").arg(json),
        with_server(TOP, "Watch a running cluster in the terminal").after_help(
            "Keys: q quits, the arrows choose a worker, d drains it or lets it take requests again (admin key), p pauses.",
        ),
    ]
}

fn with_server(name: &'static str, about: &'static str) -> Command {
    let url = Arg::new("url").long("url").value_name("URL").default_value(DEFAULT_URL);
    let url = url.help("Router, gateway or skein serve");
    let key =
        Arg::new("api-key").long("api-key").value_name("KEY").env("SKEIN_API_KEY").hide_env_values(true);
    let key = key.help("API key; an admin's sees the requests of all tenants");
    Certificates::augment_args(Command::new(name).args([url, key])).about(about).long_about(None)
}

impl Server {
    fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let certificates = Certificates::from_arg_matches(matches).map_err(|error| error.exit())?;
        let url = matches.get_one::<String>("url").map_or(DEFAULT_URL, String::as_str);
        let limits = Limits { connect: WITHIN, read: Some(WITHIN), whole: None };
        let (http, base_url) = certificates.client("--url", url, limits)?;
        Ok(Self { http, base_url, api_key: matches.get_one::<String>("api-key").cloned() })
    }

    async fn get(&self, path: &str) -> Result<Response, String> {
        let request = self.http.get(&format!("{}{path}", self.base_url)).bearer(self.api_key.as_deref());
        self.checked(request.send().await.map_err(|error| error.to_string())?).await
    }

    async fn post(&self, path: &str, body: &serde_json::Value) -> Result<Response, String> {
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
                "this server has no /v1/cluster: it is no Skein, or an older one".into()
            }
            None => format!("the server answered {status}"),
        })
    }
}

/// Runs `skein status`.
///
/// # Errors
/// If the server cannot be asked.
pub async fn status(matches: &ArgMatches) -> Result<(), Failure> {
    let server = Server::read(matches)?;
    let failed = |why: String| Failure::other(format!("{}: {why}", server.base_url));
    let answer = server.get("/v1/cluster").await.map_err(failed)?;
    let answer = answer.json().await.map_err(|error| failed(error.to_string()))?;
    if matches.get_flag("json") {
        outln!("{answer:#}");
        return Ok(());
    }
    let snapshot = serde_json::from_value(answer).map_err(|error| failed(error.to_string()))?;
    out!("{}", status::text(&snapshot));
    Ok(())
}

/// Runs `skein top`.
///
/// # Errors
/// If there is no terminal, or the server cannot be asked at first.
pub async fn top(matches: &ArgMatches) -> Result<(), Failure> {
    top::run(Server::read(matches)?).await
}
