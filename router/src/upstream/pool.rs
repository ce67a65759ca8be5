//! Connections to one worker: HTTP/1.1, kept while idle, the last used first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use skein_node::clock::{self, Timestamp};
use tokio::net::TcpStream;

use super::WorkerUrl;

/// Sends requests on one connection.
pub type Sender = SendRequest<Full<Bytes>>;

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

/// Idle connections to a worker.
pub struct Pool {
    url: WorkerUrl,
    idle: Mutex<VecDeque<(Sender, Timestamp)>>,
}

impl Pool {
    /// An empty pool.
    pub fn new(url: WorkerUrl) -> Self {
        Self { url, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Sender, Timestamp)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection, if there is one.
    pub async fn idle_one(&self) -> Option<Sender> {
        loop {
            let (mut sender, since) = self.idle().pop_back()?;
            let is_fresh = clock::now().since(since) < IDLE_FOR && !sender.is_closed();
            // The connection's task may still have to notice the end of the last response.
            if is_fresh && (sender.is_ready() || sender.ready().await.is_ok()) {
                return Some(sender);
            }
        }
    }

    /// A new connection.
    ///
    /// # Errors
    /// Why the worker cannot be reached.
    pub async fn connect(&self) -> Result<Sender, String> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.url.endpoint())).await;
        let stream = match connected {
            Ok(connected) => connected.map_err(|error| error.to_string())?,
            Err(_) => return Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
        };
        // If the socket refuses the option, use it anyway.
        let _ = stream.set_nodelay(true);
        let mut builder = http1::Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER_BYTES);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a worker broke");
            }
        });
        Ok(sender)
    }

    /// Keeps a connection whose response was read to its end.
    pub fn keep(&self, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let now = clock::now();
        let mut idle = self.idle();
        while idle.front().is_some_and(|(_, since)| now.since(*since) >= IDLE_FOR) || idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back((sender, now));
    }

    /// Closes idle connections that have become old.
    pub fn prune(&self) {
        let now = clock::now();
        self.idle().retain(|(sender, since)| !sender.is_closed() && now.since(*since) < IDLE_FOR);
    }

    /// Closes all idle connections.
    pub fn clear(&self) {
        self.idle().clear();
    }
}
