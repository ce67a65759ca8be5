//! The step's message from the host, its expansion on the device, and the rows whose logits are requested;
//! `cu/inputs.cu`.

use std::marker::PhantomData;

use super::kv::StepSequences;
use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Flag of a packed token: the other bits are an index into the tokens sampled by the previous step.
/// Vocabularies are far smaller.
pub const CARRIED: u32 = 1 << 31;
/// Words in the header, before the first array.
pub const HEADER_WORDS: usize = 16;

const THREADS: u32 = 256;
/// Enough blocks to keep every multiprocessor busy with block tables.
const MAX_BLOCKS: usize = 256;

/// Words of the header, in the order of `cu/inputs.cu`.
#[derive(Debug, Clone, Copy)]
enum Header {
    Rows,
    Sequences,
    LogitRows,
    TokensAt,
    PositionsAt,
    SlotsAt,
    RowStartsAt,
    ContextLensAt,
    TableStartsAt,
    TablesAt,
    LogitRowsAt,
    WindowSlotsAt,
    WindowTablesAt,
    RowTilesAt,
    LogitTilesAt,
}

/// Lists of rows with adapters in a message, by their word in the header. Only `cu/low_rank.cu` reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileList {
    /// Rows of the batch.
    Rows = Header::RowTilesAt as isize,
    /// Rows of the logits.
    Logits = Header::LogitTilesAt as isize,
}

/// A message under construction in pinned memory: a header, then arrays back to back.
#[derive(Debug)]
pub struct Message<'a> {
    words: &'a mut [u32],
    used: usize,
}

impl<'a> Message<'a> {
    /// An empty message that may grow up to the size of `words`.
    ///
    /// # Panics
    /// If `words` is too small for the header. All other methods panic if their array does not fit, because
    /// the planner knows the largest step; [`Message::free`] tells how much fits.
    pub fn new(words: &'a mut [u32]) -> Self {
        words[..HEADER_WORDS].fill(0);
        Self { words, used: HEADER_WORDS }
    }

    /// Number of words so far.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the message has nothing but the header.
    pub fn is_empty(&self) -> bool {
        self.used == HEADER_WORDS
    }

    /// Number of words that still fit.
    pub fn free(&self) -> usize {
        self.words.len() - self.used
    }

    /// Adds the rows' tokens (a token, or [`CARRIED`] and an index), positions and slots, all of one length.
    pub fn rows(&mut self, tokens: impl ExactSizeIterator<Item = u32>, positions: &[u32], slots: &[u32]) {
        assert!(
            tokens.len() == positions.len() && tokens.len() == slots.len(),
            "{} tokens, {} positions and {} slots: one of each a row",
            tokens.len(),
            positions.len(),
            slots.len()
        );
        self.set(Header::Rows, positions.len());
        self.array(Header::TokensAt, tokens);
        self.copied(Header::PositionsAt, positions);
        self.copied(Header::SlotsAt, slots);
    }

    /// Adds the sequences in row order: first row, context length, block table.
    pub fn sequences<B: ExactSizeIterator<Item = u32>>(
        &mut self,
        sequences: impl ExactSizeIterator<Item = (u32, u32, B)> + Clone,
    ) {
        self.set(Header::Sequences, sequences.len());
        self.array(Header::RowStartsAt, sequences.clone().map(|(start, _, _)| start));
        self.array(Header::ContextLensAt, sequences.clone().map(|(_, context_len, _)| context_len));
        let mut end = 0;
        let ends = sequences.clone().map(|(_, _, table)| {
            end += table.len() as u32;
            end
        });
        self.array(Header::TableStartsAt, std::iter::once(0).chain(ends));
        self.array(Header::TablesAt, sequences.flat_map(|(_, _, table)| table));
    }

    /// Adds the rows' slots in window blocks, and the sequences' tables of these, as long as the tables in
    /// [`sequences`](Self::sequences).
    pub fn windows(&mut self, slots: &[u32], tables: impl Iterator<Item = u32>) {
        self.copied(Header::WindowSlotsAt, slots);
        self.array(Header::WindowTablesAt, tables);
    }

