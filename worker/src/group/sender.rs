//! Writes the leader's frames, in one order for all ranks: the engine's thread those of steps, others those
//! of adapters.

use std::sync::{Arc, Mutex, PoisonError};

use super::frame::{Frame, Sequence};
use super::memory::FrameWriter;
use super::nodes::Nodes;
use super::watch::Watch;

/// The writing end of a group's frames.
pub struct FrameSender {
    watch: Watch,
    /// Other nodes of the group.
    nodes: Option<Arc<Nodes>>,
    state: Mutex<State>,
}

struct State {
    frames: FrameWriter,
    sequence: Sequence,
    words: Vec<u32>,
    has_stopped: bool,
}

impl FrameSender {
    /// Writes the frames of `epoch`. A failure ends the group that `watch` watches.
    pub fn new(frames: FrameWriter, nodes: Option<Arc<Nodes>>, epoch: u64, watch: Watch) -> Self {
        let sequence = Sequence { epoch, step: 0 };
        let state = State { frames, sequence, words: Vec::new(), has_stopped: false };
        Self { watch, nodes, state: Mutex::new(state) }
    }

    /// Sends a frame to all ranks; returns its number.
    ///
    /// # Errors
    /// Why the group has ended.
    pub fn write(&self, frame: &Frame) -> Result<u64, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { frames, sequence, words, has_stopped } = &mut *state;
        if *has_stopped {
            return Err("the group has stopped".to_owned());
        }
        *has_stopped = matches!(frame, Frame::Stop);
        sequence.write(frame, words);
        // First to other nodes, where it arrives later.
        let sent = self.nodes.as_ref().map_or(Ok(()), |nodes| nodes.send_words(words));
        let sent = sent.and_then(|()| frames.write(words).map_err(|error| error.to_string()));
        // The failure that was recorded first is the reason.
        sent.map(|()| sequence.step).map_err(|error| self.watch.fail(error))
    }
}
