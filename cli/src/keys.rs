//! `skein keys`: makes keys for the keys file, and lists those of one.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use skein_node::clock;
use skein_router::tenants::{DateTime, Key, KeySet, KeysError, KeysFile, MAX_FILE_BYTES, Secret, hash_text};
use skein_sys::regular_file;
use skein_text::strftime::strftime;

use crate::exit::{Failure, OTHER, USAGE};

/// Name of the command.
pub const KEYS: &str = "keys";

/// Longest part of a tenant's name in a drawn id, in characters.
const TENANT_IN_ID: usize = 40;

const ABOUT_NEW: &str = "Make a key: print it once, and its entry for the keys file

The key is stored nowhere: the file has its SHA-256. With --file the entry is appended to the file, which is made if \
need be; a running server reads it within seconds.";

/// Definition for clap.
pub fn command() -> Command {
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let file = Arg::new("FILE").required(true).value_parser(value_parser!(PathBuf)).help("The keys file");
    let list =
        Command::new("list").about("List the keys of a file, without their hashes").arg(file).arg(json);
    Command::new(KEYS)
        .about("API keys of tenants, for --api-keys-file")
        .subcommand_required(true)
        .subcommand(new_command())
        .subcommand(list)
}

fn new_command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let count = |name, help| text(name, "N", help).value_parser(value_parser!(u64).range(1..));
    let priority = |name, help| {
        let range = value_parser!(i32).range(-100..=100);
        text(name, "N", help).value_parser(range).allow_negative_numbers(true)
    };
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    Command::new("new").about("Make a key and its entry").long_about(ABOUT_NEW).args([
        text(
            "tenant",
            "NAME",
            "Tenant of the key: keys of one tenant share files, batches, streams and caches",
        )
        .required(true),
        text(
            "id",
            "ID",
            "Name of the key in logs and lists [default: the tenant, the time and random digits]",
        ),
        text("file", "FILE", "Append the entry to this file").value_parser(value_parser!(PathBuf)),
        count("requests-per-minute", "Most requests a minute [default: no limit]"),
        count(
            "tokens-per-minute",
            "Most uncached prompt tokens and output tokens a minute [default: no limit]",
        ),
        count("max-concurrent", "Most requests at once [default: no limit]"),
        text("models", "NAME", "Model or adapter that it may use; may be given several times [default: all]")
            .value_parser(NonEmptyStringValueParser::new())
            .action(ArgAction::Append),
        priority("priority", "Priority of its requests; lower values run first [default: 0]"),
        priority("highest-priority", "Most urgent priority that a request may ask for [default: --priority]"),
        text("expires", "TIME", "When it expires, for example 2027-01-31T12:00:00Z [default: never]"),
        switch("admin", "Let it load adapters and replace the model"),
        switch("gateway", "Make it a gateway's, which speaks for all tenants"),
    ])
}

/// Runs the command.
///
/// # Errors
/// Invalid values, or a file that cannot be used.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("new", matches)) => new(matches),
        Some((_, matches)) => list(matches),
        None => Ok(()),
    }
}

fn new(matches: &ArgMatches) -> Result<(), Failure> {
    let secret = Secret::draw().map_err(Failure::other)?;
    check_expires(matches)?;
    let entry = entry(matches, secret.expose())?;
    let refused = |error: KeysError| Failure::new(USAGE, error.to_string());
    let key = secret.expose();
    match matches.get_one::<PathBuf>("file") {
        None => {
            KeySet::parse(Path::new("entry"), &entry, &KeySet::default()).map_err(refused)?;
            outln!("{key}");
            errln!("\nThis key is not shown again. Its entry for the keys file:\n\n{entry}");
        }
        Some(path) => {
            // The key is shown before its entry counts: one that nobody saw would be of no use.
            let draft = Draft::write(path, &entry).map_err(refused)?;
            if let Err(error) = crate::out::try_write(format_args!("{key}\n")) {
                drop(draft);
                crate::out::end(&error);
            }
            draft.commit().map_err(|error| {
                Failure::new(OTHER, format!("{error}; the key above is in no file: do not use it"))
            })?;
            errln!("\nThis key is not shown again. Its entry was appended to {}.", path.display());
        }
    }
    Ok(())
}

/// Refuses a key that would be expired at once.
fn check_expires(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(text) = matches.get_one::<String>("expires") else { return Ok(()) };
    let refused = |why: String| Failure::new(USAGE, format!("--expires {why}"));
    let DateTime(at) = text.parse().map_err(refused)?;
    let now = clock::unix_time().as_secs();
    if at > now {
        return Ok(());
    }
    Err(refused(format!(
        "{} is in the past (it is {}); give a later time, or leave it out",
        date(at),
        date(now)
    )))
}