    /// Adds rows with adapters: `tiles` of up to [`TILE_ROWS`](super::low_rank::TILE_ROWS) rows with the same
    /// adapter, each with the adapter's slot. A row is in one tile.
    pub fn tiles<'r>(&mut self, list: TileList, tiles: impl ExactSizeIterator<Item = (u32, &'r [u32])>) {
        let start = self.used;
        let count = tiles.len();
        self.words[start] = count as u32;
        self.words[list as usize] = start as u32;
        self.used = start + 1 + 3 * count;
        for (i, (slot, rows)) in tiles.enumerate() {
            let rows_at = self.list(rows);
            self.words[start + 1 + 3 * i..][..3].copy_from_slice(&[slot, rows_at, rows.len() as u32]);
        }
    }

    /// Most words that [`tiles`](Self::tiles) of up to `rows` rows take.
    pub fn tile_words(rows: usize) -> usize {
        1 + 4 * rows
    }

    /// Adds the rows whose logits are requested.
    pub fn logit_rows(&mut self, rows: &[u32]) {
        self.set(Header::LogitRows, rows.len());
        self.copied(Header::LogitRowsAt, rows);
    }

    /// Adds words that the device reads in place. Returns their offset in words from the start of the
    /// message.
    pub fn list(&mut self, words: &[u32]) -> u32 {
        let start = self.used;
        self.words[start..start + words.len()].copy_from_slice(words);
        self.used += words.len();
        start as u32
    }

    /// Adds values of a type that consists of whole words. Returns their offset like [`Message::list`].
    pub fn values<T: Element>(&mut self, values: &[T]) -> u32 {
        assert!(
            size_of::<T>().is_multiple_of(size_of::<u32>()) && align_of::<T>() <= align_of::<u32>(),
            "a value of {} bytes is not made of words",
            size_of::<T>()
        );
        // SAFETY: elements have no padding, so their bytes are initialised. Their alignment is at most that
        // of a word, and their size is a multiple of a word. The borrow lasts as long as `values`.
        let words = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u32>(), size_of_val(values) / size_of::<u32>())
        };
        self.list(words)
    }

    /// As [`Message::list`], for words from an iterator.
    pub fn list_of(&mut self, words: impl Iterator<Item = u32>) -> u32 {
        let start = self.used;
        for word in words {
            self.words[self.used] = word;
            self.used += 1;
        }
        start as u32
    }

    fn copied(&mut self, header: Header, words: &[u32]) {
        let start = self.list(words);
        self.words[header as usize] = start;
    }

    fn array(&mut self, header: Header, words: impl Iterator<Item = u32>) {
        let start = self.list_of(words);
        self.words[header as usize] = start;
    }

    fn set(&mut self, header: Header, value: usize) {
        self.words[header as usize] = value as u32;
    }
}

/// Expands a message into the arrays that other kernels read.
#[derive(Debug, Clone, Copy)]
pub struct ExpandInputs {
    kernel: Kernel,
}

/// Where a step's rows lie in window blocks.
#[derive(Debug, Clone, Copy)]
pub struct WindowTables {
    /// `[rows]`: slots, [`super::kv::NO_SLOT`] in padding.
    pub slots: DeviceSlice<u32>,
    /// `[capacity, table_stride]`: block ids, as [`StepSequences::block_tables`].
    pub block_tables: DeviceSlice<u32>,
}

/// Memory of one [`ExpandInputs`] launch. The outputs' lengths are the sizes to which they are padded.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// The message to expand.
    pub packed: DeviceSlice<u32>,
    /// Tokens that the previous step sampled, in the order of its samples.
    pub sampled: DeviceSlice<u32>,
    /// Output: a copy of `sampled`, with the same length; [`DeviceSlice::NONE`] = no copy.
    pub previous: DeviceSlice<u32>,
    /// Output, `[rows]`: each row's token.
    pub tokens: DeviceSlice<u32>,
    /// Output, `[rows]`: each row's position.
    pub positions: DeviceSlice<u32>,
    /// Output, `[rows]`; [`super::kv::NO_SLOT`] in padding.
    pub slots: DeviceSlice<u32>,
    /// Output. Its `rows` is the padded number of rows; rows and capacity are 0 for a message without rows.
    pub sequences: StepSequences,
    /// Outputs, if the message has window blocks.
    pub windows: Option<WindowTables>,
    /// Output, `[logit rows]`; row 0 in padding.
    pub logit_rows: DeviceSlice<u32>,
}

