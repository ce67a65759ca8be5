//! A process that runs a part of a group: what it says, and how it ends.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use skein_node::clock;

use super::stop::Stop;

/// Time between two looks at the clock and at signals.
const POLL: Duration = Duration::from_millis(50);
/// How long a process that was killed may take to end. The driver can keep one whose device is stuck.
const KILLED_WITHIN: Duration = Duration::from_secs(5);
/// Lines that may wait to be read.
const LINES: usize = 64;
/// Last lines of a process's standard error that are kept.
const ERROR_LINES: usize = 20;

/// What is known of a part of a group.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Names of its cases, in order.
    pub cases: Vec<String>,
    /// How many of them have started.
    pub started: usize,
    /// Its comparisons.
    pub outcomes: Vec<Value>,
    /// Why it ended before its last case was done.
    pub broken: Option<String>,
    /// The end of its standard error, if it is broken.
    pub error_lines: Vec<String>,
    /// Processor time, once it is done.
    pub cpu_seconds: Option<f64>,
    pub took: Duration,
    /// What the device said when it failed.
    error: Option<String>,
}

impl Found {
    /// A process that could not be started.
    fn unstarted(why: impl std::fmt::Display) -> Self {
        Self { broken: Some(format!("its process does not start: {why}")), ..Self::default() }
    }

    /// The cases that have not been started.
    pub fn not_reached(&self) -> &[String] {
        &self.cases[self.started.min(self.cases.len())..]
    }

    pub fn passed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome["passed"] == true).count()
    }

    /// Notes a line of the process; returns its comparison, if it is one.
    fn hear(&mut self, line: &str) -> Option<&Value> {
        let mut line: Value = serde_json::from_str(line).ok()?;
        if let Some(names) = line["cases"].as_array() {
            self.cases = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        } else if line["starts"].is_string() {
            self.started += 1;
        } else if line["name"].is_string() {
            self.outcomes.push(line.take());
            return self.outcomes.last();
        } else if let Some(error) = line["error"].as_str() {
            self.error = Some(error.to_owned());
        } else {
            self.cpu_seconds = line["cpu_seconds"].as_f64();
        }
        None
    }

    /// Where it ended, for a message.
    fn place(&self) -> String {
        let current = self.started.checked_sub(1).and_then(|at| self.cases.get(at));
        let before = match self.outcomes.len() {
            0 => "nothing was compared before".to_owned(),
            count => format!("{} of {count} comparisons before passed", self.passed()),
        };
        current.map_or_else(|| "before its first case".into(), |case| format!("in case `{case}`; {before}"))
    }
}

/// Runs `command` for at most `limit`; calls `show` with each comparison.
pub(super) fn run(mut command: Command, limit: Duration, stop: &Stop, show: &dyn Fn(&Value)) -> Found {
    let start = clock::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Found::unstarted(error),
    };
    let (lines, errors) = (read_lines(&mut child), read_errors(&mut child));
    let mut found = Found::default();
    let given_up = loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => {
                if let Some(outcome) = found.hear(&line) {
                    show(outcome);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop.is_asked() {
            break Some("the check was ended by a signal".to_owned());
        }
        if clock::now() - start > limit {
            break Some(format!("it did not end within {} s (--group-timeout)", limit.as_secs()));
        }
    };
    let ended = end(&mut child, given_up.is_some());
    found.took = clock::now() - start;
    let is_done = ended.is_some_and(|status| status.success()) && found.cpu_seconds.is_some();
    if let Some(why) = given_up.or_else(|| (!is_done).then(|| why(&found, ended))) {
        let left = if ended.is_none() { "; the driver keeps its process" } else { "" };
        found.broken = Some(format!("{why} {}{left}", found.place()));
        // A process that does not end keeps its standard error open.
        found.error_lines = ended.and_then(|_| errors.join().ok()).unwrap_or_default();
    }
    found
}

/// How a process ended that was left alone.
fn why(found: &Found, ended: Option<ExitStatus>) -> String {
    let status = ended.map(|status| (status.signal(), status.code()));
    match (&found.error, status) {
        (Some(error), _) => error.clone(),
        (None, Some((Some(signal), _))) => format!("its process was ended by signal {signal}"),
        (None, Some((None, Some(code)))) => format!("its process ended with exit code {code}"),
        (None, _) => "its process closed its output".to_owned(),
    }
}

/// Waits for a process, and kills it first if `is_killed`. `None` if it is still there after
/// [`KILLED_WITHIN`].
fn end(child: &mut Child, is_killed: bool) -> Option<ExitStatus> {
    let start = clock::now();
    if is_killed {
        // If it has already ended, there is nothing to kill.
        let _ = child.kill();
    }
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if clock::now() - start > KILLED_WITHIN {
            let _ = child.kill();
            return child.try_wait().ok().flatten();
        }
        std::thread::sleep(POLL / 10);
    }
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (send, lines) = sync_channel(LINES);
    let output = child.stdout.take();
    std::thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
        // If the receiver is gone, nobody wants the rest.
        let _ = lines.map_while(Result::ok).try_for_each(|line| send.send(line));
    });
    lines
}

fn read_errors(child: &mut Child) -> JoinHandle<Vec<String>> {
    let output = child.stderr.take();
    std::thread::spawn(move || {
        let mut last = VecDeque::new();
        for line in output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n')) {
            let Ok(line) = line else { break };
            if last.len() == ERROR_LINES {
                last.pop_front();
            }
            last.push_back(String::from_utf8_lossy(&line).into_owned());
        }
        last.into()
    })
}
