//! Layered settings: a flag overrides the environment, which overrides the file, which overrides the default.
//! Each value remembers its origin.
//!
//! Values stay text until a process reads them into its typed struct. Nothing fails at the first mistake:
//! every problem is collected with its fix, and [`Settings::finish`] returns them all.

mod kubernetes;
mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

pub use parse::{bytes, count, duration, number, one_of, text};

/// Prefix of the environment variables that are settings: `--max-num-seqs` is `SKEIN_MAX_NUM_SEQS`.
pub const ENV_PREFIX: &str = "SKEIN_";

/// One setting: a flag, an environment variable and a key of the file under the same name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// The flag without its leading dashes: `max-num-seqs`.
    pub name: &'static str,
    /// How many values it takes.
    pub kind: Kind,
    /// The default, as a user would write it; `None` = unset.
    pub default: Option<&'static str>,
    /// Whether listings show the value as stars.
    pub secret: bool,
}

/// How many values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; as flags `--name` and `--no-name`.
    Switch,
    /// Exactly one value.
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
    /// None was given.
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

/// The unparsed input of all layers.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Flags with their values; the value of a switch is `true` or `false`.
    pub flags: Vec<(String, Vec<String>)>,
    /// Environment variables; those without [`ENV_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Path and text of the configuration file.
    pub file: Option<(PathBuf, String)>,
}

/// The known settings, and which of them this command reads.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a> {
    /// Settings that this command reads.
    pub keys: &'a [Key],
    /// Names of settings that only other commands read; a shared file or environment may contain them.
    pub other_keys: &'a [&'a str],
    /// The file's section for this command; it overrides the file's top level.
    pub section: &'a str,
    /// Names of all sections.
    pub sections: &'a [&'a str],
    /// Variables with our prefix that are not settings.
    pub foreign_variables: &'a [&'a str],
}

/// All problems found in the settings.
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

/// The layered values by name, and the problems found so far.
#[derive(Debug)]
pub struct Settings {
    entries: BTreeMap<&'static str, Layered>,
    problems: Vec<String>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Layered {
    key: Key,
    values: Vec<String>,
    origin: Origin,
    /// Section of the file that contains it; empty = none.
    section: String,
}

impl Layered {
    fn shown(&self) -> String {
        let is_hidden = self.key.secret && !self.values.is_empty();
        if is_hidden { "***".to_owned() } else { self.values.join(", ") }
    }
}

/// Those of `variables` that are settings of ours, some of them secrets, and not `foreign`. Processes that
/// get their settings by other means start without them.
pub fn own_variables<'a>(
    variables: impl IntoIterator<Item = OsString> + 'a,
    foreign: &'a [&'a str],
) -> impl Iterator<Item = OsString> + 'a {
    let is_own = |name: &str| name.starts_with(ENV_PREFIX) && !foreign.contains(&name);
    variables.into_iter().filter(move |variable| is_own(&variable.to_string_lossy()))
}

impl Settings {
    /// Layers the sources. Problems are kept for [`Settings::finish`].
    pub fn layer(schema: &Schema<'_>, sources: &Sources) -> Self {
        let entries = schema.keys.iter().map(|key| {
            let values = key.default.map(str::to_owned).into_iter().collect();
            (key.name, Layered { key: *key, values, origin: Origin::Default, section: String::new() })
        });
        let mut settings = Self { entries: entries.collect(), problems: Vec::new(), notes: Vec::new() };
        settings.take_file(schema, sources);
        settings.take_environment(schema, sources);
        for (name, values) in &sources.flags {
            settings.set(name, values.clone(), Origin::Flag);
        }
        settings
    }

    /// Parses a single-valued setting; `None` if it is unset or invalid, which is recorded as a problem.
    pub fn value<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.list(name, parse).pop()
    }

    /// Parses a setting with any number of values; invalid ones are recorded as problems.
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

    /// Parses a switch; false if it is invalid.
    pub fn switch(&mut self, name: &'static str) -> bool {
        let parse = one_of(&[("true", true), ("false", false), ("1", true), ("0", false)]);
        self.value(name, parse).unwrap_or_default()
    }

    /// Where a setting's value came from.
    pub fn origin(&self, name: &str) -> &Origin {
        self.entries.get(name).map_or(&Origin::Default, |entry| &entry.origin)
    }

    /// Text of a setting's value, stars for a secret; empty if it has none.
    pub fn shown(&self, name: &str) -> String {
        self.entries.get(name).map_or_else(String::new, Layered::shown)
    }

    /// Records a problem, for example one that involves several settings.
    pub fn problem(&mut self, message: impl Into<String>) {
        let message = message.into();
        // A setting that two parts of the process read has one problem.
        if !self.problems.contains(&message) {
            self.problems.push(message);
        }
    }

    /// Records a note for the log that is not a problem.
    pub fn note(&mut self, message: impl Into<String>) {
        self.notes.push(message.into());
    }

    /// The recorded notes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Name, value and origin of each setting; secrets are shown as stars.
    pub fn effective(&self) -> Vec<(&'static str, String, String)> {
        self.entries.values().map(|entry| (entry.key.name, entry.shown(), entry.origin.to_string())).collect()
    }

    /// Returns all problems recorded so far.
    ///
    /// # Errors
    /// If there are any.
    pub fn finish(&self) -> Result<(), Problems> {
        // Two readers of the same setting report the same problem.
        let mut said = BTreeSet::new();
        let problems: Vec<_> =
            self.problems.iter().filter(|problem| said.insert(*problem)).cloned().collect();
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
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
        let mut ignored = Vec::new();
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(ENV_PREFIX) else { continue };
            if schema.foreign_variables.contains(&variable.as_str()) {
                continue;
            }
            if kubernetes::is_service_link(rest, value) {
                ignored.push(variable.as_str());
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
        if !ignored.is_empty() {
            let names = ignored.join(", ");
            self.note(format!("ignored {names}: Kubernetes sets these for a Service; they are not settings"));
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
                if let Some(entry) = self.entries.get_mut(name.as_str()) {
                    section.clone_into(&mut entry.section);
                }
            }
            Some(values) => {
                self.problem(format!("{place}: takes one value, got a list of {}", values.len()));
            }
            None => self
                .problem(format!("{place}: takes text, a number, true or false, got {}", value.type_str())),
        }
    }
}

impl Layered {
    /// How the user named this setting, for error messages.
    fn place(&self) -> String {
        match &self.origin {
            Origin::Flag | Origin::Default => format!("--{}", self.key.name),
            Origin::Environment(name) => name.clone(),
            Origin::File(path) if self.section.is_empty() => format!("{}: {}", path.display(), self.key.name),
            Origin::File(path) => format!("{}: [{}] {}", path.display(), self.section, self.key.name),
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

/// The environment variable of a setting.
fn variable_of(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// The file's value as text; `None` for types that no setting has.
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

/// The known name most similar to `written`, if any is similar enough.
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