impl ExpandInputs {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("expand_inputs")? })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, inputs: Inputs) -> Result<(), CudaError> {
        let Inputs { packed, sampled, previous, tokens, positions, slots, sequences, windows, .. } = inputs;
        let StepSequences { row_starts, context_lens, block_tables, table_stride, capacity, rows } =
            sequences;
        assert!(
            tokens.len() >= rows && positions.len() >= rows && slots.len() >= rows,
            "{rows} rows do not fit: {} tokens, {} positions, {} slots",
            tokens.len(),
            positions.len(),
            slots.len()
        );
        assert!(
            capacity == 0
                || row_starts.len() > capacity
                    && context_lens.len() >= capacity
                    && block_tables.len() >= capacity * table_stride,
            "{capacity} sequences with {table_stride} blocks each do not fit"
        );
        let none = WindowTables { slots: DeviceSlice::NONE, block_tables: DeviceSlice::NONE };
        let fits = |windows: WindowTables| {
            windows.slots.len() >= rows && windows.block_tables.len() >= capacity * table_stride
        };
        assert!(windows.is_none_or(fits), "{rows} rows of {capacity} sequences do not fit the window tables");
        let windows = windows.unwrap_or(none);
        assert!(previous.len() <= sampled.len(), "{} tokens are copied of {}", previous.len(), sampled.len());
        let args = Args::new()
            .slice(packed)
            .slice(sampled)
            .slice(previous)
            .slice(tokens)
            .slice(positions)
            .slice(slots)
            .slice(row_starts)
            .slice(context_lens)
            .slice(block_tables)
            .slice(inputs.logit_rows)
            .slice(windows.slots)
            .slice(windows.block_tables)
            .size(previous.len())
            .size(rows)
            .size(capacity)
            .size(table_stride)
            .size(inputs.logit_rows.len());
        let blocks = rows.div_ceil(THREADS as usize).max(capacity).clamp(1, MAX_BLOCKS);
        self.kernel.launch(stream, Grid::new(blocks as u32, THREADS), &args)
    }
}

/// Values per thread and iteration.
const VALUES: usize = 4;

/// `out[i] = residual[wanted[i]] + delta[wanted[i]]`; without `delta` just the residual.
#[derive(Debug, Clone, Copy)]
pub struct GatherRows<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`GatherRows`] launch.
#[derive(Debug, Clone, Copy)]
pub struct Gather<T> {
    /// Result, `[wanted, hidden]`.
    pub out: DeviceSlice<f32>,
    /// Residual stream, `[rows, hidden]`.
    pub residual: DeviceSlice<f32>,
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`] to add nothing.
    pub delta: DeviceSlice<T>,
    /// Rows to gather.
    pub wanted: DeviceSlice<u32>,
    /// Values per row, a multiple of 4.
    pub hidden: usize,
}

impl<T: Activation> GatherRows<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "gather_rows")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, gather: Gather<T>) -> Result<(), CudaError> {
        let Gather { out, residual, delta, wanted, hidden } = gather;
        assert!(
            hidden > 0 && hidden.is_multiple_of(VALUES),
            "hidden size {hidden} is not a multiple of {VALUES}"
        );
        assert!(out.len() >= wanted.len() * hidden, "{} rows of {hidden} do not fit", wanted.len());
        assert!(delta.is_empty() || residual.len() == delta.len(), "residual and delta have the same rows");
        if wanted.is_empty() {
            return Ok(());
        }
        let args = Args::new().slice(out).slice(residual).slice(delta).slice(wanted).size(hidden);
        self.kernel.launch(stream, Grid::new(wanted.len() as u32, THREADS).overlapping(), &args)
    }
}
