//! Positions of readers, and why a position may be out of range.

/// Where a reader starts in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplePosition {
    /// Index of the sample.
    pub index: u32,
    /// Position of the first token wanted, prompt included.
    pub from: u32,
}

/// Why a stream cannot be read from the given positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// The sample was not computed here, or not as part of this stream.
    #[error("sample {index} is not part of the stream kept here")]
    NoSample {
        /// Index of the sample.
        index: u32,
    },
    /// The tokens were dropped, or never computed here.
    #[error("sample {index} is kept from position {kept} on, not from {from}")]
    Tokens {
        /// Index of the sample.
        index: u32,
        /// First position requested.
        from: u32,
        /// First position available.
        kept: u32,
    },
    /// The sample ended before that position.
    #[error("sample {index} ended at position {end}, before {from}")]
    PastEnd {
        /// Index of the sample.
        index: u32,
        /// First position requested.
        from: u32,
        /// Position of its end.
        end: u32,
    },
    /// The prompt scores were dropped.
    #[error("prompt scores are kept from position {kept} on, not from {from}")]
    Scores {
        /// First position requested.
        from: u32,
        /// First position available.
        kept: u32,
    },
}

/// A reader's progress.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    /// Next position of each sample that it has not read to the end.
    pub samples: Vec<SamplePosition>,
    pub next_score: u32,
    /// The cache hit has been reported.
    pub started: bool,
}

impl Cursor {
    /// Whether nothing is left to read, now or later.
    pub fn is_done(&self) -> bool {
        self.samples.is_empty()
    }

    /// The first unfinished sample and its next position.
    pub fn place(&self) -> (u32, u32) {
        self.samples.first().map_or((0, 0), |at| (at.index, at.from))
    }

    /// Marks everything as read.
    pub fn end(&mut self) {
        self.samples.clear();
    }

    pub fn position(&self, index: u32) -> Option<u32> {
        self.samples.iter().find(|at| at.index == index).map(|at| at.from)
    }
}
