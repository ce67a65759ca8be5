//! Logging to standard error: readable lines, or JSON lines with `--log-format json`. By convention, no call
//! site logs prompts or output.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::{self, FormatFields, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{one_of, text};
use crate::log_queue::LogQueue;
use crate::trace;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogFormat {
    /// Lines for people to read.
    Human,
    /// One JSON object per line.
    Json,
}

/// What to log, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogOptions {
    /// Format of the lines.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,skein_router=debug`.
    /// `None` = the variable `RUST_LOG`, else `info`.
    pub level: Option<String>,
    /// Name of this process, to tell several apart in one log; empty = none.
    pub process: String,
    /// Destination of traces and metrics; `None` = disabled.
    pub otlp: Option<trace::Options>,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error("`{filter}` is not a log level: {reason}; write info, or info,skein_router=debug")]
    Filter {
        /// The filter as given.
        filter: String,
        /// The parser's message.
        reason: String,
    },
    /// Traces could not be started.
    #[error(transparent)]
    Traces(#[from] trace::StartError),
    /// Logging has already been set up in this process.
    #[error("logging is already set up in this process")]
    AlreadySet,
}

/// Checks a log level or filter. A single word must be a level: a filter would take any other word for a
/// crate's name and log nothing. To name a crate, write `name=level`.
///
/// # Errors
/// A message that suggests the nearest level.
pub fn level(given: &str) -> Result<String, String> {
    let given = text(given)?;
    if given.contains(['=', ',']) {
        return Ok(given);
    }
    let levels = ["error", "warn", "info", "debug", "trace", "off"].map(|level| (level, level));
    one_of(&levels)(&given.to_lowercase()).map(str::to_owned)
}

/// Starts logging and, if enabled, traces and metrics by OTLP, for the lifetime of this process.
///
/// # Errors
/// If the level is invalid, an endpoint is unusable, or logging is already set up.
pub fn init(options: &LogOptions) -> Result<(), TelemetryError> {
    let filter =
        options.level.clone().or_else(|| std::env::var("RUST_LOG").ok()).unwrap_or_else(|| "info".into());
    let parsed = lines_filter(&filter)
        .map_err(|error| TelemetryError::Filter { filter, reason: error.to_string() })?;
    options.otlp.as_ref().map(trace::start).transpose()?;
    start_writer();
    let terminal = std::io::stderr().is_terminal();
    let json = options.format == LogFormat::Json;
    let writer = Labelled { process: options.process.clone(), json };
    if let Some(warnings) = trace::layer() {
        let lines = lines_with_ids(writer, terminal, json, parsed);
        let started = Registry::default().with(lines).with(warnings).with(trace::process_layer()).try_init();
        return started.map_err(|_| TelemetryError::AlreadySet);
    }
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(writer).with_ansi(terminal);
    // It would report them by `eprintln!`, which panics when standard error is closed or full.
    let builder = builder.log_internal_errors(false);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        builder.compact().with_target(false).try_init()
    };
    started.map_err(|_| TelemetryError::AlreadySet)
}

/// Formatter of log lines with the ids of the current request.
fn lines_with_ids(
    writer: Labelled,
    terminal: bool,
    json: bool,
    filter: EnvFilter,
) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(terminal);
    if json {
        let format = format::json().flatten_event(true).with_current_span(false);
        let layer = layer.fmt_fields(JsonFields::new()).event_format(WithIds { format, json });
        return layer.with_filter(filter).boxed();
    }
    let format = format::format().compact().with_target(false);
    layer.event_format(WithIds { format, json }).with_filter(filter).boxed()
}

/// Adds `trace_id` and `span_id` of the current request to each line.
struct WithIds<F> {
    format: F,
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithIds<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let Some(request) = trace::current_link() else {
            return self.format.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        write_with_ids(&mut writer, &line, request, self.json)
    }
}

/// Writes `line` with the ids of `request` as its first JSON fields, or at its end.
fn write_with_ids(writer: &mut Writer<'_>, line: &str, request: trace::Link, json: bool) -> std::fmt::Result {
    let (trace_id, span_id) = (request.trace_id(), request.span_id());
    match line.strip_prefix('{') {
        Some(rest) if json => {
            write!(writer, "{{\"trace_id\":\"{trace_id}\",\"span_id\":\"{span_id}\",{rest}")
        }
        _ => writeln!(writer, "{} trace_id={trace_id} span_id={span_id}", line.trim_end_matches('\n')),
    }
}

/// Filter for log lines. Process spans are excluded: each log line inside one would repeat it.
fn lines_filter(filter: &str) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::try_new(quiet_libraries(filter))?;
    Ok(filter.add_directive(format!("{}=off", trace::PROCESS).parse()?))
}

