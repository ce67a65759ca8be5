//! Leader's side of a group: a [`Backend`] that runs each step on all ranks and compares the tokens that they
//! drew.

use std::collections::VecDeque;
use std::sync::Arc;

use skein_kernels::collective::Ranks;

use super::adapters::Announced;
use super::frame::{Frame, Sequence, agree};
use super::memory::{FrameWriter, GroupMemory};
use super::nodes::Nodes;
use super::watch::Watch;
use crate::backend::{Alarm, Backend, BackendError, Batch, StepHandle, StepOutput, WindowBlocks};

/// Backend of rank 0, which leads the group.
pub struct Leader<B> {
    inner: B,
    frames: FrameWriter,
    nodes: Option<Arc<Nodes>>,
    reports: Box<dyn Ranks>,
    sequence: Sequence,
    /// Frame numbers of the steps in flight, oldest first.
    in_flight: VecDeque<u64>,
    words: Vec<u32>,
    watch: Watch,
    /// Adapters that the other ranks have.
    adapters: Announced,
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
        let (mut frames, mut words) = (memory.writer(), Vec::new());
        let mut sequence = Sequence { epoch, step: 0 };
        sequence.write(&Frame::Check, &mut words);
        put(&mut frames, nodes.as_deref(), &words).map_err(|error| stopped(&watch, &error))?;
        let inner = inner()?;
        let in_flight = VecDeque::new();
        let adapters = Announced::new(usize::MAX);
        Ok(Self { inner, frames, nodes, reports, sequence, in_flight, words, watch, adapters })
    }

    /// With at most `most` adapters in the memory of each rank.
    pub fn with_adapters(mut self, most: usize) -> Self {
        self.adapters = Announced::new(most);
        self
    }

    fn write(&mut self, frame: &Frame) -> Result<(), BackendError> {
        self.sequence.write(frame, &mut self.words);
        let written = put(&mut self.frames, self.nodes.as_deref(), &self.words);
        written.map_err(|error| stopped(&self.watch, &error))
    }
}

/// Sends a frame to all ranks, first to other nodes, where it arrives later.
fn put(frames: &mut FrameWriter, nodes: Option<&Nodes>, words: &[u32]) -> Result<(), String> {
    nodes.map_or(Ok(()), |nodes| nodes.send_words(words))?;
    frames.write(words).map_err(|error| error.to_string())
}

/// The failure that `watch` recorded first. If none, `error` becomes the failure and ends the group.
fn stopped(watch: &Watch, error: &dyn std::fmt::Display) -> BackendError {
    let reason = watch.fail(error.to_string());
    BackendError::Stopped { backend: "group", reason }
}

impl<B: Backend> Backend for Leader<B> {
    fn kv_blocks(&self) -> u32 {
        self.inner.kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.inner.window_blocks()
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
        for frame in self.adapters.before(&batch) {
            self.write(&frame)?;
        }
        let frame = Frame::Run(batch);
        self.write(&frame)?;
        self.in_flight.push_back(self.sequence.step);
        let Frame::Run(batch) = frame else { unreachable!("it is a step") };
        self.inner.launch(batch)
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
        self.sequence.write(&Frame::Stop, &mut self.words);
        self.watch.stop();
        // An error means that the group has already failed.
        let _ = put(&mut self.frames, self.nodes.as_deref(), &self.words);
    }
}
