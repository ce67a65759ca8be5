//! Embedding lookup; `cu/embed.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 1024;
/// Values per thread and iteration.
const VALUES: usize = 4;

/// `out[row] = scale * table[tokens[row]]`, widened to `f32`.
#[derive(Debug, Clone, Copy)]
pub struct Embed<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`Embed`] launch.
#[derive(Debug, Clone, Copy)]
pub struct EmbedRows<T> {
    /// Result, `[rows, hidden]`.
    pub out: DeviceSlice<f32>,
    /// Embedding table, `[vocab, hidden]`.
    pub table: DeviceSlice<T>,
    /// `[rows]`; tokens outside the vocabulary read row 0, so that padding is harmless.
    pub tokens: DeviceSlice<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Values per row, a multiple of 4.
    pub hidden: usize,
    /// Factor of all values; 1 changes no bit.
    pub scale: f32,
}

impl<T: Activation> Embed<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "embed")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, embed: EmbedRows<T>) -> Result<(), CudaError> {
        let EmbedRows { out, table, tokens, rows, hidden, scale } = embed;
        assert!(
            hidden > 0 && hidden.is_multiple_of(VALUES),
            "hidden size {hidden} is not a multiple of {VALUES}"
        );
        let vocab = table.len() / hidden;
        assert!(vocab > 0, "a table of {} values has no row of {hidden}", table.len());
        assert!(out.len() >= rows * hidden && tokens.len() >= rows, "{rows} rows do not fit");
        if rows == 0 {
            return Ok(());
        }
        let threads = (hidden / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
        let args =
            Args::new().slice(out).slice(table).slice(tokens).size(hidden).u32(vocab as u32).f32(scale);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}
