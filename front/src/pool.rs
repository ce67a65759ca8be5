//! Connections to one worker: HTTP/1.1, kept while idle, the last used first.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use skein_node::clock::{self, Timestamp};
use skein_tls::{ClientStream, ClientTls};
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::WorkerUrl;
use super::kserve::Kserve;

/// Time for a connection to a worker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most idle connections to a worker.
const MAX_IDLE: usize = 1024;
/// Longest idle time: below the five seconds after which uvicorn, which serves vLLM, closes.
const IDLE_FOR: Duration = Duration::from_secs(4);
/// Most header lines of a response.
const MAX_HEADERS: usize = 100;
/// Most header bytes of a response, and bytes read at once.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// A connection. It runs only while something waits for it: a task of its own would cost two switches for
/// every part of a stream.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    io: Pin<Box<http1::Connection<TokioIo<Wire>, Full<Bytes>>>>,
    ended: bool,
    /// Takes no request after this one.
    is_last: bool,
}

impl Connection {
    /// Sends `request` and waits for the head of its response.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Sent {
        let sent = self.sender.try_send_request(request);
        self.drive(sent).await
    }

    /// Runs the connection while `work`, which reads a response, waits for it.
    pub async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| self.poll_with(context, |context| work.as_mut().poll(context))).await
    }

    /// Polls `work`; if it waits, advances the connection and polls it again.
    pub fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let done = work(context);
        if done.is_ready() {
            return done;
        }
        self.advance(context);
        work(context)
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        if !self.ended
            && let Poll::Ready(ended) = self.io.as_mut().poll(context)
        {
            self.ended = true;
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to a worker broke");
            }
        }
    }

    /// Takes no other request: where a response on it ends is in doubt.
    pub fn use_once(&mut self) {
        self.is_last = true;
    }

    /// Whether it can take a request now: the worker has not closed it.
    async fn is_ready(&mut self) -> bool {
        let ready = poll_fn(|context| {
            self.advance(context);
            self.sender.poll_ready(context)
        });
        ready.await.is_ok() && !self.ended
    }
}

/// A socket, with or without TLS, or a pipe to what speaks for a KServe server.
type Wire = Either<TcpStream, Either<Box<ClientStream>, DuplexStream>>;

/// The response to a request, or why there is none.
pub type Sent = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

/// Idle connections to a worker.
pub struct Pool {
    url: WorkerUrl,
    kserve: Option<Arc<Kserve>>,
    tls: Option<ClientTls>,
    /// Address to connect to instead of those of the URL's host.
    address: Mutex<Option<SocketAddr>>,
    idle: Mutex<VecDeque<(Connection, Timestamp)>>,
}

impl Pool {
    /// An empty pool; `tls` is for URLs that ask for it.
    pub fn new(url: WorkerUrl, tls: Option<ClientTls>) -> Self {
        let kserve = url.is_kserve().then(|| Kserve::new(&url.authority())).flatten();
        let tls = tls.filter(|_| url.is_tls());
        Self { url, kserve, tls, address: Mutex::default(), idle: Mutex::default() }
    }

    /// Connects to `address` from now on; `None` = those of the URL's host. Idle connections are closed.
    pub fn move_to(&self, address: Option<SocketAddr>) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
        self.clear();
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Connection, Timestamp)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection, if there is one.
    pub async fn idle_one(&self) -> Option<Connection> {
        loop {
            let (mut connection, since) = self.idle().pop_back()?;
            if clock::now().since(since) < IDLE_FOR && connection.is_ready().await {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    ///
    /// # Errors
    /// Why the worker cannot be reached.
    pub async fn connect(&self) -> Result<Connection, String> {
        let wire = match &self.kserve {
            Some(kserve) => Either::Right(Either::Right(kserve.connect())),
            None => match tokio::time::timeout(CONNECT_TIMEOUT, self.connect_socket()).await {
                Ok(connected) => connected?,
                Err(_) => return Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
            },
        };
        let mut builder = http1::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER_BYTES);
        let handshake = builder.handshake(TokioIo::new(wire)).await;
        let (sender, io) = handshake.map_err(|error| error.to_string())?;
        Ok(Connection { sender, io: Box::pin(io), ended: false, is_last: false })
    }

    async fn connect_socket(&self) -> Result<Wire, String> {
        let address = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let connected = match address {
            Some(address) => TcpStream::connect(address).await,
            None => TcpStream::connect(self.url.endpoint()).await,
        };
        let stream = connected.map_err(|error| error.to_string())?;
        // If the socket refuses the option, use it anyway.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return Ok(Either::Left(stream)) };
        let stream = tls.connect(self.url.endpoint().0, stream).await.map_err(|error| error.to_string())?;
        Ok(Either::Right(Either::Left(Box::new(stream))))
    }

    /// Keeps a connection whose response was read to its end.
    pub fn keep(&self, connection: Connection) {
        if connection.ended || connection.is_last {
            return;
        }
        let now = clock::now();
        let mut idle = self.idle();
        while idle.front().is_some_and(|(_, since)| now.since(*since) >= IDLE_FOR) || idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back((connection, now));
    }

    /// Closes connections that have been idle for long.
    pub fn prune(&self) {
        let now = clock::now();
        self.idle().retain(|(_, since)| now.since(*since) < IDLE_FOR);
    }

    /// Closes all idle connections.
    pub fn clear(&self) {
        self.idle().clear();
    }
}
