//! A step's message from the host, its expansion on the device, and the rows whose logits it wants; `cu/inputs.cu`.

use std::marker::PhantomData;

use super::kv::StepSequences;
use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Set in a packed token: the rest is an index into the tokens that the step before sampled. Vocabularies end far below.
pub const CARRIED: u32 = 1 << 31;
/// Words before the first array.
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
}

/// A message under construction, in pinned memory: a header, then arrays back to back.
#[derive(Debug)]
pub struct Message<'a> {
    words: &'a mut [u32],
    used: usize,
}

impl<'a> Message<'a> {
    /// An empty message that may grow to fill `words`.
    ///
    /// # Panics
    /// If `words` has no room for the header; every other method panics when its array does not fit, for the
    /// planner knows the largest step. [`Message::free`] says what fits.
    pub fn new(words: &'a mut [u32]) -> Self {
        words[..HEADER_WORDS].fill(0);
        Self { words, used: HEADER_WORDS }
    }

    /// Words so far.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing but the header is in it.
    pub fn is_empty(&self) -> bool {
        self.used == HEADER_WORDS
    }

    /// Words that still fit.
    pub fn free(&self) -> usize {
        self.words.len() - self.used
    }

    /// The rows' tokens (a token, or [`CARRIED`] and an index), positions and slots, all of one length.
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

    /// The sequences in row order: first row, context length, block table.
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

    /// The rows whose logits are wanted.
    pub fn logit_rows(&mut self, rows: &[u32]) {
        self.set(Header::LogitRows, rows.len());
        self.copied(Header::LogitRowsAt, rows);
    }

    /// Some words that the device reads where they are; where they start, in words from the message's start.
    pub fn list(&mut self, words: &[u32]) -> u32 {
        let start = self.used;
        self.words[start..start + words.len()].copy_from_slice(words);
        self.used += words.len();
        start as u32
    }

    /// Values of a type that is made of whole words; where they start, as [`Message::list`] says it.
    pub fn values<T: Element>(&mut self, values: &[T]) -> u32 {
        assert!(
            size_of::<T>().is_multiple_of(size_of::<u32>()) && align_of::<T>() <= align_of::<u32>(),
            "a value of {} bytes is not made of words",
            size_of::<T>()
        );
        // SAFETY: elements have no padding, so their bytes are initialised; they are aligned to words and their size is
        // a multiple of one; the borrow lasts as long as `values`.
        let words = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u32>(), size_of_val(values) / size_of::<u32>())
        };
        self.list(words)
    }

    /// The same of words that come one by one.
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

/// Lays a message out for the other kernels.
#[derive(Debug, Clone, Copy)]
pub struct ExpandInputs {
    kernel: Kernel,
}

/// Memory of one [`ExpandInputs`] launch. Lengths of the outputs are the sizes they are padded to.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// The message.
    pub packed: DeviceSlice<u32>,
    /// Tokens the step before sampled, in the order of its samples.
    pub sampled: DeviceSlice<u32>,
    /// As long as `sampled`, out: a copy of it; [`DeviceSlice::NONE`] leaves it out.
    pub previous: DeviceSlice<u32>,
    /// `[rows]`, out.
    pub tokens: DeviceSlice<u32>,
    /// `[rows]`, out.
    pub positions: DeviceSlice<u32>,
    /// `[rows]`, out: [`super::kv::NO_SLOT`] in padding.
    pub slots: DeviceSlice<u32>,
    /// Out. Its `rows` is the rows' padded size; both are 0 for a message without rows.
    pub sequences: StepSequences,
    /// `[logit rows]`, out: row 0 in padding.
    pub logit_rows: DeviceSlice<u32>,
}

impl ExpandInputs {
    /// Finds the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("expand_inputs")? })
    }

    /// Queues it.
    pub fn launch(&self, stream: &Stream, inputs: Inputs) -> Result<(), CudaError> {
        let Inputs { packed, sampled, previous, tokens, positions, slots, sequences, .. } = inputs;
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
            .size(previous.len())
            .size(rows)
            .size(capacity)
            .size(table_stride)
            .size(inputs.logit_rows.len());
        let blocks = rows.div_ceil(THREADS as usize).max(capacity).clamp(1, MAX_BLOCKS);
        self.kernel.launch(stream, Grid::new(blocks as u32, THREADS), &args)
    }
}

/// Values a thread takes at a time.
const VALUES: usize = 4;

/// `out[i] = residual[rows[i]] + delta[rows[i]]`, or without `delta`.
#[derive(Debug, Clone, Copy)]
pub struct GatherRows<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`GatherRows`] launch.
#[derive(Debug, Clone, Copy)]
pub struct Gather<T> {
    /// `[wanted, hidden]`
    pub out: DeviceSlice<f32>,
    /// `[rows, hidden]`
    pub residual: DeviceSlice<f32>,
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`]: nothing is added.
    pub delta: DeviceSlice<T>,
    /// Which rows; its length says how many.
    pub wanted: DeviceSlice<u32>,
    /// Values of a row, a multiple of 4.
    pub hidden: usize,
}

impl<T: Activation> GatherRows<T> {
    /// Finds the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "gather_rows")?, of: PhantomData })
    }

    /// Queues it.
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
