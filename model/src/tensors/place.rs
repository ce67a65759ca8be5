//! Which rows or columns of a stored tensor are a tensor's outputs.

/// Outputs of a tensor within a stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Consecutive rows of the tensor.
    Rows,
    /// Rows that are this many apart.
    EveryRow(usize),
    /// Runs of consecutive rows.
    Runs {
        /// Rows of a run.
        len: usize,
        /// Rows from the start of a run to the next one's.
        every: usize,
    },
    /// Columns; each row is an input.
    Columns {
        /// Column of the first output.
        first: usize,
        /// Columns from one output to the next.
        every: usize,
    },
}

impl Place {
    /// Stored row of output `row`, if outputs are rows, counted from the first output's.
    pub fn row(self, row: usize) -> usize {
        match self {
            Self::Rows | Self::Columns { .. } => row,
            Self::EveryRow(every) => row * every,
            Self::Runs { len, every } => row / len * every + row % len,
        }
    }
}
