//! Sends a file of requests with a limited number in flight, and appends each answer as it arrives.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use skein_node::clock;
use tokio::io::AsyncBufRead;

use super::input::{InputError, Item, Lines};
use super::output::{Known, Output, OutputError};
use super::{Answer, Answerer};

/// Delay before the first retry; doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// Longest delay, whatever `Retry-After` requests.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// How often an answer that waits for room on the disk is written again.
const ROOM_POLL: Duration = Duration::from_secs(1);

/// Limits of a batch run.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Most requests in flight.
    pub at_once: usize,
    /// How long a request is retried while the server is full or unreachable; then the run ends.
    pub retry_for: Duration,
    /// Whether [`count`] has read the whole input, so that no `custom_id` is repeated. If not, at least 16
    /// bytes per line are kept.
    pub checked: bool,
    /// Whether answers wait for room on a full disk; otherwise the run ends. While they wait, no further line
    /// is sent, so at most `at_once` answers are in memory.
    pub waits_for_room: bool,
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines answered by an earlier run.
    pub before: u64,
    /// Lines with a successful answer.
    pub answered: u64,
    /// Lines that could not be sent or were refused.
    pub failed: u64,
    /// Output tokens of the answers.
    pub output_tokens: u64,
}

impl Progress {
    /// Lines with an output line.
    pub fn done(&self) -> u64 {
        self.before + self.answered + self.failed
    }
}

impl Progress {
    fn add(&mut self, settled: &Settled) {
        let Settled::Answer(answer) = settled else {
            self.failed += 1;
            return;
        };
        let count = if answer.status < 400 { &mut self.answered } else { &mut self.failed };
        *count += 1;
        self.output_tokens += answer.body["usage"]["completion_tokens"].as_u64().unwrap_or(0);
    }
}

/// Why a run ended early. Answers so far are kept.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The input is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The answers cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The output holds an answer to a different request with the same `custom_id`.
    #[error(
        "line {number} of the input differs from the line that the output's answer to `{custom_id}` belongs to; \
             give another output file, or restore the line"
    )]
    Changed {
        /// Number of the line, from 1.
        number: u64,
        /// `custom_id` of the line.
        custom_id: String,
    },
    /// The server did not recover in time.
    #[error("no answer to `{custom_id}` for {seconds} s: {reason}; run the same command again to continue")]
    Unanswered {
        /// `custom_id` of the request.
        custom_id: String,
        /// How long it was retried, in seconds.
        seconds: u64,
        /// Error of the last attempt.
        reason: String,
    },
}

/// Processes every line of `input` without an answer in `output`; reports progress after each.
///
/// # Errors
/// If a line is invalid, the output cannot be written, or the server stays unreachable. Lines in flight are
/// then dropped and sent again by the next run.
pub async fn run<R: AsyncBufRead + Unpin>(
    input: R,
    output: &mut Output,
    answerer: &dyn Answerer,
    pace: Pace,
    mut report: impl FnMut(Progress),
) -> Result<Progress, RunError> {
    let mut lines = Lines::new(input);
    let mut progress = Progress::default();
    let mut in_flight = FuturesUnordered::new();
    let mut names = std::collections::HashSet::new();
    let mut unwritten: VecDeque<(Item, Settled)> = VecDeque::new();
    let mut at_end = false;
    loop {
        while !at_end && unwritten.is_empty() && in_flight.len() < pace.at_once {
            let Some((number, item)) = lines.next().await? else {
                at_end = true;
                break;
            };
            if !pace.checked && !names.insert(name_hash(&item)) {
                return Err(InputError::Repeated { number, custom_id: item.custom_id }.into());
            }
            match output.known(&item) {
                Known::Done => progress.before += 1,
                Known::Changed => return Err(RunError::Changed { number, custom_id: item.custom_id }),
                Known::Open => in_flight.push(settle(item, answerer, pace.retry_for)),
            }
        }
        // Requests in flight go on while answers wait for room.
        tokio::select! {
            Some((item, outcome)) = in_flight.next() => unwritten.push_back((item, outcome?)),
            () = tokio::time::sleep(ROOM_POLL), if !unwritten.is_empty() => {}
            else => break,
        }
        while let Some((item, settled)) = unwritten.front() {
            match settled.write(item, output) {
                Err(error) if pace.waits_for_room && error.is_disk_full() => break,
                other => other?,
            }
            progress.add(settled);
            unwritten.pop_front();
            report(progress);
        }
    }
    Ok(progress)
}

