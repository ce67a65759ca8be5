//! Logging of one process, to standard error: lines for people on a terminal, JSON lines elsewhere.
//!
//! What is logged is ours to choose at each call; the rule of the house is that no prompt and no output ever is.

use std::io::{IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{one_of, text};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people when standard error is a terminal, else JSON.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// What to log, and how.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Look of the lines.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,skein_router=debug`.
    /// `None` = the variable `RUST_LOG`, else `info`.
    pub level: Option<String>,
    /// Which process this is, for when several write to one place; empty = unnamed.
    pub process: String,
}

/// Logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("`{filter}` is no log level: {reason}; write info, or info,skein_router=debug")]
    Filter {
        /// As given.
        filter: String,
        /// Why not.
        reason: String,
    },
    /// Something else has set up logging in this process.
    #[error("logging is already set up in this process")]
    AlreadySet,
}

/// A word that stands alone must be a level: the filter would take any other one for the name of a crate, and log
/// nothing. Whoever means a crate writes `name=level`.
///
/// # Errors
/// Names the level that was perhaps meant.
pub fn level(given: &str) -> Result<String, String> {
    let given = text(given)?;
    if given.contains(['=', ',']) {
        return Ok(given);
    }
    let levels = ["error", "warn", "info", "debug", "trace", "off"].map(|level| (level, level));
    one_of(&levels)(&given.to_lowercase()).map(str::to_owned)
}

/// Starts logging for the rest of this process's life.
///
/// # Errors
/// When the level does not parse, or when it is called twice.
pub fn init(options: &LogOptions) -> Result<(), TelemetryError> {
    let filter =
        options.level.clone().or_else(|| std::env::var("RUST_LOG").ok()).unwrap_or_else(|| "info".into());
    let parsed = EnvFilter::try_new(quiet_libraries(&filter))
        .map_err(|error| TelemetryError::Filter { filter, reason: error.to_string() })?;
    let terminal = std::io::stderr().is_terminal();
    let json = match options.format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let writer = Labelled { process: options.process.clone(), json };
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(writer).with_ansi(terminal);
    let started = match json {
        true => builder.json().flatten_event(true).with_current_span(false).try_init(),
        false => builder.compact().with_target(false).try_init(),
    };
    started.map_err(|_| TelemetryError::AlreadySet)
}

/// A bare `debug` or `trace` means our own crates: the transport's frames drown everything else, and are there for
/// whoever names them.
fn quiet_libraries(filter: &str) -> String {
    match filter.trim() {
        level @ ("debug" | "trace") => {
            let ours = ["skein", "skein_node", "skein_router", "skein_worker", "skein_kernels"];
            let ours: Vec<String> = ours.iter().map(|crate_name| format!("{crate_name}={level}")).collect();
            format!("info,{}", ours.join(","))
        }
        other => other.to_owned(),
    }
}

/// Writes each event to standard error in one piece, marked with the process it came from.
struct Labelled {
    process: String,
    json: bool,
}

impl<'a> MakeWriter<'a> for Labelled {
    type Writer = LabelledLine<'a>;
    fn make_writer(&'a self) -> Self::Writer {
        LabelledLine(self)
    }
}

struct LabelledLine<'a>(&'a Labelled);

impl Write for LabelledLine<'_> {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let line = label(event, &self.0.process, self.0.json);
        // A full disk must not end a server: told of the error, the subscriber would report it to standard error by a
        // macro that panics when it cannot write.
        let _ = std::io::stderr().write_all(&line);
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// `event` with the process's name in it: as the first JSON field, or in front.
fn label(event: &[u8], process: &str, json: bool) -> Vec<u8> {
    match (process, json, event) {
        ("", _, _) => event.to_vec(),
        (_, true, [b'{', rest @ ..]) => [format!("{{\"process\":\"{process}\",").as_bytes(), rest].concat(),
        _ => [format!("[{process}] ").as_bytes(), event].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_names_its_process() {
        let check = |event: &str, process: &str, json: bool, expected: &str| {
            assert_eq!(String::from_utf8_lossy(&label(event.as_bytes(), process, json)), expected);
        };
        check("{\"a\":1}\n", "worker 0", true, "{\"process\":\"worker 0\",\"a\":1}\n");
        check("INFO hello\n", "worker 0", false, "[worker 0] INFO hello\n");
        check("INFO hello\n", "", false, "INFO hello\n");
    }

    #[test]
    fn a_bare_debug_level_leaves_libraries_at_info() {
        assert!(quiet_libraries("debug").starts_with("info,skein=debug,"));
        assert_eq!(quiet_libraries("h2=trace"), "h2=trace");
        assert_eq!(quiet_libraries("warn"), "warn");
    }

    #[test]
    fn a_word_that_is_no_level_does_not_start_a_silent_process() {
        assert_eq!(level("INFO"), Ok("info".to_owned()));
        assert_eq!(level("warn,skein_router=debug"), Ok("warn,skein_router=debug".to_owned()));
        assert!(level("banana").is_err_and(|reason| reason.contains("error, warn, info, debug, trace")));
        assert!(level("inof").is_err_and(|reason| reason.ends_with("did you mean info?")));
        assert!(level(" ").is_err());
    }

    #[test]
    fn a_bad_level_is_refused_with_an_example() {
        let options =
            LogOptions { format: LogFormat::Auto, level: Some("a=b=c".into()), process: String::new() };
        let error = init(&options).expect_err("no such level").to_string();
        assert!(error.contains("`a=b=c`") && error.contains("info,skein_router=debug"), "{error}");
    }
}
