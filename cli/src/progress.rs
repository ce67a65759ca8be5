//! Progress of a download, or of several workers loading their weights: a bar on a terminal, otherwise a log
//! line at once and then every half minute. Of other work: a bar on a terminal only.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use skein_hub::Progress;
use skein_node::clock::{self, Timestamp};

/// Time between two log lines.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Progress of all workers together.
#[derive(Debug)]
pub struct LoadProgress {
    workers: Vec<(u64, u64)>,
    bar: Option<ProgressBar>,
    last_line: Option<Timestamp>,
}

impl LoadProgress {
    /// Starts at zero for each of `workers`.
    pub fn new(workers: usize) -> Self {
        Self { workers: vec![(0, 0); workers], bar: bar("loading"), last_line: None }
    }

    /// Records that `worker` has read `done` of `total` bytes.
    pub fn update(&mut self, worker: usize, done: u64, total: u64) {
        if let Some(slot) = self.workers.get_mut(worker) {
            *slot = (done, total);
        }
        let (done, total) = self.of_the_model();
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        } else if done < total && is_due(&mut self.last_line, clock::now()) {
            tracing::info!(workers = self.workers.len(), bytes = done, of_bytes = total, "loading weights");
        }
    }

    /// Loaded bytes of the model, averaged over the workers, and their total. All workers load the same
    /// model, so a worker that has not reported yet has the same total.
    fn of_the_model(&self) -> (u64, u64) {
        let done: u64 = self.workers.iter().map(|(done, _)| done).sum();
        let total = self.workers.iter().map(|(_, total)| *total).max().unwrap_or(0);
        (done / (self.workers.len() as u64).max(1), total)
    }

    /// Removes the bar from the terminal.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Progress of a download: a bar on a terminal, otherwise the same log lines as for loading.
#[derive(Debug)]
pub struct DownloadProgress {
    bar: Option<ProgressBar>,
    last_line: Mutex<Option<Timestamp>>,
}

impl DownloadProgress {
    /// Shows nothing until the first update: a model that is already here needs no bar.
    pub fn new() -> Self {
        Self { bar: bar("downloading"), last_line: Mutex::new(None) }
    }

    /// Records how far the download is.
    pub fn update(&self, Progress { done, total }: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        } else if is_due(&mut self.last_line.lock().unwrap_or_else(PoisonError::into_inner), clock::now()) {
            tracing::info!(bytes = done, of_bytes = total, "downloading");
        }
    }

    /// Removes the bar from the terminal.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar of `length` steps on a terminal, else nothing.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

/// A bar of bytes, if standard error is a terminal.
fn bar(what: &str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let template =
            format!("  {what} {{bar:32}} {{bytes}}/{{total_bytes}} {{bytes_per_sec}}, {{eta}} left");
        let style = ProgressStyle::with_template(&template);
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    })
}

/// Whether a line is due `now`; if so, it counts as written.
fn is_due(last: &mut Option<Timestamp>, now: Timestamp) -> bool {
    let is_due = last.is_none_or(|last| now.since(last) >= LINE_EVERY);
    if is_due {
        *last = Some(now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_model_whatever_the_number_of_workers() {
        let mut progress = LoadProgress { workers: vec![(0, 0); 2], bar: None, last_line: None };
        assert_eq!(progress.of_the_model(), (0, 0));
        progress.update(0, 100, 100);
        assert_eq!(progress.of_the_model(), (50, 100));
        progress.update(1, 40, 100);
        assert_eq!(progress.of_the_model(), (70, 100));
    }

    #[test]
    fn a_short_load_is_one_line_and_a_long_one_speaks_every_half_minute() {
        let start = clock::now();
        let mut last = None;
        let lines = (0..=65).filter(|second| is_due(&mut last, start + Duration::from_secs(*second)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 30, 60]);
    }
}
