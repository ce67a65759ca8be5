//! The usage log: a line of JSON for each request, for bills. Requests hand their records to a thread by a
//! bounded queue, so that no disk delays or fails one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;
use skein_text::strftime::strftime;

/// Records that wait for the disk. Further ones are lost, and counted.
const QUEUE: usize = 16_384;
/// Records that are written at once.
const AT_ONCE: usize = 256;
/// Pause before a disk that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the disk.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// What a request has used.
#[derive(Debug, Clone)]
pub struct Usage {
    /// When it ended, since 1970.
    pub time: Duration,
    /// Its id.
    pub request: String,
    /// Name of its tenant; `None` = its key is not of the keys file.
    pub tenant: Option<Arc<str>>,
    /// Id of its key.
    pub key: Option<Arc<str>>,
    /// Model or adapter that it named.
    pub model: Arc<str>,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in a prefix cache.
    pub cached_tokens: u64,
    /// Output tokens of all samples.
    pub output_tokens: u64,
    /// Whether the counts are estimates, of servers that do not tell them.
    pub is_estimated: bool,
    /// How it ended: `completed`, `cancelled` or `failed`.
    pub outcome: &'static str,
    /// From its arrival to its end.
    pub duration: Duration,
}

impl Usage {
    fn line(&self) -> String {
        let (seconds, ms) = (Duration::from_secs(self.time.as_secs()), self.time.subsec_millis());
        let time = format!("{}.{ms:03}Z", strftime("%Y-%m-%dT%H:%M:%S", seconds));
        let mut object = json!({
            "time": time, "request": self.request, "tenant": self.tenant.as_deref(), "key": self.key.as_deref(),
            "model": &*self.model,
            "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens, "outcome": self.outcome,
            "duration_ms": u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
        });
        if self.is_estimated {
            object["estimated"] = true.into();
        }
        format!("{object}\n")
    }
}

/// The log; clones write to the same file. The thread ends with the last of them.
#[derive(Debug, Clone)]
pub struct UsageLog {
    queue: SyncSender<Order>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug)]
enum Order {
    Write(Box<Usage>),
    /// Answer once everything before is in the file.
    Flush(SyncSender<()>),
}

impl UsageLog {
    /// Appends to the file at `path`, which is made if need be, readable for this user only. A file that was
    /// renamed or removed is left, and a new one is made: log rotation needs no signal.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let target = Target { path: path.to_owned(), file: Some(open(path)?), is_warned: false };
        let (queue, orders) = sync_channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let thread = std::thread::Builder::new().name("usage-log".to_owned());
        let counting = counts.clone();
        thread.spawn(move || write_all(target, &orders, &counting))?;
        Ok(Self { queue, counts })
    }

    /// Hands a record over; never waits.
    pub fn add(&self, usage: Usage) {
        if self.queue.try_send(Order::Write(Box::new(usage))).is_err() {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that are in the file, and records that were lost.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.written.load(Ordering::Relaxed), self.counts.lost.load(Ordering::Relaxed))
    }

    /// Waits until all records so far are in the file; a while at most, because its disk may be full.
    pub fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        if self.queue.try_send(Order::Flush(done)).is_err()
            || is_done.recv_timeout(FLUSH_WITHIN) == Err(RecvTimeoutError::Timeout)
        {
            tracing::error!("the usage log is not complete: its disk has not taken the last lines");
        }
    }
}

fn write_all(mut target: Target, orders: &Receiver<Order>, counts: &Counts) {
    while let Ok(first) = orders.recv() {
        let (mut lines, mut count, mut flushes) = (String::new(), 0, Vec::new());
        for order in std::iter::once(first).chain(orders.try_iter()).take(AT_ONCE) {
            match order {
                Order::Write(usage) => {
                    lines.push_str(&usage.line());
                    count += 1;
                }
                Order::Flush(done) => flushes.push(done),
            }
        }
        while let Err(error) = target.append(lines.as_bytes()) {
            target.warn(&error);
            std::thread::sleep(AGAIN_AFTER);
        }
        counts.written.fetch_add(count, Ordering::Relaxed);
        for done in flushes {
            let _ = done.try_send(());
        }
    }
}

struct Target {
    path: PathBuf,
    file: Option<File>,
    is_warned: bool,
}

