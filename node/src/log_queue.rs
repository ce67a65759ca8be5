//! Log lines on their way to standard error. A thread writes them in batches, so that a line costs no system
//! call, and a reader of standard error that is slow or stuck delays nothing but the log.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes of lines that requests leave, of those that wait; more are counted and not kept.
const MAX_OF_REQUESTS: usize = 1 << 20;
/// Most bytes of lines that wait, so that requests leave room for other lines.
const MAX: usize = 2 << 20;
/// Time between batches: the longest that a line waits if its reader is quick.
const PAUSE: Duration = Duration::from_millis(5);

/// Lines on their way.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// All lines that had arrived are written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Lines that were not kept since the last batch.
    lost: u64,
    /// Whether the writer has taken lines that it has not yet written.
    is_writing: bool,
    /// Whether the writer waits for a line.
    writer_waits: bool,
}

impl LogQueue {
    /// Adds a line, which [`run`](Self::run) writes soon.
    pub fn push(&self, line: &[u8], is_of_request: bool) {
        let mut waiting = self.lock();
        if waiting.lines.len() + line.len() > if is_of_request { MAX_OF_REQUESTS } else { MAX } {
            waiting.lost += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        // Only a line after a pause wakes the writer, which then waits for more.
        if std::mem::take(&mut waiting.writer_waits) {
            self.arrived.notify_one();
        }
    }

    /// Waits until all lines so far are written, for at most `at_most`; returns whether they are.
    pub fn flush(&self, at_most: Duration) -> bool {
        let are_left = |waiting: &mut Waiting| !waiting.lines.is_empty() || waiting.is_writing;
        let waited = self.written.wait_timeout_while(self.lock(), at_most, are_left);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Writes lines to `out` as they come, forever. `on_lost` is told how many were lost.
    pub fn run(&self, mut out: impl Write, on_lost: impl Fn(u64)) -> ! {
        loop {
            let mut waiting = self.lock();
            while waiting.lines.is_empty() && waiting.lost == 0 {
                waiting.writer_waits = true;
                waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.writer_waits = false;
            let (lines, lost) = (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.lost));
            waiting.is_writing = true;
            drop(waiting);
            // A full disk must not end a server. If the error were returned, the subscriber would report it
            // with a macro that panics when it cannot write to standard error.
            let _ = out.write_all(&lines);
            if lost > 0 {
                on_lost(lost);
            }
            self.lock().is_writing = false;
            self.written.notify_all();
            // Lets lines gather.
            std::thread::sleep(PAUSE);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Hands each write to the test, and waits until it is taken.
    struct Handed(SyncSender<String>);

    impl Write for Handed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !bytes.is_empty() {
                let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A queue whose writer hands over what it writes, and numbers of lost lines.
    fn queue() -> (Arc<LogQueue>, Receiver<String>) {
        let (handed, taken) = sync_channel(0);
        let queue = Arc::new(LogQueue::default());
        let (writer, said) = (queue.clone(), handed.clone());
        let on_lost = move |lost: u64| said.send(lost.to_string()).expect("the test waits");
        std::thread::spawn(move || writer.run(Handed(handed), on_lost));
        (queue, taken)
    }

    #[test]
    fn lines_keep_their_order() {
        let (queue, taken) = queue();
        let lines: Vec<String> = (0..100).map(|nth| format!("{nth}\n")).collect();
        lines.iter().for_each(|line| queue.push(line.as_bytes(), line.len() % 2 == 0));
        let mut written = String::new();
        while written.len() < lines.concat().len() {
            written += &taken.recv().expect("a batch");
        }
        assert_eq!(written, lines.concat());
        assert!(queue.flush(Duration::from_secs(60)));
    }

    #[test]
    fn a_stuck_reader_delays_nobody_and_each_line_is_written_or_counted() {
        const LINE: [u8; 1024] = [b'x'; 1024];
        let (queue, taken) = queue();
        let pushed = 3 * MAX / LINE.len();
        // Nothing is taken yet, so at most one batch leaves the queue.
        (0..pushed).for_each(|_| queue.push(&LINE, true));
        queue.push(b"important\n", false);
        assert!(!queue.flush(Duration::from_millis(20)), "nobody reads");
        let (mut written, mut lost, mut text) = (0, 0, String::new());
        while written + lost < pushed || !text.ends_with("important\n") {
            let news = taken.recv().expect("a batch or a count");
            match news.parse::<usize>() {
                Ok(count) => lost += count,
                Err(_) => {
                    written += news.len() / LINE.len();
                    text = news;
                }
            }
        }
        assert_eq!(written + lost, pushed);
        assert!(lost > 0 && written <= 2 * MAX_OF_REQUESTS / LINE.len(), "{written} written");
    }
}
