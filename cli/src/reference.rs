//! The command line's reference: shell completions, man pages, and the manual's page of flags.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use skein_node::config::{Key, Kind};

use crate::exit::Failure;
use crate::settings::table::{self, FLAGS, Flag};

/// Command that prints completions for a shell.
pub const COMPLETIONS: &str = "completions";
/// Command that prints the man page, or writes one page per command.
pub const MAN: &str = "man";
/// Hidden command that prints `docs/src/flags.md`.
pub const FLAGS_PAGE: &str = "flags-page";

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// Commands that read the table of settings, in the page's order.
const COMMANDS: [(&str, u8); 7] = [
    ("serve", table::SERVE),
    ("router", table::ROUTER),
    ("gateway", table::GATEWAY),
    ("worker", table::WORKER),
    ("run", table::RUN),
    ("bench", table::BENCH),
    ("run-batch", table::RUN_BATCH),
];

const PAGE_HEAD: &str = "# Flags

Look up a flag: its default, the commands that take it, and what it does. `skein flags-page` writes this page
from the code, and a test fails when the two differ. [Configuration](configuration.md) explains files, variables
and units. \"bench\" stands for `skein bench latency` and `skein bench throughput`. `skein doctor` takes those of `serve`,
`--discovery` and `--etcd-...`.
";

/// Definitions of the three commands for clap.
pub fn commands() -> [Command; 3] {
    let shell = Arg::new("SHELL").required(true).value_parser(SHELLS.map(|shell| shell.to_string()));
    let out = Arg::new("out").long("out").value_name("DIR").value_parser(value_parser!(PathBuf));
    [
        Command::new(COMPLETIONS).about("Print completions for a shell").arg(shell),
        Command::new(MAN)
            .about("Print the man page")
            .arg(out.help("Write one page for each command into this directory instead")),
        Command::new(FLAGS_PAGE).hide(true),
    ]
}

/// Prints completions of `skein` for the shell that `matches` names.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(mut skein: Command, matches: &ArgMatches) -> Result<(), Failure> {
    let named = matches.get_one::<String>("SHELL").map_or("", String::as_str);
    let Some(shell) = SHELLS.into_iter().find(|shell| shell.to_string() == named) else { return Ok(()) };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut skein, "skein", &mut script);
    print(&script)
}

