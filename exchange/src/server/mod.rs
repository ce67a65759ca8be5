//! The worker's end of an exchange.

mod call;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use prost::Message;
use skein_proto::worker::v1::router_frame::Content;
use skein_proto::worker::v1::worker_server::Worker;
use skein_proto::worker::v1::{RouterFrame, RouterFrames, WorkerFrame, WorkerFrames, worker_frame};
use tonic::{Request, Status};

use crate::limits::{MAX_CALLS, MAX_FRAMES, MESSAGE_BYTES};
use crate::{metadata, prompt};
use call::{Call, Control};

/// Most messages that are taken in between two messages that are sent.
const MESSAGES_IN_A_ROW: usize = 64;

/// The answers to `frames`, with calls of `service`. They end when the router ends the exchange or `stopping`
/// resolves; in both cases calls that run are answered first, and further ones are refused.
pub fn serve<S: Worker>(
    service: Arc<S>,
    frames: impl Stream<Item = Result<RouterFrames, Status>> + Send + 'static,
    stopping: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = Result<WorkerFrames, Status>> + Send + 'static {
    Served {
        service,
        frames: frames.fuse().boxed(),
        has_ended: false,
        stopping: Some(stopping.boxed()),
        latest: 0,
        controls: BTreeMap::new(),
        calls: SelectAll::new(),
        refused: Vec::new(),
    }
}

struct Served<S> {
    service: Arc<S>,
    frames: BoxStream<'static, Result<RouterFrames, Status>>,
    /// The router makes no further calls.
    has_ended: bool,
    /// `None` once it has resolved.
    stopping: Option<BoxFuture<'static, ()>>,
    /// Number of the latest call.
    latest: u64,
    controls: BTreeMap<u64, Control>,
    calls: SelectAll<Call>,
    /// Ends of calls that were not made.
    refused: Vec<WorkerFrame>,
}

impl<S: Worker> Stream for Served<S> {
    type Item = Result<WorkerFrames, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.stopping.as_mut().is_some_and(|stopping| stopping.poll_unpin(context).is_ready()) {
            this.stopping = None;
        }
        if let Err(status) = this.take_in(context) {
            // The router learns why; its calls end as if it had left them.
            this.calls.clear();
            this.controls.clear();
            (this.has_ended, this.frames) = (true, futures::stream::empty().boxed());
            return Poll::Ready(Some(Err(status)));
        }
        let frames = this.give_out(context);
        if !frames.is_empty() {
            return Poll::Ready(Some(Ok(WorkerFrames { frames })));
        }
        let is_last = this.has_ended || this.stopping.is_none();
        if is_last && this.calls.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl<S: Worker> Served<S> {
    /// Acts on the frames that have arrived.
    fn take_in(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..MESSAGES_IN_A_ROW {
            match self.frames.poll_next_unpin(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => {
                    self.has_ended = true;
                    return Ok(());
                }
                Poll::Ready(Some(Ok(message))) if message.frames.len() > MAX_FRAMES => {
                    let frames = message.frames.len();
                    let message = format!("a message has {frames} frames; at most {MAX_FRAMES} are taken");
                    return Err(Status::invalid_argument(message));
                }
                Poll::Ready(Some(message)) => {
                    message?.frames.into_iter().try_for_each(|frame| self.act(frame))?
                }
            }
        }
        context.waker().wake_by_ref();
        Ok(())
    }

    /// # Errors
    /// For a frame that no correct router sends.
    fn act(&mut self, frame: RouterFrame) -> Result<(), Status> {
        let RouterFrame { call: number, content, prompt, metadata, credit } = frame;
        let call = match content {
            None => {
                if let Some(control) = self.controls.get(&number) {
                    control.add(credit);
                }
                return Ok(());
            }
            Some(Content::Leave(_)) => {
                if let Some(control) = self.controls.remove(&number) {
                    control.leave();
                }
                return Ok(());
            }
            Some(_) if number <= self.latest => {
                let message = format!("call {number} begins after call {}; numbers must rise", self.latest);
                return Err(Status::invalid_argument(message));
            }
            Some(Content::Generate(mut request)) => {
                self.latest = number;
                let Some(prompt) = prompt::to_tokens(&prompt) else {
                    self.refuse(number, &Status::invalid_argument("prompt: its bytes are no multiple of 4"));
                    return Ok(());
                };
                request.prompt_token_ids = prompt;
                let (service, request) = (self.service.clone(), with_metadata(request, &metadata));
                async move { Ok(service.generate(request).await?.into_inner().boxed()) }.boxed()
            }
            Some(Content::Attach(request)) => {
                self.latest = number;
                let (service, request) = (self.service.clone(), with_metadata(request, &metadata));
                async move { Ok(service.attach(request).await?.into_inner().boxed()) }.boxed()
            }
        };
        if self.stopping.is_none() {
            self.refuse(number, &Status::unavailable("this exchange is ending; open another one"));
            return Ok(());
        }
        if self.controls.len() >= MAX_CALLS {
            let message =
                format!("this exchange has {MAX_CALLS} calls, and takes no more until one has ended");
            self.refuse(number, &Status::resource_exhausted(message));
            return Ok(());
        }
        let (call, control) = Call::new(number, call, credit);
        self.controls.insert(number, control);
        self.calls.push(call);
        Ok(())
    }

    fn refuse(&mut self, call: u64, status: &Status) {
        let content = Some(worker_frame::Content::End(metadata::failed(status)));
        self.refused.push(WorkerFrame { call, content });
    }

    /// What calls have to send, as much as goes into a message.
    fn give_out(&mut self, context: &mut Context<'_>) -> Vec<WorkerFrame> {
        let mut frames = std::mem::take(&mut self.refused);
        let mut bytes = 0;
        while bytes < MESSAGE_BYTES
            && let Poll::Ready(Some(frame)) = self.calls.poll_next_unpin(context)
        {
            if matches!(frame.content, Some(worker_frame::Content::End(_))) {
                self.controls.remove(&frame.call);
            }
            bytes += frame.encoded_len();
            frames.push(frame);
        }
        frames
    }
}

fn with_metadata<T>(message: T, headers: &[skein_proto::worker::v1::Header]) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = metadata::metadata(headers);
    request
}
