//! Uploads weights: mapped file → pinned buffer → device, with several threads.
//!
//! The driver would stage a copy from pageable memory, one at a time. Here each thread fills one of its two
//! pinned buffers while the device drains the other, so that enough cores read the page cache to keep the bus
//! busy. Weights that become e4m3 go to a staging buffer on the device and are quantised from there, which
//! takes less time than copying them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use skein_kernels::cpu::matrix::Storage;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::quantize::{Granularity, Quantization, Quantize};
use skein_kernels::cuda::{CudaError, CudaEvent, Device, DeviceSlice, PinnedBuffer, Stream};
use skein_model::LoadError;
use skein_model::on_cuda::origin::Origin;
use skein_model::on_cuda::rank_tensor::MergedChange;

use super::error::CudaLoadError;

/// Bytes of a pinned buffer; larger ones copy no faster.
const CHUNK_BYTES: usize = 16 << 20;
/// Most reading threads; more than a bus needs at the speed of a memory copy.
const MAX_READERS: usize = 8;
/// Staging buffers start at multiples of this.
const ALIGNMENT: usize = 256;
/// Most queued progress reports.
const REPORTS: usize = 64;

/// Types of values on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    Bf16,
    F16,
    F32,
}

impl Dtype {
    /// The type in which a checkpoint's weights are computed: their own 16-bit type, or bfloat16
    /// for single precision.
    pub fn of(storage: &Storage) -> Self {
        match storage {
            Storage::F16(_) => Self::F16,
            // Blocks were refused earlier.
            Storage::Bf16(_) | Storage::F32(_) | Storage::Blocks(..) => Self::Bf16,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    fn is_that_of(self, storage: &Storage) -> bool {
        matches!(
            (self, storage),
            (Self::Bf16, Storage::Bf16(_)) | (Self::F16, Storage::F16(_)) | (Self::F32, Storage::F32(_))
        )
    }
}

/// The copies to make.
#[derive(Default)]
pub(super) struct Upload {
    parts: Vec<Part>,
    bytes: u64,
}

/// Rows that fit a pinned buffer.
struct Part {
    from: Origin,
    rows: Range<usize>,
    to: DeviceSlice<u8>,
    /// The same number of scales for each row if it becomes e4m3; otherwise empty.
    scales: DeviceSlice<f32>,
    /// Type of the copied values.
    dtype: Dtype,
    change: Option<MergedChange>,
}

/// A matrix to copy, and an adapter's change to it.
#[derive(Clone, Copy)]
pub(super) struct CopiedRows<'a> {
    pub from: &'a Origin,
    pub change: Option<&'a MergedChange>,
}

/// Quantises rows to e4m3 on the device.
#[derive(Clone, Copy)]
pub(super) struct Quantiser<T> {
    pub kernel: Quantize<T>,
    /// [`staging_bytes`] bytes of memory.
    pub staging: DeviceSlice<u8>,
}

/// Device bytes for staging matrices of these `[n, k]` before they are quantised, as 16-bit values: a part
/// for each reader.
pub(super) fn staging_bytes(shapes: &[(usize, usize)]) -> usize {
    let part = |&(n, k): &(usize, usize)| rows_at_once(k * 2).min(n) * k * 2;
    MAX_READERS * shapes.iter().map(part).max().unwrap_or(0).next_multiple_of(ALIGNMENT)
}

fn rows_at_once(row_bytes: usize) -> usize {
    (CHUNK_BYTES / row_bytes).max(1)
}

impl Upload {
    /// Adds a matrix, with an adapter's change, converted to `dtype`; its rows fill `to`.
    pub fn add(&mut self, copied: CopiedRows<'_>, to: DeviceSlice<u8>, dtype: Dtype) {
        self.add_parts(copied, to, DeviceSlice::NONE, dtype);
    }

    /// Adds a matrix to quantise from `dtype` to e4m3. Each row, or each of the equal parts of a row with its
    /// own scale, is scaled so that its largest value becomes e4m3's largest.
    pub fn add_quantised(
        &mut self,
        copied: CopiedRows<'_>,
        to: DeviceSlice<E4m3>,
        scales: DeviceSlice<f32>,
        dtype: Dtype,
    ) {
        assert!(scales.len().is_multiple_of(copied.from.rows().max(1)), "each row has as many scales");
        self.add_parts(copied, to.cast(), scales, dtype);
    }

    fn add_parts(
        &mut self,
        copied: CopiedRows<'_>,
        to: DeviceSlice<u8>,
        scales: DeviceSlice<f32>,
        dtype: Dtype,
    ) {
        let CopiedRows { from, change } = copied;
        let row_bytes = from.cols() * dtype.bytes();
        let own_bytes = if scales.is_empty() { row_bytes } else { from.cols() };
        assert_eq!(to.len(), from.rows() * own_bytes, "the rows fill their place on the device");
        let rows_at_once = rows_at_once(row_bytes);
        for start in (0..from.rows()).step_by(rows_at_once) {
            let rows = start..from.rows().min(start + rows_at_once);
            let to = to.slice(rows.start * own_bytes..rows.end * own_bytes);
            let each = scales.len() / from.rows();
            let scales = scales.slice(rows.start * each..rows.end * each);
            let change = change.cloned();
            self.parts.push(Part { from: from.clone(), rows, to, scales, dtype, change });
        }
        self.bytes += (from.rows() * row_bytes) as u64;
    }

