//! The report of a scenario: a table of counts and percentiles, and the requirements that failed.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::load::{Ended, Tally};
use crate::scenario::Plan;

/// Log message of a router when a request moves to another worker.
const MOVED: &str = "request continues on another worker";

/// The result of one scenario.
#[derive(Debug, Clone)]
pub struct Report {
    title: String,
    lines: Vec<(String, String)>,
    broken: Vec<String>,
}

impl Report {
    /// An empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), lines: Vec::new(), broken: Vec::new() }
    }

    /// Whether every requirement held.
    pub fn passed(&self) -> bool {
        self.broken.is_empty()
    }

    /// Adds a line to the table.
    pub fn say(&mut self, what: &str, value: impl fmt::Display) {
        self.lines.push((what.to_owned(), value.to_string()));
    }

    /// The value of line `what`; empty if there is none.
    pub fn value(&self, what: &str) -> &str {
        self.lines.iter().find(|(said, _)| said == what).map_or("", |(_, value)| value)
    }

    /// Records a failure, described by `otherwise`, unless `holds`.
    pub fn require(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(otherwise());
        }
    }

    /// Adds a line of percentiles; `most` bounds the 99th.
    pub fn gaps(&mut self, what: &str, mut gaps: Vec<Duration>, most: Option<Duration>) {
        gaps.sort_unstable();
        let (p50, p99) = (percentile(&gaps, 50), percentile(&gaps, 99));
        let max = gaps.last().copied().unwrap_or_default();
        let bound = most.map_or(String::new(), |most| format!(", p99 must be <= {} ms", most.as_millis()));
        let text = format!(
            "p50 {} p99 {} max {} ms over {} streams{bound}",
            p50.as_millis(),
            p99.as_millis(),
            max.as_millis(),
            gaps.len()
        );
        self.say(what, text);
        self.require(most.is_none_or(|most| p99 <= most), || format!("{what}: p99 {p99:?} is over {most:?}"));
    }

    /// Adds the results of the streams that moved between workers; `moves` counts moves by request id.
    pub fn moved(&mut self, moves: &HashMap<String, u32>, tally: &Tally, plan: &Plan) {
        let moved: Vec<&Ended> = tally.ended.iter().filter(|ended| moves.contains_key(&ended.id)).collect();
        self.say("streams moved", format!("{}, {} moves", moved.len(), moves.values().sum::<u32>()));
        self.gaps("longest gap, moved", moved.iter().map(|ended| ended.longest_gap).collect(), plan.gap_p99);
        let silence = moved.iter().map(|ended| ended.silence()).max().unwrap_or_default();
        let slowest = moved.iter().max_by_key(|ended| ended.silence()).map_or("", |ended| &ended.id);
        self.say("longest silence, moved", format!("{} ms ({slowest})", silence.as_millis()));
        let within = plan.silence.is_none_or(|most| silence <= most);
        self.require(within, || format!("a stream was silent for {silence:?}, over {:?}", plan.silence));
    }

    /// The same, and requires that some stream moved: otherwise the scenario tested nothing.
    pub fn must_have_moved(&mut self, moves: &HashMap<String, u32>, tally: &Tally, plan: &Plan) {
        self.moved(moves, tally, plan);
        self.require(!moves.is_empty(), || "no stream was hit, so this proves nothing".into());
    }

    /// Adds the results of all streams. Lost, duplicated or altered tokens and failed streams are failures.
    pub fn streams(&mut self, tally: &Tally) {
        let Tally { begun, failed, refused, lost, duplicated, altered, tokens, .. } = tally;
        self.say("streams", format!("{begun} ({tokens} tokens), {failed} failed, {refused} of them refused"));
        self.say("tokens", format!("{lost} lost, {duplicated} duplicated, {altered} altered"));
        if tally.left_out > 0 {
            self.say(
                "arrivals left out",
                format!("{}: the machine is too slow for this rate", tally.left_out),
            );
        }
        self.gaps("longest gap, all", tally.ended.iter().map(|ended| ended.longest_gap).collect(), None);
        self.gaps("first token, all", tally.ended.iter().filter_map(|ended| ended.ttft).collect(), None);
        let clean = failed + lost + duplicated + altered == 0;
        self.require(clean, || format!("streams changed:\n  {}", tally.differences.join("\n  ")));
        self.require(*begun > 0, || "no stream ran, so this proves nothing".into());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|(what, _)| what.len()).max().unwrap_or_default();
        writeln!(f, "{}", self.title)?;
        for (what, value) in &self.lines {
            writeln!(f, "  {what:width$}  {value}")?;
        }
        for broken in &self.broken {
            writeln!(f, "  BROKEN: {broken}")?;
        }
        write!(f, "  {}", if self.passed() { "passed" } else { "FAILED" })
    }
}

/// The smallest value that at least `percent` of `sorted` do not exceed; zero if empty.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Number of moves by request id, from a router's log in JSON lines.
pub fn moves(log: &str) -> HashMap<String, u32> {
    let mut moves = HashMap::new();
    for line in log.lines().filter(|line| line.contains(MOVED)) {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        if let (Some(MOVED), Some(id)) = (line["message"].as_str(), line["request"].as_str()) {
            *moves.entry(id.to_owned()).or_default() += 1;
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let seconds = |list: &[u64]| list.iter().map(|&s| Duration::from_secs(s)).collect::<Vec<_>>();
        let check = |list: &[u64], percent, expected| {
            assert_eq!(percentile(&seconds(list), percent), Duration::from_secs(expected));
        };
        check(&[], 99, 0);
        check(&[3], 50, 3);
        check(&[1, 2, 3, 4], 50, 2);
        check(&(1..=100).collect::<Vec<_>>(), 99, 99);
        check(&(1..=101).collect::<Vec<_>>(), 99, 100);
    }

    #[test]
    fn moves_are_read_from_the_log() {
        let line =
            r#"{"level":"INFO","message":"request continues on another worker","request":"a-1","moves":1}"#;
        let moves = moves(&format!("not json: {MOVED}\n{line}\n{line}\n"));
        assert_eq!(moves, HashMap::from([("a-1".to_owned(), 2)]));
    }
}
