//! Reads a process's settings from the command line, the environment and a file.

mod common;
#[cfg(feature = "worker")]
mod device_choice;
mod discovery;
#[cfg(feature = "worker")]
mod engine;
#[cfg(feature = "worker")]
mod fake;
mod guards;
mod metrics_port;
mod otlp;
mod otlp_tls;
#[cfg(feature = "worker")]
mod precision;
#[cfg(feature = "worker")]
mod ranks;
mod read;
mod response_store;
pub mod table;
mod text_sources;

use std::collections::BTreeSet;

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use skein_node::config::{ENV_PREFIX, Key, Kind, Schema, Settings, Sources};

use crate::arguments::{REFUSED, TAKEN};
use crate::exit::{Failure, USAGE};
use common::is_common;
pub use discovery::{DiscoverySettings, RegistrationSettings};
#[cfg(feature = "worker")]
pub use engine::EngineSettings;
#[cfg(feature = "worker")]
pub use fake::FakeSettings;
pub use guards::Guards;
pub use metrics_port::metrics_port;
pub use otlp::{FLUSH_TRACES, OtlpSettings};
#[cfg(feature = "worker")]
pub use ranks::ranks_here;
pub use read::{FrontSettings, log_options, model_argument, quiet_on_a_terminal, user_cache};
pub use response_store::ResponseStore;
use table::{BENCH, FLAGS, Flag, GATEWAY, ROUTER, RUN, RUN_BATCH, SERVE, WORKER};
pub use text_sources::text_sources;

/// Sections of the configuration file, each with its command.
const SECTIONS: [(&str, u8); 7] = [
    ("serve", SERVE),
    ("router", ROUTER),
    ("worker", WORKER),
    ("run", RUN),
    ("bench", BENCH),
    ("gateway", GATEWAY),
    ("run-batch", RUN_BATCH),
];
/// Variables with our prefix that are not settings, of a running worker and of a build; workers inherit them.
/// Test variables have other prefixes: `TEST_`, and `EMU_` for the emulated GPU.
pub const FOREIGN_VARIABLES: [&str; 2] = ["SKEIN_KERNEL_CACHE", "SKEIN_CUDA_TARGETS"];
/// Largest configuration file, which is read whole.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// End of `-h`.
const SHORT: &str = "These are the common flags; --help lists all.";

/// End of `--help`.
const SETTINGS: &str = "Each flag can also be set in the environment (--max-num-seqs is SKEIN_MAX_NUM_SEQS) or in a TOML \
file (max-num-seqs = 64, at the top or in a section such as [serve]). A flag overrides the environment, which overrides the file.";

/// Adds a command's flags to its clap definition.
pub fn with_flags(command: Command, which: u8) -> Command {
    let note = |name| Arg::new(name).long(name).hide(true).action(ArgAction::Append);
    let command = command.args([REFUSED, TAKEN].map(note)).after_help(SHORT).after_long_help(SETTINGS);
    flags_of(which).fold(command, |command, flag| {
        let name = flag.key.name;
        let help = match flag.key.default {
            Some(default) if flag.key.kind != Kind::Switch => format!("{} [default: {default}]", flag.help),
            _ => flag.help.to_owned(),
        };
        let arg = Arg::new(name).long(name).help_heading(flag.group).hide_short_help(!is_common(name));
        match flag.key.kind {
            Kind::One => command.arg(arg.value_name(flag.value).help(help).allow_negative_numbers(true)),
            Kind::Many => command.arg(arg.value_name(flag.value).help(help).action(ArgAction::Append)),
            Kind::Switch => {
                let off = format!("no-{name}");
                let on_by_default = flag.key.default == Some("true");
                let on = arg.help(help.clone()).action(ArgAction::SetTrue).hide(on_by_default);
                let off_help = format!("Do not {}", lower_first(&help));
                let off_arg = Arg::new(off.clone()).long(off).help(off_help).help_heading(flag.group);
                let off_arg = off_arg.hide_short_help(true);
                command
                    .arg(on.overrides_with(format!("no-{name}")))
                    .arg(off_arg.action(ArgAction::SetTrue).hide(!on_by_default).overrides_with(name))
            }
        }
    })
}