/// An id for a key without `--id`. The random digits tell apart keys that are made in one second.
fn drawn_id(tenant: &str) -> Result<String, Failure> {
    let tenant: String = tenant.chars().take(TENANT_IN_ID).collect();
    let random = Secret::draw().map_err(Failure::other)?;
    let digits = random.expose().len() - 6;
    let time = strftime("%Y%m%d-%H%M%S", clock::unix_time());
    Ok(format!("{tenant}-{time}-{}", &random.expose()[digits..]))
}

/// The entry of a new key, as the file has it.
fn entry(matches: &ArgMatches, key: &str) -> Result<String, Failure> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let quoted = |text: &str| toml_string(text);
    let tenant = text("tenant").unwrap_or_default();
    let id = match text("id") {
        Some(id) => id.to_owned(),
        None => drawn_id(tenant)?,
    };
    let mut entry = format!("[[keys]]\nid = {}\ntenant = {}\n", quoted(&id), quoted(tenant));
    let _ = writeln!(entry, "hash = \"{}\"", hash_text(key));
    for name in ["requests-per-minute", "tokens-per-minute", "max-concurrent"] {
        if let Some(limit) = matches.get_one::<u64>(name) {
            let _ = writeln!(entry, "{name} = {limit}");
        }
    }
    for name in ["priority", "highest-priority"] {
        if let Some(priority) = matches.get_one::<i32>(name) {
            let _ = writeln!(entry, "{name} = {priority}");
        }
    }
    if let Some(models) = matches.get_many::<String>("models") {
        let models: Vec<String> = models.map(|name| quoted(name)).collect();
        let _ = writeln!(entry, "models = [{}]", models.join(", "));
    }
    if let Some(expires) = text("expires") {
        let _ = writeln!(entry, "expires = {}", quoted(expires));
    }
    for name in ["admin", "gateway"] {
        if matches.get_flag(name) {
            let _ = writeln!(entry, "{name} = true");
        }
    }
    Ok(entry)
}

/// A basic string of TOML, which has JSON's escapes.
fn toml_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// The keys file with a further entry, beside the old one. Dropped, it leaves the old one as it is.
struct Draft {
    at: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Writes the draft. Only this user may read a new file.
    fn write(path: &Path, entry: &str) -> Result<Self, KeysError> {
        let failed = |error: std::io::Error| KeysError::Io { path: path.to_owned(), error };
        // A link, as of a mounted secret, stays one.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = regular_file::read_if_there(path, MAX_FILE_BYTES).map_err(failed)?;
        let mut text = String::from_utf8_lossy(&before.unwrap_or_default()).into_owned();
        KeySet::parse(path, &text, &KeySet::default())?;
        if !text.is_empty() {
            text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
        }
        text.push_str(entry);
        KeySet::parse(path, &text, &KeySet::default())?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&name).map_err(failed)?;
        let draft = Self { at: name.into(), path: path.clone() };
        let mut fill = || -> std::io::Result<()> {
            if let Ok(metadata) = std::fs::metadata(path) {
                file.set_permissions(metadata.permissions())?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        fill().map_err(failed)?;
        Ok(draft)
    }

    /// Puts the draft in the file's place.
    fn commit(self) -> Result<(), KeysError> {
        let renamed = std::fs::rename(&self.at, &self.path);
        renamed.map_err(|error| KeysError::Io { path: self.path.clone(), error })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It is gone if it was committed.
        let _ = std::fs::remove_file(&self.at);
    }
}

fn list(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(path) = matches.get_one::<PathBuf>("FILE") else { return Ok(()) };
    let file = KeysFile::open(path).map_err(|error| Failure::new(OTHER, error.to_string()))?;
    let (keys, now) = (file.keys(), clock::unix_time().as_secs());
    if matches.get_flag("json") {
        let list: Vec<Value> = keys.keys().iter().map(|key| to_json(key, now)).collect();
        outln!("{:#}", Value::Array(list));
        return Ok(());
    }
    let mut rows = vec![
        ["ID", "TENANT", "STATE", "REQUESTS/MIN", "TOKENS/MIN", "PRIORITY", "MODELS"].map(str::to_owned),
    ];
    rows.extend(keys.keys().iter().map(|key| row(key, now)));
    let widths: [usize; 7] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        outln!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    Ok(())
}

fn state(key: &Key, now: u64) -> String {
    let kinds = [(key.is_admin, "admin"), (key.is_gateway, "gateway")];
    let kinds: Vec<&str> = kinds.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    let kind = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    match key.expires {
        Some(DateTime(at)) if at <= now => format!("expired{kind}"),
        Some(DateTime(at)) => format!("until {}{kind}", date(at)),
        None => format!("valid{kind}"),
    }
}

fn date(since_1970: u64) -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", Duration::from_secs(since_1970))
}

