//! Which models a server has: those of the command line, those in a directory, those of a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;
use skein_gguf::is_gguf;
use skein_hub::Revision;
use skein_node::config::{Kind, Origin, Settings, duration, suggest, text};
use skein_router::repository::residency::KeepAlive;
use toml::Value;

use crate::model::{self, ModelArgument};
use crate::settings::table::{FLAGS, Flag, SERVE};

/// Most models of one server.
pub const MOST_MODELS: usize = 1000;
/// Largest file of models, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Longest time that a model may be kept without requests.
const MOST_KEPT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Headings of the settings that each model may have for itself.
const OF_MODEL: [&str; 2] = ["Model", "Workers"];
/// Settings under these headings that concern all models, or that an entry names otherwise.
const OF_SERVER: [&str; 11] = [
    "model",
    "plan",
    "revision",
    "served-model-name",
    "models-file",
    "models-memory",
    "pinned-models",
    "model-keep-alive",
    "model-load-timeout",
    "allow-runtime-model-updating",
    "allow-runtime-lora-updating",
];
/// Settings of one model, which several have in the file.
const IN_FILE: [&str; 7] = [
    "revision",
    "served-model-name",
    "lora-modules",
    "tokenizer",
    "chat-template",
    "tool-call-parser",
    "reasoning-parser",
];

/// The models of a server.
#[derive(Debug)]
pub struct Listed {
    /// In order, at least one.
    pub models: Vec<ListedModel>,
}

/// One of them, as it was given.
#[derive(Debug, Clone)]
pub struct ListedModel {
    /// Where it is.
    pub argument: ModelArgument,
    /// Its names for clients; empty = the default.
    pub names: Vec<String>,
    /// How long it stays in memory without requests.
    pub keep_alive: KeepAlive,
    /// Whether it is loaded at the start and always stays.
    pub pinned: bool,
    /// Its own settings, above those of the command line.
    pub above: Vec<(String, Vec<String>)>,
    /// What its workers are called, before their number.
    pub slug: String,
}

impl Listed {
    /// Reads the list; `None` if it is one model, as it has always been. Problems are recorded in `settings`.
    pub fn read(settings: &mut Settings, matches: &ArgMatches) -> Option<Self> {
        let positional: Vec<String> =
            matches.get_many::<String>("MODEL").map(|all| all.cloned().collect()).unwrap_or_default();
        let given = match positional.is_empty() {
            true => crate::settings::model_argument(settings).into_iter().collect(),
            false => positional,
        };
        let keep_alive = settings.value("model-keep-alive", parse_keep_alive).unwrap_or_default();
        let pinned: BTreeSet<String> = settings.list("pinned-models", text).into_iter().collect();
        let file = settings.value("models-file", text).map(PathBuf::from);
        let directories: Vec<Vec<PathBuf>> = given.iter().map(|given| models_in(Path::new(given))).collect();
        let is_several =
            file.is_some() || given.len() > 1 || directories.iter().any(|inside| !inside.is_empty());
        if !is_several {
            refuse_for_one(settings);
            return None;
        }
        let plain = |given: String| ListedModel {
            argument: ModelArgument { given: Some(given), revision: None },
            names: Vec::new(),
            keep_alive,
            pinned: false,
            above: Vec::new(),
            slug: String::new(),
        };
        let mut models = Vec::new();
        for (given, inside) in given.into_iter().zip(directories) {
            if inside.is_empty() {
                models.push(plain(given));
                continue;
            }
            for path in inside {
                let name = name_within(Path::new(&given), &path);
                let argument = path.display().to_string();
                models.push(ListedModel { names: vec![name], ..plain(argument) });
            }
        }
        let mut is_read = true;
        if let Some(path) = file {
            let read = of_file(&path, keep_alive);
            is_read = read.is_ok();
            match read {
                Ok(of_file) => models.extend(of_file),
                Err(problems) => {
                    let named = problems.into_iter().map(|problem| format!("{}: {problem}", path.display()));
                    named.for_each(|problem| settings.problem(problem));
                }
            }
        }
        let mut listed = Self { models };
        listed.name_workers();
        listed.pin(settings, pinned);
        check_settings(settings);
        if is_read {
            listed.check(settings);
        }
        Some(listed)
    }

    /// Calls the workers of each model after its name, all differently.
    fn name_workers(&mut self) {
        let mut known = BTreeSet::new();
        for listed in &mut self.models {
            let slug = slug(&listed.shown_name());
            let numbered = (2..).map(|number| format!("{slug}-{number}"));
            let free = std::iter::once(slug.clone()).chain(numbered).find(|name| !known.contains(name));
            listed.slug = free.unwrap_or(slug);
            known.insert(listed.slug.clone());
        }
    }