/// Prints the man page of `skein`, or writes all pages into the directory of `--out`.
///
/// # Errors
/// If the pages cannot be written.
pub fn man(skein: Command, matches: &ArgMatches) -> Result<(), Failure> {
    let skein = with_short_about(skein);
    let Some(directory) = matches.get_one::<PathBuf>("out") else {
        let mut page = Vec::new();
        clap_mangen::Man::new(skein).render(&mut page).map_err(Failure::other)?;
        return print(&page);
    };
    let failed =
        |error| Failure::other(format!("cannot write man pages to {}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(skein, directory).map_err(failed)
}

/// Shortens the about text to one line, as a man page's NAME section requires; the rest goes to the
/// description.
fn with_short_about(skein: Command) -> Command {
    let about = skein.get_about().map(ToString::to_string).unwrap_or_default();
    let first = about.lines().next().unwrap_or_default().to_owned();
    skein.about(first).long_about(about)
}

/// Prints the manual's page of flags.
///
/// # Errors
/// If standard output cannot be written.
pub fn flags_page(skein: Command) -> Result<(), Failure> {
    print(page(skein).as_bytes())
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    out!("{}", String::from_utf8_lossy(bytes));
    Ok(())
}

/// `docs/src/flags.md`: the settings by group, then the flags of single commands.
fn page(mut skein: Command) -> String {
    skein.build();
    let mut groups: Vec<&str> = Vec::new();
    for flag in FLAGS {
        if !groups.contains(&flag.group) {
            groups.push(flag.group);
        }
    }
    let settings = groups.iter().map(|group| {
        let rows = FLAGS.iter().filter(|flag| flag.group == *group).map(setting_row);
        table_of(group, "| flag | default | commands | |\n|---|---|---|---|\n", rows)
    });
    let own = leaves(&skein, "skein").into_iter().filter_map(|(name, command)| {
        let rows: Vec<_> = command.get_arguments().filter(|arg| is_own(arg)).map(own_row).collect();
        let head = "| flag | default | |\n|---|---|---|\n";
        (!rows.is_empty()).then(|| table_of(&format!("Only `{name}`"), head, rows.into_iter()))
    });
    std::iter::once(PAGE_HEAD.to_owned()).chain(settings).chain(own).collect()
}

fn table_of(title: &str, head: &str, rows: impl Iterator<Item = String>) -> String {
    rows.fold(format!("\n## {title}\n\n{head}"), |page, row| page + &row)
}

fn setting_row(flag: &Flag) -> String {
    let Key { name, kind, default, .. } = flag.key;
    let (help, said) = split_default(flag.help);
    let spelt = match kind {
        Kind::Switch => format!("--[no-]{name}"),
        Kind::One | Kind::Many => format!("--{name} {}", flag.value),
    };
    let default = match (kind, default) {
        (Kind::Switch, Some("true")) => "on".to_owned(),
        (Kind::Switch, _) => "off".to_owned(),
        (_, Some(default)) => format!("`{default}`"),
        (_, None) => said.unwrap_or("–").to_owned(),
    };
    let takers = COMMANDS.iter().filter(|(_, bit)| flag.commands & bit != 0).map(|(name, _)| *name);
    let takers: Vec<_> = takers.collect();
    let takers = if takers.len() == COMMANDS.len() { "all".to_owned() } else { takers.join(", ") };
    format!("| `{spelt}` | {} | {takers} | {} |\n", cell(&default), cell(help))
}

/// Whether the flag is not a setting: settings have a help heading.
fn is_own(arg: &Arg) -> bool {
    let is_automatic = matches!(arg.get_id().as_str(), "help" | "version");
    arg.get_help_heading().is_none() && !arg.is_positional() && !arg.is_hide_set() && !is_automatic
}

fn own_row(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, said) = split_default(&help);
    let mut spelt = format!("--{}", arg.get_long().unwrap_or_default());
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        for name in arg.get_value_names().unwrap_or_default() {
            let _ = write!(spelt, " {name}");
        }
    }
    let given: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match (given.is_empty() || given == ["false"], said) {
        (false, _) => format!("`{}`", given.join(" ")),
        (true, Some(said)) => said.to_owned(),
        (true, None) => "–".to_owned(),
    };
    format!("| `{spelt}` | {} | {} |\n", cell(&default), cell(help))
}

/// Splits a trailing "[default: ...]" off a help text.
fn split_default(help: &str) -> (&str, Option<&str>) {
    let split = help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: "));
    split.map_or((help, None), |(help, default)| (help, Some(default)))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// Visible commands without subcommands, each with its full name.
fn leaves<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let below: Vec<_> =
        visible.flat_map(|command| leaves(command, &format!("{name} {}", command.get_name()))).collect();
    if below.is_empty() { vec![(name.to_owned(), command)] } else { below }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/flags.md");

    #[test]
    fn the_manuals_page_of_flags_matches_the_code() {
        let written = std::fs::read_to_string(PAGE).unwrap_or_default();
        let fresh = page(crate::command());
        assert!(
            written == fresh,
            "docs/src/flags.md is stale: cargo run -- {FLAGS_PAGE} > docs/src/flags.md"
        );
    }

    #[test]
    fn every_setting_and_every_commands_own_flags_are_on_the_page() {
        let page = page(crate::command());
        for flag in FLAGS {
            assert!(page.contains(flag.key.name), "--{} is missing", flag.key.name);
        }
        for expected in ["## Only `skein bench serve`", "`--request-rate R`", "## Only `skein gpu-check`"] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        assert!(!page.contains("supervised"), "hidden flags stay hidden");
    }

    #[test]
    fn completions_know_every_command() {
        for shell in SHELLS {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::command(), "skein", &mut script);
            let script = String::from_utf8(script).expect("scripts are text");
            for command in crate::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn every_visible_command_has_a_man_page() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        clap_mangen::generate_to(crate::command(), directory.path()).expect("it is ours");
        for name in ["skein.1", "skein-serve.1", "skein-bench-latency.1", "skein-config-show.1"] {
            assert!(directory.path().join(name).is_file(), "{name}");
        }
        assert!(!directory.path().join("skein-flags-page.1").exists(), "hidden commands have none");
    }
}