fn row(key: &Key, now: u64) -> [String; 7] {
    let limit = |own: Option<u64>, shared: Option<u64>| match (own, shared) {
        (Some(own), _) => own.to_string(),
        (None, Some(shared)) => format!("{shared} shared"),
        (None, None) => "-".to_owned(),
    };
    let (priority, highest) = (key.rights.priority, key.rights.highest_priority);
    [
        key.id.to_string(),
        key.tenant.to_string(),
        state(key, now),
        limit(key.limits.requests, key.shared.requests),
        limit(key.limits.tokens, key.shared.tokens),
        if priority == highest { priority.to_string() } else { format!("{priority} (from {highest})") },
        key.rights.models.as_ref().map_or_else(|| "all".to_owned(), |models| models.join(", ")),
    ]
}

fn to_json(key: &Key, now: u64) -> Value {
    let limits = |limits: &skein_router::tenants::Limits| {
        json!({"requests_per_minute": limits.requests, "tokens_per_minute": limits.tokens,
               "max_concurrent": limits.concurrent})
    };
    json!({
        "id": &*key.id, "tenant": &*key.tenant, "expires": key.expires.map(|DateTime(at)| date(at)),
        "expired": key.expires.is_some_and(|DateTime(at)| at <= now), "admin": key.is_admin, "gateway": key.is_gateway,
        "priority": key.rights.priority, "highest_priority": key.rights.highest_priority, "models": key.rights.models,
        "limits": limits(&key.limits), "tenant_limits": limits(&key.shared),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_new(words: &[&str]) -> Result<(), Failure> {
        let matches = command().try_get_matches_from([&["keys", "new"], words].concat()).expect("it parses");
        run(&matches)
    }

    #[test]
    fn an_entry_is_what_the_file_reads() {
        let words = [
            "new",
            "--tenant",
            "acme",
            "--id",
            "ci",
            "--requests-per-minute",
            "60",
            "--models",
            "a",
            "--models",
            "b\"c",
            "--priority",
            "10",
            "--highest-priority",
            "-5",
            "--expires",
            "2127-01-31T12:00:00+01:00",
            "--admin",
        ];
        let matches = new_command().try_get_matches_from(words).expect("it parses");
        let text = entry(&matches, "a key").expect("an entry");
        let set = KeySet::parse(Path::new("f"), &text, &KeySet::default()).expect("it is valid");
        let key = &set.keys()[0];
        assert_eq!((&*key.id, &*key.tenant, key.is_admin, key.is_gateway), ("ci", "acme", true, false));
        assert_eq!(key.rights.models.as_deref(), Some(&["a".to_owned(), "b\"c".to_owned()][..]));
        assert_eq!((key.rights.priority, key.rights.highest_priority), (10, -5));
        assert_eq!((key.limits.requests, key.limits.tokens), (Some(60), None));
        assert_eq!(state(key, 0), "until 2127-01-31T11:00:00Z (admin)");
        assert!(!text.contains("a key") && !to_json(key, 0).to_string().contains("sha256"));
    }

    #[test]
    fn entries_are_appended_whole_and_leave_the_rest() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.toml");
        let file = path.to_str().expect("a path").to_owned();
        run_new(&["--tenant", "acme", "--id", "one", "--file", &file]).expect("a new file");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::write(&path, format!("# mine\n{}", text.trim_end())).expect("it is written");
        run_new(&["--tenant", "acme", "--id", "two", "--file", &file]).expect("a further entry");
        let before = std::fs::read_to_string(&path).expect("a file");
        assert!(
            before.starts_with("# mine\n[[keys]]\nid = \"one\"")
                && before.contains("\n\n[[keys]]\nid = \"two\"")
        );
        let refused =
            run_new(&["--tenant", "acme", "--id", "two", "--file", &file]).expect_err("a second one");
        assert!(refused.code == USAGE && refused.message.contains("id is that of another key"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), before);
        let entries = std::fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(entries, 1, "no draft is left");
        assert!(run_new(&["--tenant", "a b"]).expect_err("no name").message.contains("tenant must be"));
    }

    #[test]
    fn keys_of_one_second_have_different_ids_that_fit() {
        let tenant = "t".repeat(64);
        let [one, other] = [drawn_id(&tenant), drawn_id(&tenant)].map(|id| id.expect("an id"));
        assert_ne!(one, other);
        assert!(one.len() <= 64, "{one}");
        let text = format!("[[keys]]\nid = \"{one}\"\ntenant = \"t\"\nhash = \"{}\"\n", hash_text("k"));
        KeySet::parse(Path::new("f"), &text, &KeySet::default()).expect("the file takes it");
    }

    #[test]
    fn a_key_of_no_use_is_refused() {
        let refused = |words: &[&str]| run_new(words).expect_err("of no use").message;
        let told = refused(&["--tenant", "acme", "--expires", "2020-01-01T00:00:00Z"]);
        assert!(told.starts_with("--expires 2020-01-01T00:00:00Z is in the past (it is 2"), "{told}");
        assert!(refused(&["--tenant", "acme", "--expires", "soon"]).starts_with("--expires must be a date"));
        let empty = command().try_get_matches_from(["keys", "new", "--tenant", "acme", "--models", ""]);
        assert!(empty.expect_err("no name").to_string().contains("--models"));
    }
}
