//! The calls of an exchange, without input and output.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Poll, Waker};

use prost::Message;
use skein_proto::worker::v1::router_frame::Content;
use skein_proto::worker::v1::worker_frame;
use skein_proto::worker::v1::{GenerateDelta, Leave, RouterFrame, RouterFrames, WorkerFrame, WorkerFrames};
use tonic::Status;

use crate::limits::{MESSAGE_BYTES, cost};
use crate::metadata;

/// All calls of an exchange, and the frames that wait to be sent.
#[derive(Debug)]
pub(super) struct Calls {
    /// Credit of each call in bytes. It is given back by halves, so in a frame for dozens of short deltas.
    credit: u32,
    /// Number of the latest call.
    latest: u64,
    running: BTreeMap<u64, Call>,
    frames: VecDeque<RouterFrame>,
    /// Why the exchange has ended.
    broken: Option<Status>,
}

/// A call that someone waits for.
#[derive(Debug, Default)]
struct Call {
    /// Whether its first frame is on its way.
    is_sent: bool,
    is_accepted: bool,
    /// Deltas that are not read yet.
    deltas: VecDeque<GenerateDelta>,
    /// What they cost.
    unread: u32,
    /// Credit to give back: what deltas cost that were read since the last time.
    owed: u32,
    end: Option<Result<(), Status>>,
    waker: Option<Waker>,
}

impl Calls {
    pub fn new(credit: u32) -> Self {
        Self { credit, latest: 0, running: BTreeMap::new(), frames: VecDeque::new(), broken: None }
    }

    /// Makes a call by its first frame, and gives it a number.
    pub fn open(&mut self, first: RouterFrame) -> u64 {
        self.latest += 1;
        let end = self.broken.clone().map(Err);
        if end.is_none() {
            self.frames.push_back(RouterFrame { call: self.latest, credit: self.credit, ..first });
        }
        self.running.insert(self.latest, Call { end, ..Call::default() });
        self.latest
    }

    /// Whether the call was accepted; `None` = not known yet, and `waker` is woken then. A call that was
    /// refused is forgotten.
    pub fn poll_accepted(&mut self, number: u64, waker: &Waker) -> Option<Result<(), Status>> {
        let call = self.running.get_mut(&number)?;
        if call.is_accepted {
            return Some(Ok(()));
        }
        let Some(end) = call.end.take() else {
            call.wait(waker);
            return None;
        };
        self.running.remove(&number);
        Some(Err(end
            .err()
            .unwrap_or_else(|| Status::internal("the worker ended a call before it accepted it"))))
    }

    /// The next delta of a call, its failure, or `None` after everything; then the call is forgotten.
    pub fn poll_delta(&mut self, number: u64, waker: &Waker) -> Poll<Option<Result<GenerateDelta, Status>>> {
        let Some(call) = self.running.get_mut(&number) else { return Poll::Ready(None) };
        if let Some(delta) = call.deltas.pop_front() {
            let cost = cost(&delta);
            call.unread = call.unread.saturating_sub(cost);
            call.owed = call.owed.saturating_add(cost);
            if call.owed >= self.credit / 2 && call.end.is_none() {
                let credit = std::mem::take(&mut call.owed);
                self.frames.push_back(RouterFrame { call: number, credit, ..RouterFrame::default() });
            }
            return Poll::Ready(Some(Ok(delta)));
        }
        match call.end.take() {
            None => {
                call.wait(waker);
                Poll::Pending
            }
            Some(end) => {
                self.running.remove(&number);
                Poll::Ready(end.err().map(Err))
            }
        }
    }

    /// Ends a call that its reader leaves. One whose first frame was not sent yet is not made.
    pub fn leave(&mut self, number: u64) {
        let Some(call) = self.running.remove(&number) else { return };
        if call.is_sent && call.end.is_none() && self.broken.is_none() {
            let content = Some(Content::Leave(Leave {}));
            self.frames.push_back(RouterFrame { call: number, content, ..RouterFrame::default() });
        }
    }

    /// Gives frames to their calls; `woken` gets the wakers of their readers.
    ///
    /// # Errors
    /// A frame that no correct worker sends. The exchange must end, because numbers may be mixed up.
    pub fn receive(&mut self, message: WorkerFrames, woken: &mut Vec<Waker>) -> Result<(), Status> {
        message.frames.into_iter().try_for_each(|frame| {
            let WorkerFrame { call, content } = frame;
            if call == 0 || call > self.latest {
                return Err(Status::internal(format!("the worker answered call {call}, which was not made")));
            }
            // The reader may have left.
            let Some(running) = self.running.get_mut(&call) else { return Ok(()) };
            let taken = running.take(content, self.credit);
            woken.extend(running.waker.take());
            taken.map_err(|wrong| Status::internal(format!("the worker's answers to call {call}: {wrong}")))
        })
    }

    /// Ends all calls because the exchange has ended; returns the wakers of their readers. What had arrived
    /// before can still be read.
    pub fn fail(&mut self, status: &Status) -> Vec<Waker> {
        if self.broken.is_some() {
            return Vec::new();
        }
        self.broken = Some(status.clone());
        self.frames.clear();
        let running = self.running.values_mut().filter(|call| call.end.is_none());
        running
            .flat_map(|call| {
                call.end = Some(Err(status.clone()));
                call.waker.take()
            })
            .collect()
    }

    /// Why the exchange has ended.
    pub fn broken(&self) -> Option<&Status> {
        self.broken.as_ref()
    }

    /// Whether no call runs and no frame waits.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.frames.is_empty()
    }

    pub fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// The next message to send.
    pub fn take_frames(&mut self) -> Option<RouterFrames> {
        let mut bytes = 0;
        let mut frames = Vec::new();
        while bytes < MESSAGE_BYTES {
            let Some(frame) = self.frames.pop_front() else { break };
            if is_first(&frame) {
                let Some(call) = self.running.get_mut(&frame.call) else { continue };
                call.is_sent = true;
            }
            bytes += frame.encoded_len();
            frames.push(frame);
        }
        (!frames.is_empty()).then_some(RouterFrames { frames })
    }
}

impl Call {
    fn wait(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            None => self.waker = Some(waker.clone()),
        }
    }

    /// Takes a frame's content; the error says what is wrong with it.
    fn take(&mut self, content: Option<worker_frame::Content>, credit: u32) -> Result<(), &'static str> {
        match content {
            _ if self.end.is_some() => Err("a frame after the end"),
            Some(worker_frame::Content::Accepted(_)) if self.is_accepted => Err("accepted twice"),
            Some(worker_frame::Content::Accepted(_)) => {
                self.is_accepted = true;
                Ok(())
            }
            Some(worker_frame::Content::Delta(_)) if !self.is_accepted => {
                Err("a delta before it was accepted")
            }
            Some(worker_frame::Content::Delta(_)) if self.unread + self.owed >= credit => {
                Err("a delta without credit")
            }
            Some(worker_frame::Content::Delta(delta)) => {
                self.unread = self.unread.saturating_add(cost(&delta));
                self.deltas.push_back(delta);
                Ok(())
            }
            Some(worker_frame::Content::End(end)) => {
                self.end = Some(metadata::status(&end).map_or(Ok(()), Err));
                Ok(())
            }
            // Of a later release.
            None => Ok(()),
        }
    }
}

fn is_first(frame: &RouterFrame) -> bool {
    matches!(frame.content, Some(Content::Generate(_) | Content::Attach(_)))
}