/// Layers the command line, the environment and the file for the command `which`.
///
/// # Errors
/// If the configuration file cannot be read. Invalid values are reported by [`check`].
pub fn load(which: u8, matches: &ArgMatches) -> Result<Settings, Failure> {
    load_with(which, matches, Vec::new())
}

/// [`load`], with the values of some settings above those of the command line.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    which: u8,
    matches: &ArgMatches,
    above: Vec<(String, Vec<String>)>,
) -> Result<Settings, Failure> {
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(ENV_PREFIX))
        .collect();
    let flags = flags_of(which).filter_map(|flag| given(flag, matches));
    let flags: Vec<(String, Vec<String>)> = flags.chain(above).collect();
    let named = flags.iter().find(|(name, _)| name == "config").and_then(|(_, values)| values.last());
    let from_environment =
        environment.iter().find(|(name, _)| name == "SKEIN_CONFIG").map(|(_, value)| value);
    let file = named.or(from_environment).map(|path| read_file(path)).transpose()?;
    let keys: Vec<Key> = flags_of(which).map(|flag| flag.key).collect();
    let other_keys: Vec<&str> =
        FLAGS.iter().map(|flag| flag.key.name).collect::<BTreeSet<_>>().into_iter().collect();
    let schema = Schema {
        keys: &keys,
        other_keys: &other_keys,
        section: SECTIONS.iter().find(|(_, command)| which & command != 0).map_or("", |(name, _)| name),
        sections: &SECTIONS.map(|(name, _)| name),
        foreign_variables: &FOREIGN_VARIABLES,
    };
    let mut settings = Settings::layer(&schema, &Sources { flags, environment, file });
    let said = |name| matches.get_many::<String>(name).into_iter().flatten();
    said(REFUSED).for_each(|problem| settings.problem(problem));
    said(TAKEN).for_each(|note| settings.note(note));
    Ok(settings)
}

/// Fails if any setting was invalid.
///
/// # Errors
/// All problems of `settings`, as one usage error.
pub fn check(settings: &Settings) -> Result<(), Failure> {
    settings.finish().map_err(|problems| Failure::new(USAGE, problems.to_string()))
}

/// Logs the effective settings, with secrets as stars: those that were set at info level, defaults at debug
/// level.
pub fn log_effective(settings: &Settings) {
    for note in settings.notes() {
        tracing::info!("{note}");
    }
    for (name, value, origin) in settings.effective() {
        match origin.as_str() {
            "default" => tracing::debug!(name, value, origin, "setting"),
            _ => tracing::info!(name, value, origin, "setting"),
        }
    }
}

/// The effective settings as a table.
pub fn show(settings: &Settings) -> String {
    let rows = settings.effective();
    let width = rows.iter().map(|(name, _, _)| name.len()).max().unwrap_or(0);
    let values = rows.iter().map(|(_, value, _)| value.len()).max().unwrap_or(0);
    let shown = |value: &str| if value.is_empty() { "-".to_owned() } else { value.to_owned() };
    rows.iter()
        .map(|(name, value, origin)| format!("{name:<width$}  {:<values$}  {origin}\n", shown(value)))
        .collect()
}

fn flags_of(which: u8) -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().filter(move |flag| flag.commands & which != 0)
}

/// The value of one setting on the command line.
fn given(flag: &Flag, matches: &ArgMatches) -> Option<(String, Vec<String>)> {
    let name = flag.key.name;
    let on_command_line = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let values = match flag.key.kind {
        Kind::Switch if on_command_line(name) => vec!["true".to_owned()],
        Kind::Switch if on_command_line(&format!("no-{name}")) => vec!["false".to_owned()],
        Kind::Switch => return None,
        Kind::One | Kind::Many if !on_command_line(name) => return positional_model(name, matches),
        Kind::One | Kind::Many => matches.get_many::<String>(name)?.cloned().collect(),
    };
    // A list of addresses may be repeated flags, comma-separated, or both.
    let values = match name {
        "workers" | "routers" => {
            values.iter().flat_map(|value| value.split(',')).map(|part| part.trim().to_owned()).collect()
        }
        _ => values,
    };
    Some((name.to_owned(), values))
}

