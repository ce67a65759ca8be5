//! Shows how far the weights of all workers have loaded: a bar on a terminal, else a log line per tenth.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Progress of all workers together.
#[derive(Debug)]
pub struct LoadProgress {
    workers: Vec<(u64, u64)>,
    bar: Option<ProgressBar>,
    tenths: u64,
}

impl LoadProgress {
    /// Starts at zero for each of `workers`.
    pub fn new(workers: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "  loading {bar:32} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
            );
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { workers: vec![(0, 0); workers], bar, tenths: 0 }
    }

    /// Records that `worker` has read `done` of `total` bytes.
    pub fn update(&mut self, worker: usize, done: u64, total: u64) {
        if let Some(slot) = self.workers.get_mut(worker) {
            *slot = (done, total);
        }
        let done: u64 = self.workers.iter().map(|(done, _)| done).sum();
        // All workers load the same model, so one that has not reported yet has the same total.
        let most = self.workers.iter().map(|(_, total)| *total).max().unwrap_or(0);
        let total = most.saturating_mul(self.workers.len() as u64);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        } else if let Some(tenths) = passed_a_tenth(self.tenths, done, total) {
            self.tenths = tenths;
            tracing::info!(percent = tenths * 10, bytes = done, of_bytes = total, "loading weights");
        }
    }

    /// Removes the bar from the terminal.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The tenths done, if more than `last`.
fn passed_a_tenth(last: u64, done: u64, total: u64) -> Option<u64> {
    let tenths = done.saturating_mul(10).checked_div(total)?;
    (tenths > last).then_some(tenths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenth_is_reported_once() {
        let mut said = Vec::new();
        for done in 0..=1000 {
            said.extend(passed_a_tenth(said.last().copied().unwrap_or(0), done, 1000));
        }
        assert_eq!(said, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(passed_a_tenth(0, 0, 0), None);
    }
}