    /// Pins the models with these names.
    fn pin(&mut self, settings: &mut Settings, pinned: BTreeSet<String>) {
        for name in pinned {
            let named = self
                .models
                .iter_mut()
                .find(|listed| listed.names.contains(&name) || listed.shown_name() == name);
            match named {
                Some(listed) => (listed.pinned, listed.keep_alive) = (true, KeepAlive::Always),
                None => settings.problem(format!("--pinned-models: no model is called `{name}`")),
            }
        }
    }

    fn check(&self, settings: &mut Settings) {
        let count = self.models.len();
        if count == 0 {
            settings.problem("--models-file: it lists no model; add a [[models]] with a model to it");
        }
        if count > MOST_MODELS {
            settings.problem(format!("{count} models are listed, and a server has at most {MOST_MODELS}"));
        }
        for listed in &self.models {
            listed.argument.check(settings);
            for (at, name) in listed.names.iter().enumerate() {
                let problem = match name {
                    name if name.chars().any(char::is_control) => "has control characters",
                    name if name.ends_with(":latest") => "ends in :latest, which Ollama's clients leave out",
                    name if listed.names[..at].contains(name) => "is listed twice for one model",
                    _ => continue,
                };
                settings.problem(format!("the name {name:?} {problem}"));
            }
        }
    }
}

/// Refuses settings that several models do not have.
fn check_settings(settings: &mut Settings) {
    for name in IN_FILE {
        if *settings.origin(name) != Origin::Default {
            let as_name = if name == "served-model-name" { ", as name" } else { "" };
            settings.problem(format!(
                "--{name} is of one model, and several are served: give it in --models-file{as_name}"
            ));
        }
    }
    for (name, instead) in [
        ("allow-runtime-model-updating", "a server of one model replaces its weights"),
        ("batch-dir", "a server of one model has files and batches"),
    ] {
        let is_set = !matches!(settings.shown(name).as_str(), "" | "false");
        if is_set {
            settings.problem(format!("--{name} is not for several models as yet: {instead}"));
        }
    }
}

/// Refuses settings of several models on the command line of a server of one.
fn refuse_for_one(settings: &mut Settings) {
    for name in ["models-memory", "pinned-models", "model-keep-alive", "model-load-timeout"] {
        if *settings.origin(name) == Origin::Flag {
            settings.problem(format!("--{name} is for several models, and one is served; leave it out"));
        }
    }
}

impl ListedModel {
    /// The name that it has, or will have unless it is found under another.
    fn shown_name(&self) -> String {
        let given = self.argument.given.as_deref().unwrap_or("model");
        self.names.first().cloned().unwrap_or_else(|| match Path::new(given) {
            path if path.exists() => model::default_name(path),
            // A name of the hub, which it keeps.
            _ => given.to_owned(),
        })
    }
}

/// `always`, or a time.
fn parse_keep_alive(given: &str) -> Result<KeepAlive, String> {
    if given.trim().eq_ignore_ascii_case("always") {
        return Ok(KeepAlive::Always);
    }
    let parse = duration(Duration::ZERO..=MOST_KEPT);
    parse(given).map(KeepAlive::For).map_err(|error| format!("{error}; or always"))
}

/// A name as a part of a worker's: letters, digits and hyphens of its last part.
fn slug(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    let plain: String =
        last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "model".to_owned() } else { plain.to_owned() }
}

/// The models in a directory that is none itself, by name: directories with a config.json, GGUF files, and of
/// directories with numbered versions (Triton's layout) the highest.
fn models_in(directory: &Path) -> Vec<PathBuf> {
    if !directory.is_dir() || directory.join("config.json").exists() {
        return Vec::new();
    }
    let mut found: Vec<PathBuf> = entries(directory).into_iter().filter_map(|path| model_at(&path)).collect();
    found.sort();
    found
}

fn model_at(path: &Path) -> Option<PathBuf> {
    let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    if is_hidden {
        return None;
    }
    if is_gguf(path) || path.join("config.json").is_file() {
        return Some(path.to_owned());
    }
    let version = |path: &Path| path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
    let numbered = entries(path).into_iter().filter_map(|path| Some((version(&path)?, path)));
    let versions = numbered.filter_map(|(number, path)| Some((number, model_of_version(&path)?)));
    versions.max().map(|(_, path)| path)
}

