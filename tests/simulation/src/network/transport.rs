//! The product's transport traits over this network.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use skein_exchange::client::Exchange;
use skein_proto::worker::v1::{self as wire, worker_server::Worker};
use skein_router::links::exchanges::Exchanges;
use skein_router::links::transport::{Call, Connector, Messages, Transport};
use tonic::{Request, Response, Status};

use super::call::Start;
use super::{Connection, Host, Network};
use crate::process::Process;
use crate::served::Served;

/// Opens connections for one process.
#[derive(Clone)]
pub struct SimConnector {
    /// The network to use.
    pub network: Arc<Network>,
    /// Host of the client's end.
    pub host: Host,
    /// Process of the client's end.
    pub process: Process,
}

impl fmt::Debug for SimConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimConnector({})", self.host)
    }
}

impl Connector for SimConnector {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        Box::pin(async move {
            let to = crate::names::host_of(address).ok_or_else(|| format!("nobody is called {address}"))?;
            let control = self.network.connect(self.host, &self.process, to).await?;
            let line = |connection| Line { connector: self.clone(), to, connection: Mutex::new(connection) };
            let wires = Wires {
                control: line(Some(control)),
                data: Arc::new(line(None)),
                exchanges: Exchanges::default(),
            };
            Ok(Arc::new(wires) as Arc<dyn Transport>)
        })
    }
}

/// As in the product, token streams have their own connection. If a connection dies, the next call opens a
/// new one to the process that then listens at the address.
#[derive(Debug)]
struct Wires {
    control: Line,
    data: Arc<Line>,
    exchanges: Exchanges,
}

impl Wires {
    async fn exchange(&self) -> Result<Arc<Exchange>, Status> {
        let open = || {
            let data = self.data.clone();
            async move { data.connector.network.exchange(data.connection().await?).await }.boxed()
        };
        let exchange = self.exchanges.current(open).await?;
        exchange.ok_or_else(|| Status::unimplemented("no worker is served here"))
    }
}

struct Line {
    connector: SimConnector,
    to: Host,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.connector.host, self.to)
    }
}

impl Line {
    async fn connection(&self) -> Result<Arc<Connection>, Status> {
        let known = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(open) = known.filter(|connection| connection.is_open()) {
            return Ok(open);
        }
        let SimConnector { network, host, process } = &self.connector;
        let opened = network.connect(host, process, self.to).await.map_err(Status::unavailable)?;
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
        Ok(opened)
    }

    async fn stream<M: Clone + Send + Sync + 'static>(&self, start: Start<M>) -> Result<Messages<M>, Status> {
        let connection = self.connection().await?;
        self.connector.network.call(connection, start).await
    }

    async fn unary<M: Clone + Send + Sync + 'static>(
        &self,
        call: impl FnOnce(Arc<dyn Transport>) -> BoxFuture<'static, Result<M, Status>> + Send + 'static,
    ) -> Result<M, Status> {
        let connection = self.connection().await?;
        let start: Start<M> = Box::new(move |served| {
            Box::pin(async move {
                let answer = call(worker_of(&served)?).await?;
                Ok(futures::stream::iter([Ok(answer)]).boxed())
            })
        });
        let mut answer = self.connector.network.call(connection, start).await?;
        answer.next().await.unwrap_or_else(|| Err(Status::internal("a call without an answer")))
    }
}

fn worker_of(served: &Served) -> Result<Arc<dyn Transport>, Status> {
    let worker = served.worker.clone().map(|service| Arc::new(Direct(service)) as Arc<dyn Transport>);
    worker.ok_or_else(|| Status::unimplemented("no worker is served here"))
}

impl Transport for Wires {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        self.control.unary(move |worker| async move { worker.info().await }.boxed()).boxed()
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move { Ok(self.exchange().await?.generate(request).await?.boxed()) }.boxed()
    }

    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move { Ok(self.exchange().await?.attach(request).await?.boxed()) }.boxed()
    }

    fn abort(&self, request: wire::AbortRequest) -> Call<'_, wire::AbortResponse> {
        self.control.unary(move |worker| async move { worker.abort(request).await }.boxed()).boxed()
    }

    fn release(&self, request: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse> {
        self.control.unary(move |worker| async move { worker.release(request).await }.boxed()).boxed()
    }

    fn watch(&self, request: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>> {
        let call = move |served: Arc<Served>| async move { worker_of(&served)?.watch(request).await }.boxed();
        self.control.stream(Box::new(call)).boxed()
    }
}

/// A worker's service called without a network: by a server's end of a connection, and by the reference.
pub struct Direct<S>(pub S);

impl<S> fmt::Debug for Direct<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Direct")
    }
}

impl<S: Worker> Transport for Direct<S> {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        async move { Ok(self.0.info(Request::new(wire::InfoRequest {})).await?.into_inner()) }.boxed()
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move { Ok(messages(self.0.generate(request).await?)) }.boxed()
    }

    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async move { Ok(messages(self.0.attach(request).await?)) }.boxed()
    }

    fn abort(&self, request: wire::AbortRequest) -> Call<'_, wire::AbortResponse> {
        async move { Ok(self.0.abort(Request::new(request)).await?.into_inner()) }.boxed()
    }

    fn release(&self, request: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse> {
        async move { Ok(self.0.release(Request::new(request)).await?.into_inner()) }.boxed()
    }

    fn watch(&self, request: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>> {
        async move { Ok(messages(self.0.watch(Request::new(request)).await?)) }.boxed()
    }
}

fn messages<S, M>(answer: Response<S>) -> Messages<M>
where
    S: futures::Stream<Item = Result<M, Status>> + Send + 'static,
{
    answer.into_inner().boxed()
}
