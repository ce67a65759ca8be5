//! Prepares a command line for clap, for commands that read settings. Flags of `vllm serve` are translated or
//! answered, several values after one flag become several flags, and problems with flag names are recorded,
//! so that they are reported together with problems of values. Pure.

mod other_commands;
mod speculative;
mod structured_outputs;
mod vllm;

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;
use skein_node::config::suggest;

pub use other_commands::instead_of;
use speculative::Meaning;
use vllm::{Answer, LISTS, Row, TABLE, Takes, VALUES};

/// Hidden flag: carries a problem found here to the list that the settings report.
pub const REFUSED: &str = "flag-refused";
/// Hidden flag: carries a note for the log about a flag that was accepted without effect.
pub const TAKEN: &str = "flag-taken";

/// Commands whose flags are settings.
const COMMANDS: [&[&str]; 6] =
    [&["serve"], &["router"], &["gateway"], &["worker"], &["run"], &["config", "show"]];

/// Converts `words` for clap. `is_model` returns whether a word can be a model.
pub fn prepare(skein: &Command, words: Vec<String>, is_model: impl Fn(&str) -> bool) -> Vec<String> {
    let after =
        |path: &&&[&str]| words.len() > path.len() && words[1..].iter().zip(**path).all(|(a, b)| a == b);
    let Some(path) = COMMANDS.iter().find(after) else { return words };
    let command = path.iter().try_fold(skein, |command, name| command.find_subcommand(name));
    let Some(command) = command else { return words };
    let (head, rest) = words.split_at(1 + path.len());
    let mut reading = Reading::new(command, rest, &is_model);
    reading.read();
    let notes = |name: &str, texts: Vec<String>| -> Vec<String> {
        texts.into_iter().map(|text| format!("--{name}={text}")).collect()
    };
    let notes = [notes(REFUSED, reading.refused), notes(TAKEN, reading.taken)].concat();
    [head.to_vec(), notes, reading.out].concat()
}

struct Reading<'a> {
    /// Flags of the command, with whether each takes a value.
    known: BTreeMap<String, bool>,
    /// Names of the flags that may be given several times.
    repeated: BTreeSet<String>,
    rest: std::collections::VecDeque<&'a str>,
    is_model: &'a dyn Fn(&str) -> bool,
    has_model: bool,
    out: Vec<String>,
    refused: Vec<String>,
    taken: Vec<String>,
}

impl<'a> Reading<'a> {
    fn new(command: &Command, rest: &'a [String], is_model: &'a dyn Fn(&str) -> bool) -> Self {
        let long = |arg: &clap::Arg| Some((arg.get_long()?.to_owned(), arg.get_action().takes_values()));
        let repeated =
            command.get_arguments().filter(|arg| matches!(arg.get_action(), clap::ArgAction::Append));
        let automatic = [("help".to_owned(), false), ("version".to_owned(), false)];
        Self {
            known: command.get_arguments().filter_map(long).chain(automatic).collect(),
            repeated: repeated.filter_map(|arg| arg.get_long().map(str::to_owned)).collect(),
            rest: rest.iter().map(String::as_str).collect(),
            is_model,
            has_model: rest.iter().any(|word| word == "--model" || word.starts_with("--model=")),
            out: Vec::new(),
            refused: Vec::new(),
            taken: Vec::new(),
        }
    }

    fn read(&mut self) {
        while let Some(word) = self.rest.pop_front() {
            match word {
                "--" => {
                    self.out.push(word.to_owned());
                    self.out.extend(self.rest.drain(..).map(str::to_owned));
                }
                "-h" | "-V" | "-" => self.out.push(word.to_owned()),
                flag if is_flag(flag) => self.flag(flag),
                word => {
                    self.has_model = true;
                    self.out.push(word.to_owned());
                }
            }
        }
    }

    fn flag(&mut self, word: &str) {
        let (spelt, value) = word.split_once('=').map_or((word, None), |(spelt, value)| (spelt, Some(value)));
        // vLLM takes `--max_model_len` for `--max-model-len`.
        let name = match spelt.strip_prefix("--") {
            Some(name) => name.replace('_', "-"),
            None => spelt.to_owned(),
        };
        if let Some(takes_value) = self.known.get(&name).copied() {
            return self.own(&name, value, takes_value);
        }
        let (named, is_off) = match name.strip_prefix("no-") {
            Some(positive) if find(positive).is_some() => (positive, true),
            _ => (name.as_str(), false),
        };
        match find(named) {
            Some(row) => self.foreign(row, spelt, value, is_off),
            None => self.unknown(spelt, &name, value),
        }
    }

    /// Converts one of Skein's flags. Each further value of a list becomes a flag of its own.
    fn own(&mut self, name: &str, value: Option<&str>, takes_value: bool) {
        if !takes_value {
            let value = value.map_or(String::new(), |value| format!("={value}"));
            return self.out.push(format!("--{name}{value}"));
        }
        let first = value.or_else(|| self.rest.pop_front_if(|word| is_value(word)));
        let Some(first) = first else { return self.out.push(format!("--{name}")) };
        self.push(name, first);
        while LISTS.contains(&name) && self.repeated.contains(name) && value.is_none() {
            let Some(next) = self.rest.pop_front_if(|word| !is_flag(word)) else { return };
            let is_last = self.rest.front().is_none_or(|word| is_flag(word));
            if is_last && !self.has_model && (self.is_model)(next) && !self.has_more_words() {
                self.rest.push_front(next);
                return;
            }
            self.push(name, next);
        }
    }

