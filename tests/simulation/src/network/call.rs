//! A call over a connection: a request one way, an answer and a stream of messages back. Its halves learn of
//! each other only through the network: when a client drops its half, the server hears of it later, or never.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use super::{Connection, Network};
use crate::served::Served;

/// Messages as they arrive.
pub type Incoming<M> = BoxStream<'static, Result<M, Status>>;
/// What a server answers.
pub type Answer<M> = Result<Incoming<M>, Status>;
/// A server's handler of one request.
pub type Start<M> = Box<dyn FnOnce(Arc<Served>) -> BoxFuture<'static, Answer<M>> + Send>;

/// A message in flight, with its time of arrival.
struct Sent<M>(Instant, Body<M>);

enum Body<M> {
    Message(Result<M, Status>),
    End,
}

impl Network {
    /// Calls the server of `connection`.
    pub(crate) async fn call<M: Clone + Send + Sync + 'static>(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        start: Start<M>,
    ) -> Answer<M> {
        let (head, answered) = oneshot::channel();
        let (messages, incoming) = mpsc::channel(self.spec.window);
        let (reset, hung_up) = oneshot::channel();
        let sent = self.arrival();
        let server = ServerHalf { network: self.clone(), connection: connection.clone(), messages };
        connection.server.process.spawn(server.run(sent, start, head, hung_up));
        let mut client = ClientHalf { network: self.clone(), connection, incoming, reset: Some(reset) };
        client.head(answered).await?;
        let messages =
            futures::stream::unfold(client, async |mut client| Some((client.next().await?, client)));
        Ok(messages.boxed())
    }
}

struct ServerHalf<M> {
    network: Arc<Network>,
    connection: Arc<Connection>,
    messages: mpsc::Sender<Sent<M>>,
}

impl<M: Clone + Send + Sync + 'static> ServerHalf<M> {
    async fn run(
        mut self,
        sent: Instant,
        start: Start<M>,
        head: oneshot::Sender<(Instant, Result<(), Status>)>,
        hung_up: oneshot::Receiver<()>,
    ) {
        let connection = self.connection.clone();
        let work = async {
            let (client, server) = (connection.client.host, connection.server.host);
            self.network.arrive(client, server, sent).await;
            match start(connection.served.clone()).await {
                Err(status) => drop(head.send((self.network.arrival(), Err(status)))),
                Ok(stream) => {
                    drop(head.send((self.network.arrival(), Ok(()))));
                    self.pump(stream).await;
                }
            }
        };
        tokio::select! {
            biased;
            Ok(()) = hung_up => {}
            _ = connection.server.died() => {}
            () = work => {}
        }
    }

    async fn pump(&mut self, mut stream: BoxStream<'static, Result<M, Status>>) {
        let mut last = Instant::now();
        while let Some(message) = stream.next().await {
            self.send(&mut last, Body::Message(message)).await;
        }
        self.send(&mut last, Body::End).await;
    }

    /// Messages of a stream arrive in the order in which they were sent.
    async fn send(&self, last: &mut Instant, body: Body<M>) {
        *last = self.network.arrival().max(*last);
        // An error means that the client's half is gone; the network reports that separately.
        drop(self.messages.send(Sent(*last, body)).await);
    }
}

struct ClientHalf<M> {
    network: Arc<Network>,
    connection: Arc<Connection>,
    incoming: mpsc::Receiver<Sent<M>>,
    /// Tells the server's half to stop; `None` once the stream is over.
    reset: Option<oneshot::Sender<()>>,
}

impl<M: Send + 'static> ClientHalf<M> {
    async fn head(
        &mut self,
        answered: oneshot::Receiver<(Instant, Result<(), Status>)>,
    ) -> Result<(), Status> {
        let connection = self.connection.clone();
        let answer = async {
            let Ok((at, answer)) = answered.await else { return std::future::pending().await };
            self.network.arrive(connection.server.host, connection.client.host, at).await;
            answer
        };
        let answer = tokio::select! {
            biased;
            why = connection.client.died() => Err(broken(why)),
            answer = answer => answer,
        };
        if answer.is_err() {
            self.reset = None;
        }
        answer
    }

    async fn next(&mut self) -> Option<Result<M, Status>> {
        // `None`: the last message was an error.
        self.reset.as_ref()?;
        let connection = self.connection.clone();
        let message = async {
            // Without an end of stream the server's half just vanished. The client must still hear of that.
            let Some(Sent(at, body)) = self.incoming.recv().await else {
                return std::future::pending().await;
            };
            self.network.arrive(connection.server.host, connection.client.host, at).await;
            body
        };
        let body = tokio::select! {
            biased;
            why = connection.client.died() => Body::Message(Err(broken(why))),
            body = message => body,
        };
        match body {
            Body::Message(Ok(message)) => Some(Ok(message)),
            Body::Message(Err(status)) => {
                self.reset = None;
                Some(Err(status))
            }
            Body::End => {
                self.reset = None;
                None
            }
        }
    }
}

impl<M> Drop for ClientHalf<M> {
    /// The kernel tells the server, if the network carries the message.
    fn drop(&mut self) {
        let Some(reset) = self.reset.take() else { return };
        if self.connection.client.dead().is_some() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (network, connection) = (self.network.clone(), self.connection.clone());
        tokio::spawn(async move {
            network.arrive(connection.client.host, connection.server.host, network.arrival()).await;
            let _ = reset.send(());
        });
    }
}

fn broken(why: &'static str) -> Status {
    Status::unavailable(format!("the connection broke: {why}"))
}