/// The model in the directory of a version: the directory itself, or the GGUF file in it.
fn model_of_version(path: &Path) -> Option<PathBuf> {
    if path.join("config.json").is_file() {
        return Some(path.to_owned());
    }
    entries(path).into_iter().filter(|path| is_gguf(path)).min()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(directory).into_iter().flatten();
    read.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

/// Name of the model at `path` in the directory of models `directory`: that of the entry there.
fn name_within(directory: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(directory).unwrap_or(path);
    let first = inside.components().next().map(|part| PathBuf::from(part.as_os_str()));
    let first = first.unwrap_or_else(|| path.to_owned());
    let is_file = directory.join(&first) == path && is_gguf(path);
    let name = if is_file { first.file_stem() } else { first.file_name() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The models of a file.
fn of_file(path: &Path, keep_alive: KeepAlive) -> Result<Vec<ListedModel>, Vec<String>> {
    let size = std::fs::metadata(path).map_err(|error| vec![error.to_string()])?.len();
    if size > MAX_FILE_BYTES {
        return Err(vec![format!("it has {size} bytes; at most {MAX_FILE_BYTES} are read")]);
    }
    let text = std::fs::read_to_string(path).map_err(|error| vec![error.to_string()])?;
    parse_file(&text, keep_alive)
}

fn parse_file(text: &str, keep_alive: KeepAlive) -> Result<Vec<ListedModel>, Vec<String>> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| vec![error.to_string()])?;
    let mut problems: Vec<String> = table
        .keys()
        .filter(|key| *key != "models")
        .map(|key| format!("`{key}` is unknown; each model is a [[models]]"))
        .collect();
    let Some(Value::Array(entries)) = table.get("models") else {
        problems.push("it has no [[models]]".to_owned());
        return Err(problems);
    };
    let mut models = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let place = |problem: String| format!("model {}: {problem}", number + 1);
        match entry
            .as_table()
            .ok_or_else(|| vec!["it is no table".to_owned()])
            .and_then(|entry| of_entry(entry, keep_alive))
        {
            Ok(listed) => models.push(listed),
            Err(found) => problems.extend(found.into_iter().map(place)),
        }
    }
    if problems.is_empty() { Ok(models) } else { Err(problems) }
}

fn of_entry(entry: &toml::Table, keep_alive: KeepAlive) -> Result<ListedModel, Vec<String>> {
    let mut problems = Vec::new();
    let mut listed = ListedModel {
        argument: ModelArgument::default(),
        names: Vec::new(),
        keep_alive,
        pinned: false,
        above: Vec::new(),
        slug: String::new(),
    };
    for (key, value) in entry {
        let taken = match key.as_str() {
            "model" => as_text(value).map(|model| listed.argument.given = Some(model)),
            "revision" => as_text(value).and_then(|revision| {
                let parsed = Revision::parse(&revision).map_err(|error| error.to_string())?;
                listed.argument.revision = Some(parsed);
                Ok(())
            }),
            "name" => as_text(value).map(|name| listed.names.insert(0, name)),
            "names" => as_texts(value).map(|names| listed.names.extend(names)),
            "pinned" => match value.as_bool() {
                Some(pinned) => {
                    listed.pinned = pinned;
                    Ok(())
                }
                None => Err("it must be true or false".to_owned()),
            },
            "keep-alive" => as_text(value).and_then(|given| {
                listed.keep_alive = parse_keep_alive(&given)?;
                Ok(())
            }),
            key => as_setting(key, value).map(|setting| listed.above.push(setting)),
        };
        if let Err(problem) = taken {
            problems.push(format!("{key}: {problem}"));
        }
    }
    if listed.argument.given.is_none() {
        problems
            .push("model is missing: a directory, a GGUF file, or a name as organisation/model".to_owned());
    }
    if listed.pinned {
        listed.keep_alive = KeepAlive::Always;
    }
    if problems.is_empty() { Ok(listed) } else { Err(problems) }
}

fn as_text(value: &Value) -> Result<String, String> {
    let text = value.as_str().map(str::to_owned).filter(|text| !text.is_empty());
    text.ok_or_else(|| "it must be a text".to_owned())
}

fn as_texts(value: &Value) -> Result<Vec<String>, String> {
    let texts = value.as_array().map(|values| values.iter().map(as_text).collect::<Result<Vec<_>, _>>());
    texts.and_then(Result::ok).ok_or_else(|| "it must be a list of texts".to_owned())
}