    /// Whether the rest has a word that is no flag and no flag's value.
    fn has_more_words(&self) -> bool {
        let mut words = self.rest.iter().copied().peekable();
        while let Some(word) = words.next() {
            if !is_flag(word) {
                return true;
            }
            let name = word.trim_start_matches("--").replace('_', "-");
            let takes_value = self.known.get(&name).copied();
            let takes_value =
                takes_value.unwrap_or_else(|| find(&name).is_some_and(|row| row.takes != Takes::Nothing));
            if takes_value && !word.contains('=') {
                words.next_if(|word| is_value(word));
            }
        }
        false
    }

    fn push(&mut self, name: &str, value: &str) {
        let row = VALUES.iter().find(|row| row.name == name && row.given.contains(&value));
        if let Some(row) = row.filter(|row| !row.note.is_empty()) {
            self.taken.push(format!("--{name} {value}: {}", row.note));
        }
        self.out.push(format!("--{name}={}", row.map_or(value, |row| row.ours)));
    }

    /// Converts one of vLLM's flags. `is_off`: it was given in its `--no-` form.
    fn foreign(&mut self, row: &Row, spelt: &str, value: Option<&str>, is_off: bool) {
        let mut values: Vec<&str> = value.into_iter().collect();
        while value.is_none()
            && (row.takes == Takes::Values || (row.takes == Takes::Value && values.is_empty()))
        {
            let Some(next) = self.rest.pop_front_if(|word| is_value(word)) else { break };
            values.push(next);
        }
        match row.answer {
            Answer::Means(ours) => {
                if self.known.contains_key(ours) {
                    values.first().into_iter().for_each(|value| self.push(ours, value));
                    if values.is_empty() {
                        self.refused.push(format!("{spelt}: needs a value; it is --{ours} here"));
                    }
                } else {
                    self.refused.push(format!("{spelt}: is --{ours} of skein serve"));
                }
            }
            Answer::Taken(how) if is_off => self.refused.push(format!("{spelt}: {how}; leave it out")),
            Answer::Taken(how) => self.taken.push(format!("{spelt}: {how}")),
            Answer::Refused(_) if is_off => self.taken.push(format!("{spelt}: it is never on")),
            Answer::Refused(why) => self.refused.push(format!("{spelt}: {why}")),
            Answer::Speculative | Answer::StructuredOutputs if is_off => {
                self.taken.push(format!("{spelt}: it is not needed"))
            }
            Answer::Speculative => self.speculative(spelt, values.first().copied()),
            Answer::StructuredOutputs => self.structured_outputs(spelt, values.first().copied()),
            Answer::Only(good, why) => match values.iter().find(|value| !good.contains(value)) {
                Some(value) => self.refused.push(format!("{spelt} {value}: {why}")),
                None => self.taken.push(format!("{spelt}: {why}")),
            },
        }
    }

    fn speculative(&mut self, spelt: &str, value: Option<&str>) {
        let Some(value) = value else { return self.refused.push(format!("{spelt}: needs a value")) };
        match speculative::read(spelt, value) {
            Ok(Meaning::Speculate(ours)) if self.known.contains_key("speculate") => {
                self.push("speculate", &ours);
            }
            Ok(Meaning::Speculate(_)) => self.refused.push(format!("{spelt}: is --speculate of skein serve")),
            Ok(Meaning::Nothing(why)) => self.taken.push(format!("{spelt}: {why}")),
            Err(why) => self.refused.push(format!("{spelt}: {why}")),
        }
    }

    fn structured_outputs(&mut self, spelt: &str, value: Option<&str>) {
        let Some(value) = value else { return self.refused.push(format!("{spelt}: needs a value")) };
        match structured_outputs::read(spelt, value) {
            Ok(settings) if settings.is_empty() => {
                self.taken.push(format!("{spelt}: {}", structured_outputs::ONE_LIBRARY));
            }
            Ok(settings) => {
                for (name, value) in settings {
                    if self.known.get(name) == Some(&false) && value == "false" {
                        self.out.push(format!("--no-{name}"));
                    } else if self.known.contains_key(name) {
                        self.push(name, &value);
                    } else {
                        self.refused.push(format!("{spelt}: is --{name} of skein serve"));
                    }
                }
            }
            Err(why) => self.refused.push(format!("{spelt}: {why}")),
        }
    }

    fn unknown(&mut self, spelt: &str, name: &str, value: Option<&str>) {
        let near = suggest(name, self.known.keys().map(String::as_str).filter(|name| !is_hidden(name)));
        let hint = near.map_or("--help lists them".to_owned(), |near| format!("did you mean --{near}?"));
        self.refused.push(format!("{spelt}: no such flag; {hint}"));
        let takes_value = near.is_none_or(|near| self.known.get(near).copied().unwrap_or(true));
        if value.is_none() && takes_value {
            let _ = self.rest.pop_front_if(|word| is_value(word));
        }
    }
}

/// Finds a flag's row. `--speculative-config.method` is part of `--speculative-config`, `-O3` is `-O 3`.
fn find(name: &str) -> Option<&'static Row> {
    let whole = name.split('.').next().unwrap_or(name);
    let of_level = whole.strip_prefix("-O").filter(|level| level.bytes().all(|byte| byte.is_ascii_digit()));
    let whole = of_level.map_or(whole, |_| "-O");
    TABLE.iter().find(|row| row.names.contains(&whole))
}

fn is_hidden(name: &str) -> bool {
    [REFUSED, TAKEN].contains(&name)
}

/// `-3s` and `-1` are values; `-tp` is a flag.
fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !is_negative(word)
}

fn is_value(word: &str) -> bool {
    !is_flag(word)
}

fn is_negative(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit() || first == '.'))
}

#[cfg(test)]
mod tests;