fn positional_model(name: &str, matches: &ArgMatches) -> Option<(String, Vec<String>)> {
    let model = matches.try_get_one::<String>("MODEL").ok().flatten()?;
    (name == "model").then(|| (name.to_owned(), vec![model.clone()]))
}

fn read_file(path: &str) -> Result<(std::path::PathBuf, String), Failure> {
    let failed =
        |reason: String| Failure::new(USAGE, format!("cannot read the configuration file {path}: {reason}"));
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(format!("it has {size} bytes; at most {MAX_FILE_BYTES} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Ok((path.into(), text))
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skein_node::config::count;

    fn parse(which: u8, arguments: &[&str]) -> ArgMatches {
        let command = with_flags(Command::new("test").no_binary_name(true).arg(Arg::new("MODEL")), which);
        command.try_get_matches_from(arguments).expect("the flags parse")
    }

    #[test]
    fn the_kernels_own_variable_is_known() {
        assert_eq!(FOREIGN_VARIABLES[0], skein_kernels::cuda::KERNEL_CACHE_VARIABLE);
    }

    #[test]
    fn the_table_has_one_meaning_for_each_flag_and_every_default_is_valid() {
        for (name, which) in SECTIONS {
            let mut names: Vec<_> = flags_of(which).map(|flag| flag.key.name).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "a flag of {name} is defined twice");
            let mut settings = load(which, &parse(which, &[])).expect("nothing to read");
            if which & (SERVE | ROUTER | GATEWAY) != 0 {
                FrontSettings::read(&mut settings, ResponseStore::None);
            }
            if which & (SERVE | WORKER) != 0 {
                EngineSettings::read(&mut settings);
            }
            assert_eq!(check(&settings), Ok(()), "defaults of {name}");
        }
    }

    #[test]
    fn flags_switches_and_the_positional_model_are_read() {
        let matches = parse(
            SERVE,
            &["dir", "--no-enable-prefix-caching", "--port", "1", "--api-key", "a", "--api-key", "b"],
        );
        let mut settings = load(SERVE, &matches).expect("nothing to read");
        assert_eq!(model_argument(&mut settings), Some("dir".to_owned()));
        assert!(!settings.switch("enable-prefix-caching"));
        assert_eq!(settings.value("port", count(0..=9)), Some(1));
        assert_eq!(settings.list("api-key", skein_node::config::text), ["a", "b"]);
        for given in ["https://a.example,http://b:3000", r#"["https://a.example", "http://b:3000"]"#] {
            let mut settings =
                load(SERVE, &parse(SERVE, &["--allowed-origins", given])).expect("nothing to read");
            let front = FrontSettings::read(&mut settings, ResponseStore::None);
            assert_eq!(front.router.allowed_origins, ["https://a.example", "http://b:3000"]);
        }
        for given in ["a.example", "https://a/b", "https://*.example", ""] {
            let mut settings =
                load(SERVE, &parse(SERVE, &["--allowed-origins", given])).expect("nothing to read");
            FrontSettings::read(&mut settings, ResponseStore::None);
            assert!(check(&settings).is_err(), "{given}");
        }
        let matches = parse(ROUTER, &["--workers", "a:1,b:2"]);
        let mut settings = load(ROUTER, &matches).expect("nothing to read");
        assert_eq!(settings.list("workers", skein_node::config::text), ["a:1", "b:2"]);
        let matches = parse(GATEWAY, &["--routers", "a:1,b:2"]);
        let mut settings = load(GATEWAY, &matches).expect("nothing to read");
        assert_eq!(settings.list("routers", skein_node::config::text), ["a:1", "b:2"]);
    }
}
