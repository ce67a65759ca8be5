//! `skein status` and `skein top`: a running cluster in the terminal, once or until `q`. Both read what the
//! page at `/ui` reads.

mod screen;
pub mod server;
mod snapshot;
mod status;
mod top;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};

use self::server::{DEFAULT_URL, Server};
use self::snapshot::Snapshot;
use crate::exit::Failure;
use crate::server_access::Certificates;

/// Names of the commands.
pub const STATUS: &str = "status";
pub const TOP: &str = "top";

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
    let snapshot = Snapshot::read(answer).map_err(|error| failed(error.to_string()))?;
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
