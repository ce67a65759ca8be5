//! A store of turns, for any number of tasks: orders go to a thread that writes, and reads to another one,
//! which does not wait for the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::counts::{Counts, Live};
use crate::error::StateError;
use crate::limits::{Limits, MAX_QUEUED, MAX_WAITING};
use crate::order::{Clock, Order, Read};
use crate::turn::{NewTurn, Turn, Unanswered};
use crate::writer::Writer;
use crate::{files, schema, turns};

/// Stored turns. Dropping it ends its threads after what they were asked for.
#[derive(Debug)]
pub struct Store {
    orders: SyncSender<Order>,
    /// `None` = the thread that writes also reads.
    reads: Option<SyncSender<Read>>,
    waiting: Semaphore,
    counts: Arc<Live>,
}

impl Store {
    /// Opens the store in `directory`, or makes one.
    ///
    /// # Errors
    /// If another process uses it, it is something else, or the disk fails.
    pub fn open(directory: &Path, limits: Limits, clock: Clock) -> Result<Self, StateError> {
        let (path, lock) = files::prepare(directory)?;
        let connection = schema::open(&path)?;
        let reader = schema::open_reader(&path)?;
        let store = Self::start(connection, Some(lock), limits, clock)?;
        let (reads, queue) = sync_channel(MAX_QUEUED);
        named("responses read")
            .spawn(move || read_all(&reader, &queue))
            .map_err(|error| StateError::Io { path, error })?;
        Ok(Self { reads: Some(reads), ..store })
    }

    /// Makes a store in memory, which ends with this process.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn in_memory(limits: Limits, clock: Clock) -> Result<Self, StateError> {
        Self::start(schema::in_memory()?, None, limits, clock)
    }

    fn start(
        connection: Connection,
        lock: Option<std::fs::File>,
        limits: Limits,
        clock: Clock,
    ) -> Result<Self, StateError> {
        let (orders, queue) = sync_channel(MAX_QUEUED);
        let counts = Arc::new(Live::default());
        let writer = Writer { connection, lock, limits, clock, counts: counts.clone(), is_failing: false };
        named("responses write")
            .spawn(move || writer.run(&queue))
            .map_err(|error| StateError::Io { path: "a thread".into(), error })?;
        Ok(Self { orders, reads: None, waiting: Semaphore::new(MAX_WAITING), counts })
    }

    /// Stores `turn`; it is on the disk when this returns.
    ///
    /// # Errors
    /// If it does not fit, or the disk fails.
    pub async fn add(&self, turn: NewTurn) -> Result<(), StateError> {
        self.order(|done| Order::Add(Box::new(turn), done)).await
    }

    /// Replaces the answer of the turn `id` of `owner`, which is still to be answered; with `is_last` it is
    /// then answered. Returns whether there was such a turn.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub async fn answer(
        &self,
        owner: &str,
        id: &str,
        answer: String,
        is_last: bool,
    ) -> Result<bool, StateError> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.order(|done| Order::Answer { owner, id, answer, is_last, done }).await
    }

    /// The turns that are still to be answered, in the order in which they came.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn unanswered(&self) -> Result<Vec<Unanswered>, StateError> {
        self.read(turns::unanswered).await
    }

    /// Deletes the turn `id` of `owner`; returns whether there was one. Later turns that continue it can be
    /// read, but not continued.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn delete(&self, owner: &str, id: &str) -> Result<bool, StateError> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.order(|done| Order::Delete { owner, id, done }).await
    }

    /// The turn `id` of `owner`.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn turn(&self, owner: &str, id: &str) -> Result<Option<Turn>, StateError> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.read(move |connection| turns::one(connection, &owner, &id)).await
    }

    /// The turn `id` of `owner` after all that it continues, the first one first.
    ///
    /// # Errors
    /// If one of them is not stored, they are too many or too long, or the disk fails.
    pub async fn turns_up_to(&self, owner: &str, id: &str) -> Result<Vec<Turn>, StateError> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.read(move |connection| turns::up_to(connection, &owner, &id)).await
    }

    /// What it has and did.
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }

    async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, StateError>>) -> Order,
    ) -> Result<T, StateError> {
        let _place = self.waiting.acquire().await.map_err(|_| StateError::Ended)?;
        let (done, answer) = oneshot::channel();
        self.orders.try_send(order(done)).map_err(|error| refused(&error))?;
        answer.await.map_err(|_| StateError::Ended)?
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, StateError> {
        let _place = self.waiting.acquire().await.map_err(|_| StateError::Ended)?;
        let (done, answer) = oneshot::channel();
        let read: Read = Box::new(move |connection| drop(done.send(read(connection))));
        match &self.reads {
            Some(reads) => reads.try_send(read).map_err(|error| refused(&error))?,
            None => self.orders.try_send(Order::Read(read)).map_err(|error| refused(&error))?,
        }
        answer.await.map_err(|_| StateError::Ended)?
    }
}

fn refused<T>(error: &TrySendError<T>) -> StateError {
    match error {
        TrySendError::Full(_) => StateError::Busy,
        TrySendError::Disconnected(_) => StateError::Ended,
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned())
}

fn read_all(connection: &Connection, queue: &Receiver<Read>) {
    while let Ok(read) = queue.recv() {
        read(connection);
    }
}
