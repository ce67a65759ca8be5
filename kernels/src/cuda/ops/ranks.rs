//! Kernels before and after an exchange between ranks; `cu/ranks.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::leaves::MAX_LEAVES;

/// Most threads of a block that copies a row.
const MAX_THREADS: usize = 1024;
/// Threads of the other blocks.
const THREADS: usize = 256;
/// Values that a thread reads at once: 16 bytes of activations, or of f32.
const VALUES: usize = 8;
const SUMS: usize = 4;
/// Most blocks for a row of logits.
const MAX_BLOCKS: usize = 64;

/// The kernels before and after exchanges.
#[derive(Debug, Clone, Copy)]
pub struct RankKernels<T> {
    embed_part: Kernel,
    embed_chosen: Kernel,
    join_sums: Kernel,
    join_logits: Kernel,
    of: PhantomData<T>,
}

/// Division of the vocabulary among ranks: each has `each` rows, the last ones fewer or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vocabulary {
    /// Rows of the whole vocabulary.
    pub size: usize,
    /// Rows of every rank but the last ones.
    pub each: usize,
}

/// One rank's rows of an embedding lookup.
#[derive(Debug, Clone, Copy)]
pub struct EmbedPart<T> {
    /// Result, `[rows, hidden]`; zero for tokens of other ranks.
    pub out: DeviceSlice<T>,
    /// The rank's rows of the table, `[count, hidden]`; may be empty.
    pub table: DeviceSlice<T>,
    /// `[rows]`; tokens outside the vocabulary read row 0.
    pub tokens: DeviceSlice<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Values per row, a multiple of 8.
    pub hidden: usize,
    /// Division of the vocabulary among ranks.
    pub vocabulary: Vocabulary,
    /// Rank whose part is read.
    pub rank: usize,
}

/// Inputs and result of an embedding lookup in the rows of all ranks.
#[derive(Debug, Clone, Copy)]
pub struct EmbedChosen<T> {
    /// Result, `[rows, hidden]`.
    pub out: DeviceSlice<f32>,
    /// Every rank's [`EmbedPart::out`], in order.
    pub all: DeviceSlice<T>,
    /// `[rows]`, as in [`EmbedPart`].
    pub tokens: DeviceSlice<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Values per row, a multiple of 8.
    pub hidden: usize,
    /// Division of the vocabulary among ranks.
    pub vocabulary: Vocabulary,
    /// Factor of all values; 1 changes no bit.
    pub scale: f32,
}

/// A product whose inputs are split over ranks, from the ranks' sums.
#[derive(Debug, Clone, Copy)]
pub struct JoinSums<T> {
    /// Result, `[rows, n]`.
    pub out: DeviceSlice<T>,
    /// `[ranks, rows, n]`
    pub sums: DeviceSlice<f32>,
    /// `[n]`, or [`DeviceSlice::NONE`].
    pub bias: DeviceSlice<T>,
    /// Number of ranks: a power of two up to 8.
    pub ranks: usize,
    /// Number of rows.
    pub rows: usize,
    /// Outputs, a multiple of 4.
    pub n: usize,
}

/// Logits of the whole vocabulary, from those of all ranks.
#[derive(Debug, Clone, Copy)]
pub struct JoinLogits {
    /// Result, `[rows, vocabulary.size]`.
    pub out: DeviceSlice<f32>,
    /// Every rank's part in order, each with room for `[rows, vocabulary.each]`; the rows of a rank with
    /// fewer columns are contiguous at the start.
    pub all: DeviceSlice<f32>,
    /// Number of rows.
    pub rows: usize,
    /// Division of the vocabulary among ranks.
    pub vocabulary: Vocabulary,
}