/// Counts the requests in `input` and checks that their ids are unique.
///
/// # Errors
/// If a line is invalid or repeats a `custom_id`.
pub async fn count<R: AsyncBufRead + Unpin>(input: R) -> Result<u64, InputError> {
    let mut lines = Lines::new(input);
    let mut names = std::collections::HashSet::new();
    while let Some((number, item)) = lines.next().await? {
        if !names.insert(name_hash(&item)) {
            return Err(InputError::Repeated { number, custom_id: item.custom_id });
        }
    }
    Ok(names.len() as u64)
}

fn name_hash(item: &Item) -> u128 {
    xxhash_rust::xxh3::xxh3_128(item.custom_id.as_bytes())
}

/// Outcome of a line.
enum Settled {
    /// Final response of the server.
    Answer(Answer),
    /// The line is invalid, for this reason.
    Unsent(String),
}

impl Settled {
    fn write(&self, item: &Item, output: &mut Output) -> Result<(), OutputError> {
        match self {
            Self::Answer(answer) => output.append(item, Some(answer), None),
            Self::Unsent(reason) => output.append(item, None, Some(reason)),
        }
    }
}

/// Sends `item` until the server gives a final response.
async fn settle(
    item: Item,
    answerer: &dyn Answerer,
    retry_for: Duration,
) -> (Item, Result<Settled, RunError>) {
    let call = match &item.call {
        Ok(call) => call,
        Err(reason) => {
            let reason = reason.clone();
            return (item, Ok(Settled::Unsent(reason)));
        }
    };
    let (key, start) = (item.key(), clock::now());
    let mut pause = MIN_PAUSE;
    loop {
        let (reason, asked) = match answerer.answer(call, &key).await {
            Ok(answer) if !answer.is_transient() => return (item, Ok(Settled::Answer(answer))),
            Ok(answer) => (format!("{} {}", answer.status, message(&answer)), answer.retry_after),
            Err(reason) => (reason, None),
        };
        let tried = clock::now().since(start);
        if tried >= retry_for {
            let custom_id = item.custom_id.clone();
            return (item, Err(RunError::Unanswered { custom_id, seconds: tried.as_secs(), reason }));
        }
        tracing::debug!(custom_id = item.custom_id, reason, "sending again");
        tokio::time::sleep(asked.unwrap_or(pause).clamp(MIN_PAUSE, MAX_PAUSE)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn message(answer: &Answer) -> &str {
    answer.body["error"]["message"].as_str().unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::super::Call;
    use super::*;

    /// Answers each request with its key after some failures, and counts concurrent ones.
    #[derive(Default)]
    struct Scripted {
        failures: AtomicUsize,
        running: AtomicUsize,
        most: AtomicUsize,
        sent: AtomicUsize,
    }

    impl Answerer for Scripted {
        fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>> {
            async move {
                let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(running, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.running.fetch_sub(1, Ordering::SeqCst);
                self.sent.fetch_add(1, Ordering::SeqCst);
                let left = self.failures.load(Ordering::SeqCst);
                if left > 0 {
                    self.failures.store(left - 1, Ordering::SeqCst);
                    let body = json!({"error": {"message": "no worker"}});
                    let busy = Answer { status: 503, request_id: String::new(), retry_after: None, body };
                    return if left.is_multiple_of(2) {
                        Ok(busy)
                    } else {
                        Err("connection reset".to_owned())
                    };
                }
                let status = if call.body["prompt"] == "bad" { 400 } else { 200 };
                let body = json!({"echo": key, "usage": {"completion_tokens": 3}});
                Ok(Answer { status, request_id: key.to_owned(), retry_after: None, body })
            }
            .boxed()
        }
    }

    fn input(count: usize) -> String {
        let line = |n: usize| {
            let prompt = if n % 10 == 3 { "bad" } else { "good" };
            json!({"custom_id": n.to_string(), "url": "/v1/completions", "body": {"prompt": prompt, "n": n}})
        };
        (0..count).map(|n| line(n).to_string() + "\n").collect()
    }

    fn pace() -> Pace {
        Pace { at_once: 4, retry_for: Duration::from_secs(60), checked: false, waits_for_room: false }
    }

    fn lines(path: &std::path::Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn every_line_is_answered_once_with_a_bounded_number_in_flight() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let mut output = Output::open(&path).unwrap();
        let server = Scripted { failures: AtomicUsize::new(7), ..Scripted::default() };
        let mut reports = Vec::new();
        let done =
            run(input(50).as_bytes(), &mut output, &server, pace(), |at| reports.push(at)).await.unwrap();
        assert_eq!((done.answered, done.failed, done.before, done.output_tokens), (45, 5, 0, 150));
        assert_eq!((reports.len(), reports.last()), (50, Some(&done)));
        assert_eq!((server.most.load(Ordering::SeqCst), server.sent.load(Ordering::SeqCst)), (4, 57));
        let names: HashSet<String> = lines(&path).iter().map(|line| line["custom_id"].to_string()).collect();
        assert_eq!((lines(&path).len(), names.len()), (50, 50));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_ended_anywhere_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let server = Scripted::default();
        for milliseconds in [1, 6, 11, 17, 40, 200] {
            let mut output = Output::open(&path).unwrap();
            let input = input(60);
            let run = run(input.as_bytes(), &mut output, &server, pace(), |_| {});
            // Dropping the run halfway has the effect of a kill.
            let _ = tokio::time::timeout(Duration::from_millis(milliseconds), run).await;
        }
        let names: HashSet<String> = lines(&path).iter().map(|line| line["custom_id"].to_string()).collect();
        assert_eq!((lines(&path).len(), names.len()), (60, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_away_ends_the_run_without_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let mut output = Output::open(&path).unwrap();
        let server = Scripted { failures: AtomicUsize::new(usize::MAX), ..Scripted::default() };
        let pace = Pace { retry_for: Duration::from_millis(5), ..pace() };
        let error = run(input(5).as_bytes(), &mut output, &server, pace, |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("run the same command again"), "{error}");
        assert!(lines(&path).is_empty());
    }

    #[tokio::test]
    async fn a_changed_or_repeated_line_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let mut output = Output::open(&path).unwrap();
        let server = Scripted::default();
        run(input(3).as_bytes(), &mut output, &server, pace(), |_| {}).await.unwrap();
        drop(output);
        let mut output = Output::open(&path).unwrap();
        let changed = input(3).replace("\"n\":1", "\"n\":9");
        let error = run(changed.as_bytes(), &mut output, &server, pace(), |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("line 2") && error.to_string().contains("`1`"), "{error}");
        let twice = input(3) + &input(1);
        let mut fresh = Output::open(&directory.path().join("twice.jsonl")).unwrap();
        let error = run(twice.as_bytes(), &mut fresh, &server, pace(), |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("line 4"), "{error}");
        let error = count(twice.as_bytes()).await.unwrap_err().to_string();
        assert!(error.contains("line 4") && error.contains("custom_id `0`"), "{error}");
        assert_eq!(count(input(7).as_bytes()).await.unwrap(), 7);
    }
}