    /// Bytes to copy.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies everything and waits for it. `quantiser` is for parts that become e4m3. `progress` gets the
    /// bytes of each finished part.
    ///
    /// # Errors
    /// If a matrix in codes has one that is not a finite number, or the device fails.
    pub fn run<T: Activation>(
        &self,
        device: &Arc<Device>,
        threads: usize,
        quantiser: Option<Quantiser<T>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CudaLoadError> {
        let next = AtomicUsize::new(0);
        let (reports, received) = sync_channel(REPORTS);
        let largest = self.parts.iter().map(Part::bytes).max().unwrap_or(0);
        let readers = threads.clamp(1, MAX_READERS).min(self.parts.len());
        std::thread::scope(|scope| {
            let read = |index: usize, reports: SyncSender<u64>| {
                let (next, own) = (&next, quantiser.map(|all| all.part(index)));
                scope.spawn(move || self.read(device, largest, own, next, &reports))
            };
            let threads: Vec<_> = (0..readers).map(|index| read(index, reports.clone())).collect();
            drop(reports);
            received.iter().for_each(&mut *progress);
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// One reader: takes parts until none is left.
    fn read<T: Activation>(
        &self,
        device: &Arc<Device>,
        largest: usize,
        quantiser: Option<Quantiser<T>>,
        next: &AtomicUsize,
        reports: &SyncSender<u64>,
    ) -> Result<(), CudaLoadError> {
        device.bind()?;
        let stream = Stream::new(device)?;
        let mut buffers = Vec::new();
        for _ in 0..2 {
            buffers.push((PinnedBuffer::<u8>::new(device, largest)?, CudaEvent::new(device)?));
        }
        let mut scratch = Vec::new();
        for turn in 0.. {
            let Some(part) = self.parts.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let (buffer, drained) = &mut buffers[turn % 2];
            if turn >= 2 {
                drained.synchronize()?;
            }
            let bytes = part.bytes();
            part.fill(&mut buffer[..bytes], &mut scratch)?;
            match quantiser.as_ref().filter(|_| !part.scales.is_empty()) {
                None => part.to.upload(&stream, buffer, 0..bytes)?,
                // The stream orders the next copy after the staging buffer has been read.
                Some(quantiser) => {
                    quantiser.staging.slice(0..bytes).upload(&stream, buffer, 0..bytes)?;
                    quantiser.launch(&stream, part)?;
                }
            }
            drained.record(&stream)?;
            // If the receiver is gone, progress is not displayed.
            let _ = reports.send(bytes as u64);
        }
        Ok(stream.synchronize()?)
    }
}

impl<T: Activation> Quantiser<T> {
    /// The quantiser with the `index`-th reader's part of the staging memory.
    fn part(&self, index: usize) -> Self {
        let bytes = self.staging.len() / MAX_READERS;
        Self { staging: self.staging.slice(index * bytes..(index + 1) * bytes), ..*self }
    }

    fn launch(&self, stream: &Stream, part: &Part) -> Result<(), CudaError> {
        let rounding = Quantization {
            out: part.to.cast(),
            scales: part.scales,
            x: self.staging.slice(0..part.bytes()).cast::<T>(),
            // The kernel sees each part of a row with its own scale as a row.
            rows: part.scales.len(),
            cols: part.rows.len() * part.from.cols() / part.scales.len(),
            granularity: Granularity::Row,
            scratch: DeviceSlice::NONE,
        };
        self.kernel.launch(stream, rounding)
    }
}

impl Part {
    /// Bytes to copy.
    fn bytes(&self) -> usize {
        self.rows.len() * self.from.cols() * self.dtype.bytes()
    }

    /// Writes the rows' values, converted.
    fn fill(&self, to: &mut [u8], scratch: &mut Vec<f32>) -> Result<(), LoadError> {
        let Self { from, rows, dtype, change, .. } = self;
        let own = from.read(rows.clone())?;
        let own = change.as_ref().map(|change| change.merged(&own, rows.start)).unwrap_or(own);
        if dtype.is_that_of(own.storage()) {
            for (row, to) in to.chunks_exact_mut(own.row_bytes().max(1)).enumerate() {
                to.copy_from_slice(own.row(row));
            }
            return Ok(());
        }
        scratch.resize(own.cols(), 0.0);
        for (row, to) in to.chunks_exact_mut((own.cols() * dtype.bytes()).max(1)).enumerate() {
            own.widen_row(row, scratch);
            narrow(scratch, to, *dtype);
        }
        Ok(())
    }
}

/// Rounds to nearest even; little-endian.
fn narrow(values: &[f32], to: &mut [u8], dtype: Dtype) {
    match dtype {
        Dtype::Bf16 => {
            for (value, to) in values.iter().zip(to.as_chunks_mut::<2>().0) {
                *to = half::bf16::from_f32(*value).to_le_bytes();
            }
        }
        Dtype::F16 => {
            for (value, to) in values.iter().zip(to.as_chunks_mut::<2>().0) {
                *to = half::f16::from_f32(*value).to_le_bytes();
            }
        }
        Dtype::F32 => {
            for (value, to) in values.iter().zip(to.as_chunks_mut::<4>().0) {
                *to = value.to_le_bytes();
            }
        }
    }
}
