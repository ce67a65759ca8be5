//! Models by name: `skein pull`, `skein list`, `skein remove`, and the download for every other command that
//! is given a name instead of a directory.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use skein_hub::cache::CachedRevision;
use skein_hub::{Cached, Environment, Hub, HubError, ModelName, Need, Revision, Watch};
#[cfg(feature = "worker")]
use skein_model::config::ModelConfig;
use skein_node::telemetry::{self, LogFormat, LogOptions};

use crate::exit::{Failure, MODEL, OTHER, USAGE};
use crate::progress::DownloadProgress;

/// Name of the command that downloads a model.
pub const PULL: &str = "pull";
/// Name of the command that lists the downloaded models.
pub const LIST: &str = "list";
/// Name of the command that deletes a model.
pub const REMOVE: &str = "remove";

const VARIABLES: &str =
    "Models share the cache of Hugging Face's tools, so that each finds what the others downloaded.

  HF_HUB_CACHE, HF_HOME   where models are [default: ~/.cache/huggingface/hub]
  HF_TOKEN                token for gated and private models [default: the one that `hf auth login` stored]
  HF_ENDPOINT             a mirror of the hub
  HF_HUB_OFFLINE=1        use no network
  HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE   as in other programs";

/// Definitions for clap.
pub fn commands() -> [Command; 3] {
    let name = || Arg::new("NAME").required(true).help("Name of a model, for example Qwen/Qwen3-0.6B");
    let revision = Arg::new("revision").long("revision").value_name("REVISION");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    [
        Command::new(PULL)
            .about("Download a model from Hugging Face's hub, or its changes")
            .arg(name())
            .arg(revision.help("Branch, tag or commit [default: main]"))
            .after_help(VARIABLES),
        Command::new(LIST).about("List the models that are on this machine").arg(json).after_help(VARIABLES),
        Command::new(REMOVE)
            .about("Delete a model from this machine, all its revisions")
            .arg(name())
            .after_help(VARIABLES),
    ]
}

/// Runs the command called `command`.
///
/// # Errors
/// No such model, a hub that cannot be reached, or files that cannot be read or written.
pub async fn run(command: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let level = Some("warn".to_owned());
    telemetry::init(&LogOptions { format: LogFormat::Human, level, process: String::new(), otlp: None })
        .map_err(|error| Failure::new(USAGE, error.to_string()))?;
    match command {
        PULL => pull(&named(matches)?, matches.get_one::<String>("revision")).await,
        LIST => list(matches.get_flag("json")),
        _ => remove(&named(matches)?),
    }
}

/// The directory of `name`; downloads the files that are missing on this machine.
///
/// # Errors
/// As [`run`].
pub async fn find(name: &ModelName, revision: Option<&Revision>, need: Need) -> Result<PathBuf, Failure> {
    let hub = hub()?;
    let main = Revision::main();
    let progress = DownloadProgress::new();
    let watch = Watch { progress: &|at| progress.update(at), accepts: &accepts };
    let found = hub.find(name, revision.unwrap_or(&main), need, &watch).await;
    progress.finish();
    found.map_err(|error| failure(&error))
}

async fn pull(name: &ModelName, revision: Option<&String>) -> Result<(), Failure> {
    let revision = revision.map_or(Ok(Revision::main()), |given| Revision::parse(given));
    let revision = revision.map_err(|error| failure(&error))?;
    let progress = DownloadProgress::new();
    let watch = Watch { progress: &|at| progress.update(at), accepts: &accepts };
    let pulled = hub()?.pull(name, &revision, Need::All, &watch).await;
    progress.finish();
    outln!("{}", pulled.map_err(|error| failure(&error))?.display());
    Ok(())
}

fn list(as_json: bool) -> Result<(), Failure> {
    let hub = hub()?;
    let models = hub.cache().list().map_err(|error| failure(&error))?;
    if as_json {
        outln!("{:#}", Value::Array(models.iter().map(to_json).collect()));
    } else if models.is_empty() {
        outln!("no models in {}; download one: skein pull Qwen/Qwen3-0.6B", hub.cache().root().display());
    } else {
        let width = models.iter().map(|model| model.name.as_str().len()).max().unwrap_or_default().max(4);
        outln!("{:<width$}  {:>9}  REVISION", "NAME", "SIZE");
        for model in &models {
            let revisions: Vec<String> = model.revisions.iter().map(shown).collect();
            outln!("{:<width$}  {:>9}  {}", model.name.as_str(), size(model.bytes), revisions.join(", "));
        }
    }
    Ok(())
}

fn remove(name: &ModelName) -> Result<(), Failure> {
    let bytes = hub()?.cache().remove(name).map_err(|error| failure(&error))?;
    outln!("removed {name}, {}", size(bytes));
    Ok(())
}

fn hub() -> Result<Hub, Failure> {
    Environment::of_process().map(Hub::new).map_err(|error| failure(&error))
}

fn named(matches: &ArgMatches) -> Result<ModelName, Failure> {
    let given = matches.get_one::<String>("NAME").map_or("", String::as_str);
    ModelName::parse(given).map_err(|error| failure(&error))
}

/// Rejects models that a worker cannot serve, before gigabytes of weights are downloaded.
#[cfg(feature = "worker")]
fn accepts(directory: &Path) -> Result<(), String> {
    ModelConfig::from_dir(directory).map(drop).map_err(|error| error.to_string())
}

/// Accepts every model: in a build without workers, the remote workers check it.
#[cfg(not(feature = "worker"))]
fn accepts(_: &Path) -> Result<(), String> {
    Ok(())
}

fn failure(error: &HubError) -> Failure {
    let code = match error {
        HubError::BadName(_)
        | HubError::BadRevision(_)
        | HubError::BadVariable { .. }
        | HubError::NoCache => USAGE,
        HubError::Disk { .. } | HubError::Busy { .. } | HubError::Locked { .. } => OTHER,
        HubError::Unreachable { .. } | HubError::Nameless { .. } => OTHER,
        HubError::BrokeOff { .. } | HubError::Status { .. } => OTHER,
        _ => MODEL,
    };
    Failure::new(code, error.to_string())
}

fn to_json(model: &Cached) -> Value {
    let revisions = model.revisions.iter().map(|revision| {
        json!({
            "commit": revision.commit, "refs": revision.refs, "complete": revision.is_complete,
            "directory": revision.directory,
        })
    });
    json!({"name": model.name.as_str(), "bytes": model.bytes, "revisions": revisions.collect::<Vec<_>>()})
}

/// A revision as `skein list` shows it: its refs and the abbreviated commit.
fn shown(revision: &CachedRevision) -> String {
    let commit: String = revision.commit.chars().take(7).collect();
    let refs = if revision.refs.is_empty() { String::new() } else { format!("{} ", revision.refs.join(" ")) };
    format!("{refs}{commit}{}", if revision.is_complete { "" } else { " (incomplete)" })
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1e3, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_of_three_digits() {
        let check = |bytes, expected: &str| assert_eq!(size(bytes), expected);
        check(0, "0.0 KB");
        check(999_949, "999.9 KB");
        check(999_950, "1.0 MB");
        check(1_503_300_328, "1.5 GB");
        check(700_000_000_000_000, "700.0 TB");
    }
}
