//! Shards: threads that serve connections, each with an event loop of its own, so that a request stays on one
//! processor and wakes no other thread. What serves them all (links to workers, health, batches, the metrics
//! port) stays on the runtime that accepts the connections. Knows neither HTTP nor requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::shard;

/// Most shards of a process: each has a connection to each worker.
pub const MOST: usize = 64;
/// A request of HTTP/2 goes to a shard that has this much less to do than its connection's. To move costs
/// wake-ups of two threads for each message, so few requests stay.
const MOVES_FROM: usize = 8;

/// Most threads for blocking work of all shards together: files, text. What tokio has for one runtime.
const BLOCKING_THREADS: usize = 512;

/// The shards of one server. They end when this is dropped, with all that still runs on them.
#[derive(Debug)]
pub struct Shards {
    loops: Loops,
    threads: Vec<JoinHandle<()>>,
    _ending: DropGuard,
}

/// The event loops of all shards, shard 1 first.
#[derive(Debug, Clone)]
struct Loops {
    all: Arc<[Loop]>,
    /// Where the next search for the least loaded begins, so that equals take turns.
    next: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Loop {
    runtime: Handle,
    /// Connections, and requests of HTTP/2, on it.
    load: Arc<AtomicUsize>,
}

/// A connection on its way to the event loop that serves it.
pub struct Moving(io::Result<Where>);

enum Where {
    Here(TcpStream),
    Elsewhere(std::net::TcpStream),
}

impl Moving {
    /// The connection, registered with the event loop of the caller.
    ///
    /// # Errors
    /// If the system cannot register it.
    pub fn arrived(self) -> io::Result<TcpStream> {
        match self.0? {
            Where::Here(stream) => Ok(stream),
            Where::Elsewhere(stream) => TcpStream::from_std(stream),
        }
    }
}

/// Counts what runs on a shard, until it is dropped.
struct OnShard(Arc<AtomicUsize>);

impl Drop for OnShard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shards {
    /// Starts `count` shards. With 0 the runtime of the caller serves all connections.
    ///
    /// # Errors
    /// If the system gives no thread or no descriptor.
    pub fn start(count: usize) -> io::Result<Self> {
        let ending = CancellationToken::new();
        let started = (1..=count)
            .map(|number| start(number, BLOCKING_THREADS / count, ending.clone()))
            .collect::<io::Result<Vec<_>>>();
        // On an error this ends those that have started.
        let _ending = ending.drop_guard();
        let (loops, threads): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
        Ok(Self { loops: Loops { all: loops.into(), next: Arc::default() }, threads, _ending })
    }

    /// Runs `connection` on the shard that has the least to do, as a member of `connections`.
    pub fn spawn(
        &self,
        connections: &mut JoinSet<()>,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        match self.loops.least() {
            Some(least) => connections.spawn_on(least.counting(connection), &least.runtime),
            None => connections.spawn(connection),
        };
    }

    /// Takes a connection from the event loop that accepted it, for [`Shards::spawn`].
    pub fn moving(&self, stream: TcpStream) -> Moving {
        if self.threads.is_empty() {
            return Moving(Ok(Where::Here(stream)));
        }
        Moving(stream.into_std().map(Where::Elsewhere))
    }

    /// Runs the requests of HTTP/2 connections.
    pub fn executor(&self) -> ForStreams {
        ForStreams(self.loops.clone())
    }

    /// Ends the shards and waits until everything that ran on them has been dropped.
    pub async fn end(self) {
        drop(self._ending);
        // A panic there was logged there.
        let joined = || self.threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = tokio::task::spawn_blocking(joined).await;
    }
}

/// Runs the requests of an HTTP/2 connection: on the connection's shard, unless that has much more to do than
/// another. Else a client with one connection would have one processor.
#[derive(Debug, Clone)]
pub struct ForStreams(Loops);

impl<F> Executor<F> for ForStreams
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let here = shard::current().checked_sub(1).and_then(|index| self.0.all.get(index));
        let (Some(here), Some(least)) = (here, self.0.least()) else {
            tokio::spawn(stream);
            return;
        };
        let stays = here.load() < least.load() + MOVES_FROM;
        let chosen = if stays { here } else { least };
        chosen.runtime.spawn(chosen.counting(stream));
    }
}

impl Loops {
    /// The one with the least to do; `None` without shards.
    fn least(&self) -> Option<&Loop> {
        let count = self.all.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..count).map(|after| &self.all[first.wrapping_add(after) % count]).min_by_key(|it| it.load())
    }
}

impl Loop {
    fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// `work`, counted from now on until it is dropped.
    fn counting<F: Future>(&self, work: F) -> Counting<F> {
        self.load.fetch_add(1, Ordering::Relaxed);
        Counting { work, _on: OnShard(self.load.clone()) }
    }
}

pin_project! {
    /// Work that is counted at its shard. An `async` block would keep room for it twice.
    struct Counting<F> {
        #[pin]
        work: F,
        _on: OnShard,
    }
}

impl<F: Future> Future for Counting<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(context)
    }
}

fn start(number: usize, blocking: usize, ending: CancellationToken) -> io::Result<(Loop, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread().max_blocking_threads(blocking.max(1)).enable_all().build()?;
    let handle = runtime.handle().clone();
    let run = move || {
        shard::enter(number);
        run(runtime, &ending);
    };
    let thread = thread::Builder::new().name(format!("shard-{number}")).spawn(run)?;
    Ok((Loop { runtime: handle, load: Arc::default() }, thread))
}

fn run(runtime: Runtime, ending: &CancellationToken) {
    runtime.block_on(ending.cancelled());
    // Drops the tasks here; a tokenization that nobody waits for any more does not delay the end.
    runtime.shutdown_background();
}

#[cfg(test)]
mod tests;
