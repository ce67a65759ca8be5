//! An exchange over a connection: frames both ways, each way in order, and each half learns of the other only
//! through the network.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use skein_exchange::client::{self, Exchange};
use skein_node::task;
use skein_proto::worker::v1::worker_frame::Content;
use skein_proto::worker::v1::{RouterFrames, WorkerFrame, WorkerFrames};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Abuse, Connection, Network};
use crate::served::Served;

type Answers = BoxStream<'static, Result<WorkerFrames, Status>>;

impl Network {
    /// Opens an exchange with the worker behind `connection`. The caller's process reads its answers.
    pub(super) async fn exchange(self: &Arc<Self>, connection: Arc<Connection>) -> Result<Exchange, Status> {
        let (exchange, frames, answers) = client::exchange(self.spec.credit);
        let (sender, receiver) = mpsc::channel(self.spec.window);
        let (network, joined) = (self.clone(), connection.clone());
        task::spawn(network.carry(frames, sender));
        let (network, log, host) = (self.clone(), self.log.clone(), connection.client.host);
        let start =
            move |served: Arc<Served>| async move { network.served(&joined, &served, receiver) }.boxed();
        let messages = self.call(connection, Box::new(start)).await?;
        task::spawn(async move {
            let ended = answers.read(messages).await;
            // Frames that the network lost, doubled or swapped look like it, too.
            if let Some(wrong) = ended.filter(|status| status.code() == Code::Internal && !log.is_abused()) {
                log.violated(host, format_args!("{}", wrong.message()));
            }
        });
        Ok(exchange)
    }

    /// The router's half: sends frames in order, until the exchange is over or the worker's half is gone.
    async fn carry(
        self: Arc<Self>,
        mut frames: impl Stream<Item = RouterFrames> + Unpin,
        sender: mpsc::Sender<(Instant, Option<RouterFrames>)>,
    ) {
        let mut last = Instant::now();
        loop {
            let message = frames.next().await;
            last = self.arrival().max(last);
            let is_end = message.is_none();
            if sender.send((last, message)).await.is_err() || is_end {
                return;
            }
        }
    }

    /// The worker's half.
    fn served(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        served: &Served,
        receiver: mpsc::Receiver<(Instant, Option<RouterFrames>)>,
    ) -> Result<Answers, Status> {
        let service =
            served.worker.clone().ok_or_else(|| Status::unimplemented("no worker is served here"))?;
        let ends = (connection.client.host, connection.server.host);
        let arriving = (self.clone(), receiver);
        let frames = futures::stream::unfold(arriving, move |(network, mut receiver)| async move {
            let Some((at, message)) = receiver.recv().await else {
                // The router's process is gone. The connection tells, if the network lets it.
                return std::future::pending().await;
            };
            network.arrive(ends.0, ends.1, at).await;
            message.map(|message| (Ok(message), (network, receiver)))
        });
        let abuser = Abuser { network: self.clone(), ends, held_back: BTreeMap::new() };
        Ok(abuser.abused(service.exchange_over(frames)).boxed())
    }
}

/// Loses, doubles and swaps deltas.
struct Abuser {
    network: Arc<Network>,
    ends: (super::Host, super::Host),
    /// By call: a delta that is sent after the call's next frame.
    held_back: BTreeMap<u64, WorkerFrame>,
}

impl Abuser {
    fn abused(
        mut self,
        messages: impl Stream<Item = Result<WorkerFrames, Status>> + Send + 'static,
    ) -> impl Stream<Item = Result<WorkerFrames, Status>> + Send + 'static {
        messages.map(move |message| {
            let message = message?;
            let abuse = self.network.lock().abuse;
            let frames = message.frames.into_iter().flat_map(|frame| self.frame(&abuse, frame)).collect();
            Ok(WorkerFrames { frames })
        })
    }

    fn frame(&mut self, abuse: &Abuse, frame: WorkerFrame) -> Vec<WorkerFrame> {
        let call = frame.call;
        let held_back = self.held_back.remove(&call);
        if !matches!(frame.content, Some(Content::Delta(_))) {
            return held_back.into_iter().chain([frame]).collect();
        }
        let random = &self.network.random;
        if random.once_in(abuse.dropped) {
            self.say("dropped");
            return held_back.into_iter().collect();
        }
        if held_back.is_none() && random.once_in(abuse.swapped) {
            self.say("swapped");
            self.held_back.insert(call, frame);
            return Vec::new();
        }
        let doubled = random.once_in(abuse.doubled).then(|| frame.clone());
        if doubled.is_some() {
            self.say("doubled");
        }
        [Some(frame), doubled, held_back].into_iter().flatten().collect()
    }

    fn say(&self, how: &str) {
        let (client, server) = self.ends;
        self.network.log.abused();
        self.network.log.say(server, format_args!("a message to {client} is {how}"));
    }
}
