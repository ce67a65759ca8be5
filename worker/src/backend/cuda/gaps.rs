//! Measures how long the device idles between steps, from the end of one in its stream to the start of the
//! next, with events on the device. For benchmarks only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_kernels::cuda::{CudaError, CudaEvent, Device, Stream};

/// Steps whose events are kept; more than can be in flight, so that no event is recorded again before
/// it is read.
const KEPT: usize = 8;
/// Most gaps kept until they are read.
const MAX_GAPS: usize = 1 << 20;

/// Gaps between steps since the last read.
#[derive(Debug)]
pub struct StepGaps {
    /// Start and end of step `i` at `i % KEPT`.
    events: Vec<(CudaEvent, CudaEvent)>,
    seen: Mutex<Vec<Duration>>,
}

impl StepGaps {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let pair = |_| Ok((CudaEvent::new(device)?, CudaEvent::new(device)?));
        Ok(Self { events: (0..KEPT).map(pair).collect::<Result<_, CudaError>>()?, seen: Mutex::default() })
    }

    /// Records the start of `step`; steps count from 0.
    pub(super) fn start(&self, step: usize, stream: &Stream) -> Result<(), CudaError> {
        self.events[step % KEPT].0.record(stream)
    }

    /// Records the end of `step`.
    pub(super) fn end(&self, step: usize, stream: &Stream) -> Result<(), CudaError> {
        self.events[step % KEPT].1.record(stream)
    }

    /// Stores the gap before `step`, which has ended.
    pub(super) fn note(&self, step: usize) -> Result<(), CudaError> {
        let Some(before) = step.checked_sub(1) else { return Ok(()) };
        let milliseconds = self.events[step % KEPT].0.since(&self.events[before % KEPT].1)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < MAX_GAPS {
            seen.push(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3));
        }
        Ok(())
    }

    /// Takes the gaps since the last call, in order.
    pub fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
