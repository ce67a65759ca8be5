//! The sizes that decode steps are padded to, and their captured CUDA graphs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use skein_kernels::cuda::Graph;

/// Sizes up to 256; beyond that every 128.
const SIZES: [usize; 13] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const STRIDE: usize = 128;

/// Sizes of decode steps for up to `max_num_seqs` sequences, ascending; the last one holds them all.
pub(super) fn sizes(max_num_seqs: usize) -> Vec<usize> {
    let beyond = (1..).map(|i| SIZES[SIZES.len() - 1] + i * STRIDE);
    let mut sizes: Vec<usize> =
        SIZES.into_iter().chain(beyond).take_while(|size| *size < max_num_seqs).collect();
    sizes.push(max_num_seqs);
    sizes
}

/// Graphs by size. Steps without a captured graph run kernel by kernel with the same padding, so their bits
/// are the same.
pub(super) struct Graphs {
    sizes: Vec<usize>,
    captured: Vec<Graph>,
    /// Number of sizes, smallest first, that get a graph.
    wanted: usize,
    progress: Arc<CaptureProgress>,
}

/// How far the captures are, for readers on other threads.
#[derive(Debug, Default)]
pub(super) struct CaptureProgress {
    captured: AtomicUsize,
    refusal: OnceLock<String>,
}

impl CaptureProgress {
    /// Number of captured graphs.
    pub fn captured(&self) -> usize {
        self.captured.load(Ordering::Acquire)
    }

    /// The first error of a capture, after which graphs are captured in a simpler form or no more.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }

    pub(super) fn refuse(&self, why: String) {
        let _ = self.refusal.set(why); // the first one stays
    }
}

impl Graphs {
    /// Graphs for up to `max_num_seqs` sequences, or none with `enforce_eager`.
    pub fn new(max_num_seqs: usize, enforce_eager: bool) -> Self {
        let sizes = sizes(max_num_seqs);
        let wanted = if enforce_eager { 0 } else { sizes.len() };
        Self { sizes, captured: Vec::with_capacity(wanted), wanted, progress: Arc::default() }
    }

    /// The size to which `rows` rows are padded.
    pub fn size_for(&self, rows: usize) -> usize {
        let index = self.sizes.partition_point(|size| *size < rows);
        *self.sizes.get(index).unwrap_or_else(|| panic!("{rows} decoding rows are within {:?}", self.sizes))
    }

    /// The graph of `size`, if captured.
    pub fn captured(&self, size: usize) -> Option<&Graph> {
        self.captured.get(self.sizes.binary_search(&size).ok()?)
    }

    /// Whether none is captured yet.
    pub fn is_empty(&self) -> bool {
        self.captured.is_empty()
    }

    /// The next size to capture, the smallest without a graph.
    pub fn next_size(&self) -> Option<usize> {
        (self.captured.len() < self.wanted).then(|| self.sizes[self.captured.len()])
    }

    /// Stores the graph of [`next_size`](Self::next_size).
    pub fn put(&mut self, size: usize, graph: Graph) {
        assert_eq!(self.next_size(), Some(size), "graphs come in the order of their sizes");
        self.captured.push(graph);
        self.progress.captured.store(self.captured.len(), Ordering::Release);
    }

    /// Captures no more graphs; the sizes without one run kernel by kernel.
    pub fn give_up(&mut self) {
        self.wanted = self.captured.len();
    }

    /// The progress, shared with readers.
    pub fn progress(&self) -> Arc<CaptureProgress> {
        Arc::clone(&self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_to_the_largest_step() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(5), [1, 2, 4, 5]);
        assert_eq!(sizes(256).last_chunk(), Some(&[192, 256]));
        assert_eq!(sizes(600).last_chunk(), Some(&[256, 384, 512, 600]));
        let graphs = Graphs::new(40, true);
        let padded: Vec<usize> = [1, 2, 3, 9, 25, 33, 40].map(|rows| graphs.size_for(rows)).into();
        assert_eq!(padded, [1, 2, 4, 16, 32, 40, 40]);
        assert_eq!(graphs.next_size(), None);
        assert_eq!(Graphs::new(40, false).next_size(), Some(1));
    }
}
