//! Settings in layers: flag, then environment, then file, then default; the first that speaks wins, and each value
//! remembers where it came from.
//!
//! Values stay text until a process reads them into its typed struct. Nothing fails at the first mistake: every
//! problem is collected, with its fix, and [`Settings::finish`] hands all of them out together.

mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use parse::{bytes, count, duration, number, one_of, text};

/// Prefix of the environment variables that are settings: `--max-num-seqs` is `SKEIN_MAX_NUM_SEQS`.
pub const ENV_PREFIX: &str = "SKEIN_";

/// One setting: a flag, an environment variable and a key of the file, all by the same name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// As the flag is spelt, without the dashes in front: `max-num-seqs`.
    pub name: &'static str,
    /// How many values it takes.
    pub kind: Kind,
    /// The value when nobody gives one, as a user would write it; `None` = unset.
    pub default: Option<&'static str>,
    /// Shown as stars wherever settings are listed.
    pub secret: bool,
}

/// How many values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; as flags `--name` and `--no-name`.
    Switch,
    /// One value.
    One,
    /// A list: the flag repeated, an array in the file, commas in the environment.
    Many,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable, by its name.
    Environment(String),
    /// The configuration file.
    File(PathBuf),
    /// Nobody gave one.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment ({name})"),
            Self::File(path) => write!(f, "file ({})", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What the user gave, before it is looked at.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Flags by name with their values; a switch has `true` or `false`.
    pub flags: Vec<(String, Vec<String>)>,
    /// Environment variables; those without [`ENV_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Path and text of the configuration file.
    pub file: Option<(PathBuf, String)>,
}

/// What may be set, and for whom this process reads it.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a> {
    /// Keys this command reads.
    pub keys: &'a [Key],
    /// Names of keys that other commands read: a shared file or environment may hold them.
    pub other_keys: &'a [&'a str],
    /// The file's section for this command; its keys win over the file's top level.
    pub section: &'a str,
    /// All section names.
    pub sections: &'a [&'a str],
    /// Environment variables with our prefix that are no settings.
    pub foreign_variables: &'a [&'a str],
}

/// Everything that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.render())]
pub struct Problems(pub Vec<String>);

impl Problems {
    fn render(&self) -> String {
        let head = match self.0.len() {
            1 => "1 problem with the settings:".to_owned(),
            count => format!("{count} problems with the settings:"),
        };
        std::iter::once(head)
            .chain(self.0.iter().map(|problem| format!("  {problem}")))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Layered values, read by name.
#[derive(Debug)]
pub struct Settings {
    entries: BTreeMap<&'static str, Entry>,
    problems: Vec<String>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    values: Vec<String>,
    origin: Origin,
}

impl Settings {
    /// Puts the layers on top of each other. Problems are kept for [`Settings::finish`].
    pub fn layer(schema: &Schema<'_>, sources: &Sources) -> Self {
        let entries = schema.keys.iter().map(|key| {
            let values = key.default.map(str::to_owned).into_iter().collect();
            (key.name, Entry { key: *key, values, origin: Origin::Default })
        });
        let mut settings = Self { entries: entries.collect(), problems: Vec::new(), notes: Vec::new() };
        settings.take_file(schema, sources);
        settings.take_environment(schema, sources);
        for (name, values) in &sources.flags {
            settings.set(name, values.clone(), Origin::Flag);
        }
        settings
    }

    /// Reads a setting that takes one value; `None` when unset, or when it is a problem (then noted).
    pub fn value<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.list(name, parse).pop()
    }

    /// Reads a setting that takes many values.
    pub fn list<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let entry = self.entries.get(name).unwrap_or_else(|| panic!("`{name}` is in no table of settings"));
        let mut parsed = Vec::new();
        for value in &entry.values {
            match parse(value) {
                Ok(value) => parsed.push(value),
                Err(reason) => self.problems.push(format!("{}: {reason}", entry.place())),
            }
        }
        parsed
    }

    /// Reads a switch.
    pub fn switch(&mut self, name: &'static str) -> bool {
        let parse = one_of(&[("true", true), ("false", false), ("1", true), ("0", false)]);
        self.value(name, parse).unwrap_or_default()
    }

    /// Where a setting's value came from.
    pub fn origin(&self, name: &str) -> &Origin {
        self.entries.get(name).map_or(&Origin::Default, |entry| &entry.origin)
    }

    /// Notes a problem that only shows when several settings are seen together.
    pub fn problem(&mut self, message: impl Into<String>) {
        self.problems.push(message.into());
    }

    /// Notes something that is no problem, for the log.
    pub fn note(&mut self, message: impl Into<String>) {
        self.notes.push(message.into());
    }

    /// What [`Settings::note`] was told.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Name, value and origin of each setting, secrets as stars.
    pub fn effective(&self) -> Vec<(&'static str, String, String)> {
        self.entries
            .values()
            .map(|entry| {
                let shown = match entry.key.secret && !entry.values.is_empty() {
                    true => "***".to_owned(),
                    false => entry.values.join(", "),
                };
                (entry.key.name, shown, entry.origin.to_string())
            })
            .collect()
    }