/// A setting of one model.
fn as_setting(key: &str, value: &Value) -> Result<(String, Vec<String>), String> {
    let is_own = |flag: &&Flag| {
        flag.commands & SERVE != 0 && OF_MODEL.contains(&flag.group) && !OF_SERVER.contains(&flag.key.name)
    };
    let Some(flag) = FLAGS.iter().filter(is_own).find(|flag| flag.key.name == key) else {
        let known = FLAGS.iter().filter(is_own).map(|flag| flag.key.name);
        let known = known.chain(["model", "revision", "name", "names", "pinned", "keep-alive"]);
        let meant = suggest(key, known).map(|name| format!("; is {name} meant?")).unwrap_or_default();
        return Err(format!("no setting of a model is called so{meant}"));
    };
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    };
    let values = match (flag.key.kind, value) {
        (Kind::Many, Value::Array(values)) => values.iter().map(plain).collect::<Option<Vec<_>>>(),
        _ => plain(value).map(|value| vec![value]),
    };
    values
        .map(|values| (key.to_owned(), values))
        .ok_or_else(|| "it must be a text, a number or true or false".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_models_has_directories_files_and_the_highest_versions() {
        let all = tempfile::tempdir().expect("a directory");
        let at = |path: &str| all.path().join(path);
        let all_of =
            ["plain", "numbered/1", "numbered/2", "numbered/10", "empty", "other/latest", "file/3", ".git"];
        for path in all_of {
            std::fs::create_dir_all(at(path)).expect("a directory");
        }
        for path in ["plain", "numbered/1", "numbered/2", "numbered/10", "other/latest", ".git"] {
            std::fs::write(at(path).join("config.json"), "{}").expect("a file");
        }
        for path in ["small.gguf", "file/3/model.gguf"] {
            std::fs::write(at(path), b"GGUF\x03\0\0\0").expect("a file");
        }
        std::fs::write(at("notes.txt"), "x").expect("a file");
        let found = models_in(all.path());
        assert_eq!(found, [at("file/3/model.gguf"), at("numbered/10"), at("plain"), at("small.gguf")]);
        let names: Vec<String> = found.iter().map(|path| name_within(all.path(), path)).collect();
        assert_eq!(names, ["file", "numbered", "plain", "small"]);
        assert_eq!(models_in(&at("plain")), Vec::<PathBuf>::new(), "it is a model itself");
        assert_eq!(models_in(&at("nothing")), Vec::<PathBuf>::new());
    }

    #[test]
    fn an_entry_has_names_a_time_and_settings_of_its_own() {
        let text = "[[models]]\nmodel = \"a\"\nname = \"x\"\nnames = [\"y\", \"z\"]\npinned = true\nmax-num-seqs = 4\n\
                    enable-lora = true\nlora-modules = [\"m=/m\"]\n[[models]]\nmodel = \"b\"\nkeep-alive = \"5m\"\n";
        let listed = parse_file(text, KeepAlive::UntilNeeded).expect("a list");
        let setting = |name: &str, value: &str| (name.to_owned(), vec![value.to_owned()]);
        assert_eq!(listed[0].names, ["x", "y", "z"]);
        assert_eq!((listed[0].pinned, listed[0].keep_alive), (true, KeepAlive::Always));
        let above =
            [setting("enable-lora", "true"), setting("lora-modules", "m=/m"), setting("max-num-seqs", "4")];
        let mut got = listed[0].above.clone();
        got.sort();
        assert_eq!(got, above);
        assert_eq!(listed[1].keep_alive, KeepAlive::For(Duration::from_secs(300)));
        for (text, said) in [
            ("", "it has no [[models]]"),
            ("models = 3", "it has no [[models]]"),
            ("[[models]]\n", "model 1: model is missing"),
            ("[[models]]\nmodel = 3\n", "model 1: model: it must be a text"),
            ("[[models]]\nmodel = \"a\"\nnames = \"b\"\n", "names: it must be a list of texts"),
            ("[[models]]\nmodel = \"a\"\nport = 3\n", "port: no setting of a model is called so"),
            ("[[models]]\nmodel = \"a\"\nkeep-alive = \"soon\"\n", "keep-alive"),
            ("[[models]]\nmodel = \"a\"\nmax-num-seqs = [3]\n", "max-num-seqs: it must be a text, a number"),
            ("[[models]\n", "TOML"),
        ] {
            let problems = parse_file(text, KeepAlive::UntilNeeded).expect_err(text).join("\n");
            assert!(problems.contains(said), "{text}: {problems}");
        }
    }

    #[test]
    fn workers_are_called_after_their_models_all_differently() {
        let listed = |given: &str| ListedModel {
            argument: ModelArgument { given: Some(given.to_owned()), revision: None },
            names: Vec::new(),
            keep_alive: KeepAlive::UntilNeeded,
            pinned: false,
            above: Vec::new(),
            slug: String::new(),
        };
        let given = ["Qwen/Qwen3-0.6B", "other/Qwen3-0.6B", "a b/ü", "plain"];
        let mut all = Listed { models: given.map(listed).to_vec() };
        all.name_workers();
        let slugs: Vec<&str> = all.models.iter().map(|listed| &*listed.slug).collect();
        assert_eq!(slugs, ["Qwen3-0-6B", "Qwen3-0-6B-2", "model", "plain"]);
    }
}
