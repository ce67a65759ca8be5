//! Uploads packed matrices: mapped file → codes in the device's order → device, with several threads.
//!
//! Arranging codes takes longer than copying them, so each thread waits for its copies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::packed::OCTET;
use skein_kernels::cuda::{Device, Stream};
use skein_model::on_cuda::packed::PackedCopy;

use super::error::CudaLoadError;

/// Codes that a thread arranges before it copies them.
const CHUNK_CODES: usize = 4 << 20;
/// Most queued progress reports.
const REPORTS: usize = 64;

/// Octets of a matrix to upload.
type Part<'a, T> = (&'a PackedCopy<T>, Range<usize>);

/// Bytes that [`run`] reports in all.
pub(super) fn bytes<T: Activation>(copies: &[PackedCopy<T>]) -> u64 {
    copies.iter().map(|copy| copy.place().1.places().codes.len() as u64).sum()
}

/// Uploads all matrices and waits for them. `progress` gets the bytes of each finished part.
///
/// # Errors
/// If a weight is not a finite number, or the device fails.
pub(super) fn run<T: Activation>(
    copies: &[PackedCopy<T>],
    device: &Arc<Device>,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<(), CudaLoadError> {
    let mut parts = Vec::new();
    for copy in copies {
        let (_, shape) = copy.place();
        let each = (CHUNK_CODES / (shape.k * OCTET).max(1)).max(1);
        for first in (0..shape.octets()).step_by(each) {
            parts.push((copy, first..shape.octets().min(first + each)));
        }
    }
    let next = AtomicUsize::new(0);
    let (reports, received) = sync_channel(REPORTS);
    std::thread::scope(|scope| {
        let work = |reports: SyncSender<u64>| {
            let (next, parts) = (&next, &parts);
            scope.spawn(move || upload(parts, device, next, &reports))
        };
        let threads: Vec<_> =
            (0..threads.clamp(1, parts.len().max(1))).map(|_| work(reports.clone())).collect();
        drop(reports);
        received.iter().for_each(&mut *progress);
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// One thread: takes parts until none is left.
fn upload<T: Activation>(
    parts: &[Part<'_, T>],
    device: &Arc<Device>,
    next: &AtomicUsize,
    reports: &SyncSender<u64>,
) -> Result<(), CudaLoadError> {
    device.bind()?;
    let stream = Stream::new(device)?;
    while let Some((copy, octets)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
        copy.write(&stream, octets.start, &copy.arrange(octets.clone())?)?;
        let (_, shape) = copy.place();
        let bytes = octets.len() * shape.blocks() * shape.form.octet_bytes();
        // If the receiver is gone, progress is not displayed.
        let _ = reports.send(bytes as u64);
    }
    Ok(())
}
