//! Lines that each request leaves in the log. A thread writes them in batches, so that a request costs no
//! system call, and a slow reader of standard error delays no request.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes that wait; more lines are counted and not kept.
const MAX_BYTES: usize = 1 << 20;
/// Time between batches: the longest that a line waits if its reader is quick.
const PAUSE: Duration = Duration::from_millis(5);

/// Lines on their way to `W`.
#[derive(Debug)]
pub(crate) struct LogQueue<W> {
    /// Held while lines are written, so that they keep their order.
    out: Mutex<W>,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Lines that were not kept since the last batch.
    lost: u64,
    /// Whether the writer waits for a line.
    writer_waits: bool,
}

impl<W: Write> LogQueue<W> {
    pub fn new(out: W) -> Self {
        Self { out: Mutex::new(out), waiting: Mutex::default(), arrived: Condvar::new() }
    }

    /// Adds a line, which [`run`](Self::run) writes soon.
    pub fn push(&self, line: &[u8]) {
        let mut waiting = lock(&self.waiting);
        if waiting.lines.len() + line.len() > MAX_BYTES {
            waiting.lost += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        // Only a line after a pause wakes the writer, which then waits for more.
        if std::mem::take(&mut waiting.writer_waits) {
            self.arrived.notify_one();
        }
    }

    /// Writes all lines that wait, and `line` behind them.
    pub fn write(&self, line: &[u8]) {
        let mut out = lock(&self.out);
        let mut lines = std::mem::take(&mut lock(&self.waiting).lines);
        lines.extend_from_slice(line);
        if !lines.is_empty() {
            // A full disk must not end a server. If the error were returned, the subscriber would report it
            // with a macro that panics when it cannot write to standard error.
            let _ = out.write_all(&lines);
        }
    }

    /// Writes lines as they come, forever. `on_lost` is told how many were lost.
    pub fn run(&self, on_lost: impl Fn(u64)) -> ! {
        loop {
            let mut waiting = lock(&self.waiting);
            while waiting.lines.is_empty() && waiting.lost == 0 {
                waiting.writer_waits = true;
                waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.writer_waits = false;
            let lost = std::mem::take(&mut waiting.lost);
            drop(waiting);
            self.write(&[]);
            if lost > 0 {
                on_lost(lost);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (Arc<LogQueue<Handed>>, Receiver<String>) {
        let (handed, taken) = sync_channel(0);
        (Arc::new(LogQueue::new(Handed(handed))), taken)
    }

    #[test]
    fn lines_keep_their_order_and_go_together() {
        let (queue, taken) = queue();
        queue.push(b"a\n");
        queue.push(b"b\n");
        let writer = queue.clone();
        let written = std::thread::spawn(move || writer.write(b"at once\n"));
        assert_eq!(taken.recv().expect("a write"), "a\nb\nat once\n");
        written.join().expect("no panic");
    }

    #[test]
    fn a_slow_reader_delays_nobody_and_each_line_is_written_or_counted() {
        const LINE: [u8; 1024] = [b'x'; 1024];
        let (queue, taken) = queue();
        // Nothing is taken yet, so at most one batch leaves the queue.
        let (writer, said) = (queue.clone(), lock(&queue.out).0.clone());
        std::thread::spawn(move || writer.run(|lost| said.send(lost.to_string()).expect("the test waits")));
        let pushed = 3 * MAX_BYTES / LINE.len();
        (0..pushed).for_each(|_| queue.push(&LINE));
        let (mut written, mut lost) = (0, 0);
        while written + lost < pushed {
            let news = taken.recv().expect("a batch or a count");
            match news.parse::<usize>() {
                Ok(count) => lost += count,
                Err(_) => written += news.len() / LINE.len(),
            }
        }
        assert_eq!(written + lost, pushed);
        assert!(lost > 0 && written <= 2 * MAX_BYTES / LINE.len(), "{written} written");
    }
}