    /// # Errors
    /// Every problem met so far.
    pub fn finish(&self) -> Result<(), Problems> {
        if self.problems.is_empty() { Ok(()) } else { Err(Problems(self.problems.clone())) }
    }

    fn set(&mut self, name: &str, values: Vec<String>, origin: Origin) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.values = values;
            entry.origin = origin;
        }
    }

    fn take_environment(&mut self, schema: &Schema<'_>, sources: &Sources) {
        let mut variables: Vec<_> = sources.environment.iter().collect();
        variables.sort();
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(ENV_PREFIX) else { continue };
            if schema.foreign_variables.contains(&variable.as_str()) || is_service_link(rest) {
                continue;
            }
            let name = rest.to_lowercase().replace('_', "-");
            if let Some(entry) = self.entries.get(name.as_str()) {
                let values = match entry.key.kind {
                    Kind::Many => value.split(',').map(|part| part.trim().to_owned()).collect(),
                    Kind::One | Kind::Switch => vec![value.clone()],
                };
                self.set(&name, values, Origin::Environment(variable.clone()));
            } else if !schema.knows(&name) {
                let hint = suggest(&name, schema.names())
                    .map(|near| format!("; did you mean {}?", variable_of(near)));
                self.problem(format!("{variable}: no such setting{}", hint.unwrap_or_default()));
            }
        }
    }

    fn take_file(&mut self, schema: &Schema<'_>, sources: &Sources) {
        let Some((path, text)) = &sources.file else { return };
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count());
                return self.problem(format!("{}, line {line}: {}", path.display(), error.message()));
            }
        };
        let (sections, top): (Vec<_>, Vec<_>) = table.into_iter().partition(|(_, value)| value.is_table());
        for (name, value) in top {
            self.take_file_key(schema, path, "", &name, &value);
        }
        for (section, value) in sections {
            if !schema.sections.contains(&section.as_str()) {
                let hint = suggest(&section, schema.sections.iter().copied());
                let hint = hint.map(|near| format!("; did you mean [{near}]?")).unwrap_or_default();
                self.problem(format!("{}: no such section [{section}]{hint}", path.display()));
                continue;
            }
            for (name, value) in value.as_table().into_iter().flatten() {
                self.take_file_key(schema, path, &section, name, value);
            }
        }
    }

    fn take_file_key(
        &mut self,
        schema: &Schema<'_>,
        path: &std::path::Path,
        section: &str,
        written: &str,
        value: &toml::Value,
    ) {
        let name = written.replace('_', "-");
        let place = match section {
            "" => format!("{}: {written}", path.display()),
            _ => format!("{}: [{section}] {written}", path.display()),
        };
        if !schema.knows(&name) {
            let hint = suggest(&name, schema.names()).map(|near| format!("; did you mean {near}?"));
            return self.problem(format!("{place}: no such setting{}", hint.unwrap_or_default()));
        }
        if !section.is_empty() && section != schema.section {
            return;
        }
        let Some(entry) = self.entries.get(name.as_str()) else { return };
        match file_values(value) {
            Some(values) if values.len() == 1 || entry.key.kind == Kind::Many => {
                self.set(&name, values, Origin::File(path.to_owned()));
            }
            Some(values) => {
                self.problem(format!("{place}: takes one value, got a list of {}", values.len()));
            }
            None => self
                .problem(format!("{place}: takes text, a number, true or false, got {}", value.type_str())),
        }
    }
}

impl Entry {
    /// How the user spelt this setting, for error messages.
    fn place(&self) -> String {
        match &self.origin {
            Origin::Flag | Origin::Default => format!("--{}", self.key.name),
            Origin::Environment(name) => name.clone(),
            Origin::File(path) => format!("{}: {}", path.display(), self.key.name),
        }
    }
}

impl Schema<'_> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.name).chain(self.other_keys.iter().copied())
    }

    fn knows(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

/// The environment variable of the setting called `name`.
fn variable_of(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// The text of a file's value; `None` for what no setting can be.
fn file_values(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(flag) => Some(vec![flag.to_string()]),
        toml::Value::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(file_values).collect();
            items.map(|items| items.concat())
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// Kubernetes puts `<SERVICE>_SERVICE_HOST`, `<SERVICE>_PORT_8000_TCP_ADDR` and the like into every pod's
/// environment; with a service called `skein` they carry our prefix and are not meant for us.
fn is_service_link(rest: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    words.windows(2).any(|pair| pair == ["SERVICE", "HOST"] || pair == ["SERVICE", "PORT"])
        || words.windows(2).any(|pair| pair[0] == "PORT" && is_number(&pair[1]))
}

/// The known name that `written` most likely meant.
pub fn suggest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const SIMILAR: f64 = 0.8;
    known
        .map(|name| (strsim::jaro_winkler(written, name), name))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
