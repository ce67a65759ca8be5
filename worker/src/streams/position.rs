//! Where readers are, and where they cannot be.

/// From where a reader wants one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplePosition {
    /// Which sample.
    pub index: u32,
    /// Absolute position of the first token wanted.
    pub from: u32,
}

/// Positions that are not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// It was never computed here, or not as part of this stream.
    #[error("sample {index} is not part of the stream kept here")]
    NoSample {
        /// Which.
        index: u32,
    },
    /// Forgotten, or never computed here.
    #[error("sample {index} is kept from position {kept} on, not from {from}")]
    Tokens {
        /// Which.
        index: u32,
        /// First position asked for.
        from: u32,
        /// First position there is.
        kept: u32,
    },
    /// It ended before.
    #[error("sample {index} ended at position {end}, before {from}")]
    PastEnd {
        /// Which.
        index: u32,
        /// First position asked for.
        from: u32,
        /// Where it ended.
        end: u32,
    },
    /// Forgotten.
    #[error("prompt scores are kept from position {kept} on, not from {from}")]
    Scores {
        /// First position asked for.
        from: u32,
        /// First position there is.
        kept: u32,
    },
}

/// Where one reader is.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    /// The next position of each sample that it has not read to its end.
    pub samples: Vec<SamplePosition>,
    pub next_score: u32,
    /// The cache hit is told.
    pub started: bool,
}

impl Cursor {
    /// Whether there is nothing left to read, ever.
    pub fn is_done(&self) -> bool {
        self.samples.is_empty()
    }

    /// The first sample it still reads, and where.
    pub fn place(&self) -> (u32, u32) {
        self.samples.first().map_or((0, 0), |at| (at.index, at.from))
    }

    /// Reads no more.
    pub fn end(&mut self) {
        self.samples.clear();
    }

    pub fn position(&self, index: u32) -> Option<u32> {
        self.samples.iter().find(|at| at.index == index).map(|at| at.from)
    }
}
