//! A rank's neighbours in a pipeline. Rows arrive from the previous stage and leave for the next one through
//! page-locked memory and a link in host memory, the same as between CPU ranks.
//!
//! The launching thread waits for a step's rows before it queues the step, so a device never waits for
//! another one. The waiting thread sends the rows of a step that has ended. See
//! `docs/decisions/stages-meet-on-the-host.md`.

use std::sync::{Arc, Mutex, PoisonError};

use skein_kernels::collective::Lost;
use skein_kernels::collective::link::{Inlet, Outlet};
use skein_kernels::cuda::{CudaError, Device};

use super::STEPS_IN_FLIGHT;
use super::error::failed_on;
use crate::backend::{BackendError, Connections};

/// Connections of a rank with the ranks at its place in the stages before and after its own.
#[derive(Default)]
pub(super) struct Neighbours {
    /// Link from the previous stage; `None` in the first stage.
    pub before: Option<Box<dyn Inlet>>,
    /// Link to the next stage; `None` in the last stage.
    pub after: Option<Onward>,
}

impl Neighbours {
    /// Takes the links of `connections`.
    pub fn of(connections: &mut Connections) -> Self {
        let after = connections.after.take();
        Self {
            before: connections.before.take(),
            after: after.map(|after| Onward(Arc::new(Mutex::new(after)))),
        }
    }
}

/// Link to the next stage.
#[derive(Clone)]
pub(super) struct Onward(Arc<Mutex<Box<dyn Outlet>>>);

impl Onward {
    /// Sends the residual stream of a step. Steps must be sent in order.
    pub fn send(&self, rows: &[f32]) -> Result<(), Lost> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(rows)
    }
}

/// Steps in flight with `stages` pipeline stages: one for each stage. A single stage has two, so that its
/// device never waits for the host.
pub(super) fn steps_in_flight(stages: usize) -> usize {
    if stages > 1 { stages } else { STEPS_IN_FLIGHT }
}

/// Why a step could not be queued.
#[derive(Debug)]
pub(super) enum QueueError {
    /// A call to the device failed.
    Cuda(CudaError),
    /// The previous stage sent no rows.
    Lost(Lost),
    /// The step needs what the backend does not have.
    Unsupported(BackendError),
}

impl From<CudaError> for QueueError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl From<Lost> for QueueError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl QueueError {
    /// The backend's error; a lost `device` is abandoned.
    pub fn on(self, device: &Device) -> BackendError {
        match self {
            Self::Cuda(error) => failed_on(device, &error),
            Self::Lost(lost) => lost.into(),
            Self::Unsupported(error) => error,
        }
    }
}