/// Limits a bare `debug` or `trace` to our own crates. Otherwise the transport's frames bury everything else;
/// name those crates in the filter to see them.
fn quiet_libraries(filter: &str) -> String {
    match filter.trim() {
        // A target covers all that begin with it, and all our crates begin with this.
        level @ ("debug" | "trace") => format!("info,skein={level}"),
        other => other.to_owned(),
    }
}

/// Whether the log has [ended](silence).
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Stops the log of a process that exits without a drain. Its tasks see their connections break and would log
/// events that never happen, such as a stream moving to another worker.
pub(crate) fn silence() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Ends the targets of lines that every request leaves.
const OF_REQUESTS: &str = "::request";
/// Time limit for the last lines when a process ends: a reader of standard error may be stuck.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Lines on their way to standard error.
static LINES: LazyLock<LogQueue> = LazyLock::new(LogQueue::default);
/// Whether a thread writes the lines; else they are written at once.
static HAS_WRITER: AtomicBool = AtomicBool::new(false);

fn start_writer() {
    let on_lost = |lines| {
        tracing::warn!(lines, "log lines were left out: standard error takes them too slowly");
    };
    let run = move || LINES.run(std::io::stderr(), on_lost);
    let writer = std::thread::Builder::new().name("log".into()).spawn(run);
    HAS_WRITER.store(writer.is_ok(), Ordering::Relaxed);
}

/// Sends queued spans and metrics within `at_most`, and writes the lines that wait. Call it before the
/// process ends.
pub fn flush(at_most: Duration) {
    trace::flush(at_most);
    flush_lines();
}

/// Writes the lines that wait.
pub(crate) fn flush_lines() {
    LINES.flush(LAST_LINES);
}

/// Writes each event to standard error in one piece, labelled with the process.
struct Labelled {
    process: String,
    json: bool,
}

impl<'a> MakeWriter<'a> for Labelled {
    type Writer = LabelledLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LabelledLine { of: self, is_of_request: false }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        LabelledLine { of: self, is_of_request: event.target().ends_with(OF_REQUESTS) }
    }
}

struct LabelledLine<'a> {
    of: &'a Labelled,
    is_of_request: bool,
}

impl Write for LabelledLine<'_> {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        if IS_SILENT.load(Ordering::Relaxed) {
            return Ok(event.len());
        }
        let line = label(event, &self.of.process, self.of.json);
        if HAS_WRITER.load(Ordering::Relaxed) {
            LINES.push(&line, self.is_of_request);
        } else {
            // An error that is returned is reported by a macro that panics if it cannot write to standard
            // error.
            let _ = std::io::stderr().write_all(&line);
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// `event` with the process's name as its first JSON field, or in front of the line.
fn label<'a>(event: &'a [u8], process: &str, json: bool) -> Cow<'a, [u8]> {
    match (process, json, event) {
        ("", _, _) => event.into(),
        (_, true, [b'{', rest @ ..]) => {
            [format!("{{\"process\":\"{process}\",").as_bytes(), rest].concat().into()
        }
        _ => [format!("[{process}] ").as_bytes(), event].concat().into(),
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
        let filter = lines_filter("debug").expect("it is valid");
        tracing::subscriber::with_default(Registry::default().with(filter), || {
            assert!(tracing::enabled!(target: "skein_model::checkpoint", tracing::Level::DEBUG));
            assert!(tracing::enabled!(target: "h2", tracing::Level::INFO));
            assert!(!tracing::enabled!(target: "h2", tracing::Level::DEBUG));
        });
        assert_eq!(quiet_libraries("h2=trace"), "h2=trace");
        assert_eq!(quiet_libraries("warn"), "warn");
    }

    #[test]
    fn no_filter_logs_the_spans_of_the_process() {
        for filter in ["info", "trace", "skein=trace", "skein::process=info", "off"] {
            let filter = lines_filter(filter).expect("it is valid");
            tracing::subscriber::with_default(Registry::default().with(filter), || {
                assert!(tracing::info_span!(target: trace::PROCESS, "start").is_disabled());
            });
        }
    }

    #[test]
    fn a_word_that_is_not_a_level_is_refused() {
        assert_eq!(level("INFO"), Ok("info".to_owned()));
        assert_eq!(level("warn,skein_router=debug"), Ok("warn,skein_router=debug".to_owned()));
        assert!(level("banana").is_err_and(|reason| reason.contains("error, warn, info, debug, trace")));
        assert!(level("inof").is_err_and(|reason| reason.ends_with("did you mean info?")));
        assert!(level(" ").is_err());
    }

    #[test]
    fn a_bad_level_is_refused_with_an_example() {
        let options = LogOptions {
            format: LogFormat::Human,
            level: Some("a=b=c".into()),
            process: String::new(),
            otlp: None,
        };
        let error = init(&options).expect_err("no such level").to_string();
        assert!(error.contains("`a=b=c`") && error.contains("info,skein_router=debug"), "{error}");
    }
}
