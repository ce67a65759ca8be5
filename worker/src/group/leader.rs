//! Leader's side of a group: a [`Backend`] that runs each step on all ranks and compares the tokens that they
//! drew.

use std::collections::VecDeque;
use std::sync::Arc;

use skein_kernels::collective::Ranks;

use super::frame::{Frame, agree};
use super::memory::GroupMemory;
use super::nodes::Nodes;
use super::sender::FrameSender;
use super::watch::Watch;
use crate::backend::{Alarm, Backend, BackendError, Batch, StepHandle, StepOutput, WindowBlocks};

/// Backend of rank 0, which leads the group.
pub struct Leader<B> {
    inner: B,
    frames: Arc<FrameSender>,
    reports: Box<dyn Ranks>,
    /// Frame numbers of the steps in flight, oldest first.
    in_flight: VecDeque<u64>,
    watch: Watch,
}

impl<B: Backend> Leader<B> {
    /// Leads the ranks over `memory` and those on other `nodes`; `watch` detects failures. First all ranks
    /// check the model together: `inner` runs this rank's part and returns its backend. The ranks of the last
    /// stage compare their tokens over `reports`.
    ///
    /// # Errors
    /// If a rank is lost or `inner` fails.
    pub fn start<E: From<BackendError>>(
        memory: &GroupMemory,
        (epoch, watch): (u64, Watch),
        (reports, nodes): (Box<dyn Ranks>, Option<Arc<Nodes>>),
        inner: impl FnOnce() -> Result<B, E>,
    ) -> Result<Self, E> {
        let frames = Arc::new(FrameSender::new(memory.writer(), nodes, epoch, watch.clone()));
        frames.write(&Frame::Check).map_err(ended)?;
        Ok(Self { inner: inner()?, frames, reports, in_flight: VecDeque::new(), watch })
    }

    /// Writes frames to the ranks.
    pub fn frames(&self) -> Arc<FrameSender> {
        Arc::clone(&self.frames)
    }
}

/// The failure that `watch` recorded first. If none, `error` becomes the failure and ends the group.
fn stopped(watch: &Watch, error: &dyn std::fmt::Display) -> BackendError {
    ended(watch.fail(error.to_string()))
}

fn ended(reason: String) -> BackendError {
    BackendError::Stopped { backend: "group", reason }
}

impl<B: Backend> Backend for Leader<B> {
    fn kv_blocks(&self) -> u32 {
        self.inner.kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.inner.window_blocks()
    }

    fn state_slots(&self) -> Option<u32> {
        self.inner.state_slots()
    }

    fn steps_in_flight(&self) -> usize {
        self.inner.steps_in_flight()
    }

    fn stages(&self) -> usize {
        self.inner.stages()
    }

    fn verifies(&self) -> bool {
        self.inner.verifies()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let frame = Frame::Run(batch);
        self.in_flight.push_back(self.frames.write(&frame).map_err(ended)?);
        let Frame::Run(batch) = frame else { unreachable!("it is a step") };
        self.inner.launch(batch).map_err(|error| stopped(&self.watch, &error))
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let output = self.inner.collect(step).map_err(|error| stopped(&self.watch, &error))?;
        let step = self.in_flight.pop_front().unwrap_or_default();
        // A token is used only after all ranks have drawn it.
        agree(&mut *self.reports, step, &output).map_err(|error| stopped(&self.watch, &error))?;
        Ok(output)
    }

    fn on_failure(&mut self, alarm: Alarm) {
        self.watch.on_failure(alarm);
    }

    fn health(&mut self) -> Result<(), BackendError> {
        match self.watch.failure() {
            None => self.inner.health(),
            Some(reason) => Err(BackendError::Stopped { backend: "group", reason }),
        }
    }
}

impl<B> Drop for Leader<B> {
    fn drop(&mut self) {
        self.watch.stop();
        // After a failure a stop would arrive before its reason: ranks would be given time to end by
        // themselves, though one that waits for the lost rank cannot.
        if self.watch.failure().is_none() {
            // An error means that the group has failed since.
            let _ = self.frames.write(&Frame::Stop);
        }
    }
}