impl Target {
    /// Appends whole lines: all of them or none.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let file = match self.file.take().filter(|file| is_at(file, &self.path)) {
            Some(file) => self.file.insert(file),
            None => self.file.insert(open(&self.path)?),
        };
        let metadata = file.metadata()?;
        let end = metadata.len();
        // Else the first line would be lost with the half one before it.
        let begin: &[u8] = if metadata.is_file() && is_cut(&self.path, end) { b"\n" } else { b"" };
        file.write_all(&[begin, lines].concat()).inspect_err(|_| {
            // Half a line would spoil the next one.
            let _ = file.set_len(end);
        })?;
        if std::mem::take(&mut self.is_warned) {
            tracing::info!(path = %self.path.display(), "the usage log is written again");
        }
        Ok(())
    }

    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_warned, true) {
            tracing::warn!(path = %self.path.display(), %error, "the usage log cannot be written; trying again");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Whether the last line of the file at `path` has no end: a killed process or a full disk cut it.
fn is_cut(path: &Path, bytes: u64) -> bool {
    let mut last = *b"\n";
    let read = |at: u64| File::open(path).and_then(|file| file.read_exact_at(&mut last, at));
    bytes.checked_sub(1).map(read).is_some_and(|read| read.is_ok()) && last != *b"\n"
}

/// Whether `file` is still the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((&file.metadata(), &std::fs::metadata(path)), (Ok(one), Ok(other)) if id(one) == id(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(request: &str) -> Usage {
        Usage {
            time: Duration::from_millis(1_795_957_200_007),
            request: request.to_owned(),
            tenant: Some("acme".into()),
            key: Some("ci".into()),
            model: "m".into(),
            prompt_tokens: 10,
            cached_tokens: 4,
            output_tokens: 7,
            is_estimated: false,
            outcome: "completed",
            duration: Duration::from_micros(1500),
        }
    }

    fn requests(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let name = |line: &str| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            object["request"].as_str().unwrap().to_owned()
        };
        text.lines().map(name).collect()
    }

    #[test]
    fn a_line_has_everything_but_text() {
        let expected = r#"{"cached_tokens":4,"duration_ms":1,"key":"ci","model":"m","outcome":"completed","output_tokens":7,"prompt_tokens":10,"request":"r","tenant":"acme","time":"2026-11-29T13:00:00.007Z"}"#;
        let line: serde_json::Value = serde_json::from_str(&usage("r").line()).unwrap();
        assert_eq!(line, serde_json::from_str::<serde_json::Value>(expected).unwrap());
        assert!(usage("r").line().ends_with("}\n"));
        let estimated = Usage { is_estimated: true, ..usage("r") }.line();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&estimated).unwrap()["estimated"], true);
    }

    #[test]
    fn lines_are_appended_and_a_renamed_file_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("usage.jsonl"), directory.path().join("usage.jsonl.1"));
        std::fs::write(&path, "{\"request\":\"before\"}\n").unwrap();
        let log = UsageLog::open(&path).unwrap();
        log.add(usage("a"));
        log.flush();
        std::fs::rename(&path, &old).unwrap();
        ["b", "c"].into_iter().for_each(|name| log.add(usage(name)));
        log.flush();
        assert_eq!(requests(&old), ["before", "a"]);
        assert_eq!(requests(&path), ["b", "c"]);
        assert_eq!(log.counts(), (3, 0));
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn half_a_line_at_the_end_of_the_file_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage.jsonl");
        std::fs::write(&path, "{\"request\":\"before\"}\n{\"requ").unwrap();
        let log = UsageLog::open(&path).unwrap();
        ["a", "b"].into_iter().for_each(|name| {
            log.add(usage(name));
            log.flush();
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[1], "{\"requ");
        assert!(lines[2].contains("\"request\":\"a\"") && lines[3].contains("\"request\":\"b\""), "{text}");
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_records_beyond_the_queue_and_no_wait() {
        // Every write to this device fails as on a full disk.
        let full = Target {
            path: "/dev/full".into(),
            file: Some(OpenOptions::new().write(true).open("/dev/full").unwrap()),
            is_warned: false,
        };
        let (queue, orders) = sync_channel(QUEUE);
        let log = UsageLog { queue, counts: Arc::default() };
        let counting = log.counts.clone();
        std::thread::spawn(move || write_all(full, &orders, &counting));
        for _ in 0..QUEUE + AT_ONCE + 100 {
            log.add(usage("r"));
        }
        let (written, lost) = log.counts();
        assert_eq!(written, 0);
        assert!((100..=100 + AT_ONCE as u64).contains(&lost), "{lost}");
    }
}
