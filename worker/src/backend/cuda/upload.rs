//! Weights on their way to the device: mapped file → pinned buffer → device, by several threads at once.
//!
//! A copy from pageable memory would be staged by the driver, one at a time. Here each thread fills one of its two
//! pinned buffers while the device drains the other: the page cache is read by as many cores as it takes to keep
//! the bus busy.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::e4m3;
use skein_kernels::cuda::{CudaError, Device, DeviceSlice, Event, PinnedBuffer, Stream};

/// One pinned buffer; larger ones copy no faster.
const CHUNK_BYTES: usize = 16 << 20;
/// Threads that read. More than a bus needs at the speed of a memory copy.
const MAX_READERS: usize = 8;
/// Reports of progress that wait for whoever shows them.
const REPORTS: usize = 64;

/// Types of values on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    Bf16,
    F16,
    F32,
    /// With a scale for each row.
    E4m3,
}

impl Dtype {
    /// What a checkpoint's weights are computed in: their own 16-bit type, and bfloat16 for single precision.
    pub fn of(storage: &Storage) -> Self {
        match storage {
            Storage::F16(_) => Self::F16,
            Storage::Bf16(_) | Storage::F32(_) => Self::Bf16,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::E4m3 => 1,
        }
    }

    fn is_that_of(self, storage: &Storage) -> bool {
        matches!(
            (self, storage),
            (Self::Bf16, Storage::Bf16(_)) | (Self::F16, Storage::F16(_)) | (Self::F32, Storage::F32(_))
        )
    }
}

/// What is to be copied where.
#[derive(Default)]
pub(super) struct Upload {
    parts: Vec<Part>,
    bytes: u64,
}

/// Rows that fit a pinned buffer.
struct Part {
    from: WeightMatrix,
    rows: Range<usize>,
    to: DeviceSlice<u8>,
    /// A scale for each row, of quantised ones.
    scales: DeviceSlice<u8>,
    dtype: Dtype,
}

impl Upload {
    /// Adds a matrix, converted to `dtype`; its rows fill `to`.
    pub fn add(&mut self, from: &WeightMatrix, to: DeviceSlice<u8>, dtype: Dtype) {
        self.add_parts(from, to, DeviceSlice::NONE, dtype);
    }

    /// Adds a matrix that becomes e4m3: row by row, its largest value becomes the largest that e4m3 has.
    pub fn add_quantised(&mut self, from: &WeightMatrix, to: DeviceSlice<E4m3>, scales: DeviceSlice<f32>) {
        assert_eq!(scales.len(), from.rows(), "each row has a scale");
        self.add_parts(from, to.cast(), scales.cast(), Dtype::E4m3);
    }

    fn add_parts(
        &mut self,
        from: &WeightMatrix,
        to: DeviceSlice<u8>,
        scales: DeviceSlice<u8>,
        dtype: Dtype,
    ) {
        let row_bytes = from.cols() * dtype.bytes();
        let scale_bytes = scales.len() / from.rows().max(1);
        assert_eq!(to.len(), from.rows() * row_bytes, "the rows fill their place on the device");
        let rows_at_once = (CHUNK_BYTES / row_bytes).max(1);
        for start in (0..from.rows()).step_by(rows_at_once) {
            let rows = start..from.rows().min(start + rows_at_once);
            let bytes_of = |bytes: usize| rows.start * bytes..rows.end * bytes;
            let (to, scales) = (to.slice(bytes_of(row_bytes)), scales.slice(bytes_of(scale_bytes)));
            self.parts.push(Part { from: from.clone(), rows: rows.clone(), to, scales, dtype });
        }
        self.bytes += (to.len() + scales.len()) as u64;
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies everything and waits for it. `progress` gets each further number of bytes.
    pub fn run(
        &self,
        device: &Arc<Device>,
        threads: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CudaError> {
        let next = AtomicUsize::new(0);
        let (reports, received) = sync_channel(REPORTS);
        let largest = self.parts.iter().map(Part::bytes).max().unwrap_or(0);
        let readers = threads.clamp(1, MAX_READERS).min(self.parts.len());
        std::thread::scope(|scope| {
            let read = |reports: SyncSender<u64>| {
                let next = &next;
                scope.spawn(move || self.read(device, largest, next, &reports))
            };
            let threads: Vec<_> = (0..readers).map(|_| read(reports.clone())).collect();
            drop(reports);
            received.iter().for_each(&mut *progress);
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// One reader: takes the next part until there is none.
    fn read(
        &self,
        device: &Arc<Device>,
        largest: usize,
        next: &AtomicUsize,
        reports: &SyncSender<u64>,
    ) -> Result<(), CudaError> {
        device.bind()?;
        let stream = Stream::new(device)?;
        let mut buffers = Vec::new();
        for _ in 0..2 {
            buffers.push((PinnedBuffer::<u8>::new(device, largest)?, Event::new(device)?));
        }
        let mut scratch = Vec::new();
        for turn in 0.. {
            let Some(part) = self.parts.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let (buffer, drained) = &mut buffers[turn % 2];
            if turn >= 2 {
                drained.synchronize()?;
            }
            let values = part.to.len();
            let (to, scales) = buffer[..part.bytes()].split_at_mut(values);
            part.fill(to, scales, &mut scratch);
            part.to.upload(&stream, buffer, 0..values)?;
            if !part.scales.is_empty() {
                part.scales.upload(&stream, buffer, values..part.bytes())?;
            }
            drained.record(&stream)?;
            // A receiver that is gone has nobody to show it to.
            let _ = reports.send(part.bytes() as u64);
        }
        stream.synchronize()
    }
}

impl Part {
    fn bytes(&self) -> usize {
        self.to.len() + self.scales.len()
    }

    /// Writes the rows' values, converted.
    fn fill(&self, to: &mut [u8], scales: &mut [u8], scratch: &mut Vec<f32>) {
        let Self { from, rows, dtype, .. } = self;
        if dtype.is_that_of(from.storage()) {
            let bytes = from.row_bytes();
            to.copy_from_slice(&from.storage().bytes()[rows.start * bytes..rows.end * bytes]);
            return;
        }
        scratch.resize(from.cols(), 0.0);
        let mut scales = scales.as_chunks_mut::<4>().0.iter_mut();
        for (row, to) in rows.clone().zip(to.chunks_exact_mut(from.cols() * dtype.bytes())) {
            from.widen_row(row, scratch);
            if let Some(scale) = scales.next() {
                *scale = quantise(scratch).to_le_bytes();
            }
            narrow(scratch, to, *dtype);
        }
    }
}

/// Divides a row so that it fills the range of e4m3; returns the divisor.
fn quantise(row: &mut [f32]) -> f32 {
    let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let scale = if largest > 0.0 { largest / e4m3::MAX } else { 1.0 };
    row.iter_mut().for_each(|value| *value /= scale);
    scale
}

/// Rounds to nearest even, little-endian.
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
        Dtype::E4m3 => {
            for (value, to) in values.iter().zip(to) {
                *to = E4m3::from_f32(*value).0;
            }
        }
        Dtype::F32 => {
            for (value, to) in values.iter().zip(to.as_chunks_mut::<4>().0) {
                *to = value.to_le_bytes();
            }
        }
    }
}
