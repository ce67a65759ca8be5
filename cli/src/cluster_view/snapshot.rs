//! A cluster at one moment, as `/v1/cluster` tells it. Fields that another release lacks are zero or empty.

use serde::Deserialize;
use serde_json::Value;

/// Longest step that is printed, seconds.
const MOST_SECONDS: f64 = 9999.0;

/// The cluster of one router.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Seconds since 1970.
    pub time: f64,
    /// Name of the model; `None` if the key may not use it.
    pub model: Option<String>,
    /// Version of the model that new requests go to, if workers say it.
    pub model_version: Option<String>,
    /// Release of the router.
    pub version: String,
    /// Whether the router shuts down.
    pub draining: bool,
    /// Whether whoever asked may give orders.
    pub admin: bool,
    /// Counts since the start.
    pub totals: Totals,
    /// The workers.
    pub workers: Vec<Worker>,
    /// The latest moves, the newest first.
    pub moves: Vec<Move>,
    /// The latest requests, the newest first.
    pub requests: Vec<Request>,
    /// The models of a server of several; empty = it has one.
    pub models: Vec<Model>,
}

/// One of several models.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// Where it is.
    pub status: Stage,
    /// What it takes in memory by its plan, in bytes.
    pub memory_bytes: u64,
}

/// Where a model is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// `loaded`, `unloaded`, or on its way.
    pub value: String,
    /// Requests that use the model or wait for it.
    pub requests: u64,
    /// Why it was not loaded.
    pub reason: Option<String>,
}

/// Counts of the router since its start.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the names say it
pub struct Totals {
    pub requests: u64,
    pub moves: u64,
    pub prompt_tokens: u64,
    pub cached_prompt_tokens: u64,
    pub output_tokens: u64,
    pub requests_in_flight: u64,
}

/// One worker.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// Whether it is a router, as at a gateway.
    pub router: bool,
    /// Whether it takes requests.
    pub ready: bool,
    /// `ready`, or why not.
    pub state: String,
    /// Version of its model.
    pub model_version: Option<String>,
    /// Its KV blocks.
    pub blocks: Blocks,
    /// Sequences that run.
    pub running: u64,
    /// Sequences that wait.
    pub waiting: u64,
    /// Time of a step; 0 before the first.
    pub step_seconds: f64,
    /// Prompt tokens since its start.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_prompt_tokens: u64,
    /// Tokens generated since its start.
    pub output_tokens: u64,
}

/// KV blocks of a worker by what they are used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the names say it
pub struct Blocks {
    pub total: u64,
    pub held: u64,
    pub shared: u64,
    pub cached: u64,
    pub free: u64,
}

/// A move of a request between workers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the names say it
pub struct Move {
    pub time: f64,
    pub request: String,
    pub from: Option<String>,
    pub to: Option<String>,
    pub reason: String,
    pub tokens: u64,
}

/// A request that has ended.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the names say it
pub struct Request {
    pub id: String,
    pub status: u64,
    pub outcome: String,
    pub code: Option<String>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub ttft_seconds: Option<f64>,
    pub seconds: f64,
    pub workers: Vec<String>,
}

impl Snapshot {
    /// Reads what the server says. Control characters are replaced: they would be orders to the terminal.
    ///
    /// # Errors
    /// If it has another form.
    pub fn read(mut answer: Value) -> Result<Self, serde_json::Error> {
        make_printable(&mut answer);
        serde_json::from_value(answer)
    }

    /// Name and version of the model, or how many of several are in memory.
    pub fn title(&self) -> (String, &str) {
        let version = self.model_version.as_deref().unwrap_or("-");
        let in_memory = self.models.iter().filter(|model| model.status.value == "loaded").count();
        let name = match (&self.model, self.models.len()) {
            (Some(name), _) => name.clone(),
            (None, 0) => "(no model of this key)".to_owned(),
            (None, count) => format!("{in_memory} of {count} models in memory"),
        };
        (name, version)
    }

    /// Workers that take requests.
    pub fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ready).count()
    }
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{FFFD}");
        }
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        _ => {}
    }
}

/// Time of a step; a dash before the first.
pub fn step(seconds: f64) -> String {
    if seconds > 0.0 { format!("{:.1} ms", 1e3 * seconds.min(MOST_SECONDS)) } else { "-".to_owned() }
}

/// `part` of `whole` in percent; a dash if there is nothing to divide.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0}%", 100.0 * part as f64 / whole as f64) }
}

/// What `after` counts more than `before`, a second. A process that started again counts from 0.
pub fn per_second(before: u64, after: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { after.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_release_leaves_out_is_empty() {
        let snapshot: Snapshot =
            serde_json::from_str(r#"{"workers": [{"id": "a", "ready": true}], "more": 1}"#)
                .expect("unknown and missing fields are no error");
        assert_eq!((snapshot.ready(), snapshot.workers[0].blocks), (1, Blocks::default()));
    }

    #[test]
    fn what_a_server_says_gives_no_orders_to_the_terminal() {
        let answer =
            serde_json::json!({"model": null, "workers": [{"id": "a\u{1b}[2J\n", "state": "\u{9b}c"}]});
        let snapshot = Snapshot::read(answer).expect("a snapshot");
        let worker = &snapshot.workers[0];
        assert_eq!((worker.id.as_str(), worker.state.as_str()), ("a\u{FFFD}[2J\u{FFFD}", "\u{FFFD}c"));
        assert_eq!(snapshot.title(), ("(no model of this key)".to_owned(), "-"));
        assert_eq!((step(1e300), step(0.0)), ("9999000.0 ms".to_owned(), "-".to_owned()));
    }

    #[test]
    fn parts_and_rates_are_of_something() {
        assert_eq!((percent(1, 4).as_str(), percent(1, 0).as_str()), ("25%", "-"));
        assert_eq!(
            (per_second(10, 30, 2.0), per_second(30, 10, 2.0), per_second(0, 1, 0.0)),
            (10.0, 0.0, 0.0)
        );
    }
}