impl<T: Activation> RankKernels<T> {
    /// Looks up the kernels.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self {
            embed_part: kernel_for!(kernels, T, "embed_part")?,
            embed_chosen: kernel_for!(kernels, T, "embed_chosen")?,
            join_sums: kernel_for!(kernels, T, "join_sums")?,
            join_logits: kernels.get("join_logits")?,
            of: PhantomData,
        })
    }

    /// Queues the lookup of this rank's rows.
    pub fn embed_part(&self, stream: &Stream, part: EmbedPart<T>) -> Result<(), CudaError> {
        let EmbedPart { out, table, tokens, rows, hidden, vocabulary: Vocabulary { size, each }, rank } =
            part;
        check_rows(hidden, rows, tokens);
        assert!(out.len() >= rows * hidden, "{rows} rows do not fit {} values", out.len());
        let args = Args::new().slice(out).slice(table).slice(tokens).size(hidden).u32(size as u32);
        let args = args.u32((rank * each) as u32).u32((table.len() / hidden) as u32);
        self.embed_part.launch(stream, rows_of(rows, hidden / VALUES), &args)
    }

    /// Queues the selection among the rows of all ranks.
    pub fn embed_chosen(&self, stream: &Stream, chosen: EmbedChosen<T>) -> Result<(), CudaError> {
        let EmbedChosen { out, all, tokens, rows, hidden, vocabulary: Vocabulary { size, each }, scale } =
            chosen;
        check_rows(hidden, rows, tokens);
        let ranks = size.div_ceil(each);
        assert!(out.len() >= rows * hidden, "{rows} rows do not fit {} values", out.len());
        assert!(all.len() >= ranks * rows * hidden, "{} values are less than {ranks} ranks give", all.len());
        let args = Args::new().slice(out).slice(all).slice(tokens).size(rows).size(hidden);
        let args = args.u32(size as u32).u32(each as u32).f32(scale);
        self.embed_chosen.launch(stream, rows_of(rows, hidden / SUMS), &args)
    }

    /// Queues the sum over ranks, as a balanced tree.
    pub fn join_sums(&self, stream: &Stream, join: JoinSums<T>) -> Result<(), CudaError> {
        let JoinSums { out, sums, bias, ranks, rows, n } = join;
        let count = rows * n;
        assert!(ranks.is_power_of_two() && ranks <= MAX_LEAVES, "{ranks} ranks are a power of two up to 8");
        assert!(n > 0 && n.is_multiple_of(SUMS), "{n} outputs are not a multiple of {SUMS}");
        assert!(
            out.len() >= count && sums.len() >= ranks * count,
            "{ranks} times [{rows}, {n}] does not fit"
        );
        assert!(bias.is_empty() || bias.len() >= n, "a bias of {} is too short for {n}", bias.len());
        let args = Args::new().slice(out).slice(sums).slice(bias).size(ranks).size(count).size(n);
        let blocks = count.div_ceil(SUMS * THREADS) as u32;
        self.join_sums.launch(stream, Grid::new(blocks, THREADS as u32).overlapping(), &args)
    }

    /// Queues the copy of all ranks' logits to their columns.
    pub fn join_logits(&self, stream: &Stream, join: JoinLogits) -> Result<(), CudaError> {
        let JoinLogits { out, all, rows, vocabulary: Vocabulary { size, each } } = join;
        assert!(out.len() >= rows * size, "[{rows}, {size}] does not fit {} logits", out.len());
        assert!(all.len() >= rows * each * (size.div_ceil(each) - 1), "{} values are too few", all.len());
        let args = Args::new().slice(out).slice(all).size(rows).size(size).size(each);
        let blocks = size.div_ceil(THREADS).min(MAX_BLOCKS) as u32;
        let grid = Grid::of([blocks, rows as u32, 1], THREADS as u32).overlapping();
        self.join_logits.launch(stream, grid, &args)
    }
}

fn check_rows(hidden: usize, rows: usize, tokens: DeviceSlice<u32>) {
    assert!(hidden > 0 && hidden.is_multiple_of(VALUES), "hidden size {hidden} is no multiple of {VALUES}");
    assert!(rows > 0 && tokens.len() >= rows, "{rows} rows of {} tokens", tokens.len());
}

/// One block per row, whose threads share `items` items.
fn rows_of(rows: usize, items: usize) -> Grid {
    Grid::new(rows as u32, items.next_multiple_of(32).min(MAX_THREADS) as u32).overlapping()
}
