//! The thread that writes. Writes that wait together share a transaction, and so a sync of the disk; each is
//! answered once it is on the disk. If one of them fails, all are undone and tried again one by one.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::counts::Live;
use crate::error::StateError;
use crate::limits::{Limits, MAX_PAGES_RETURNED, MAX_SWEPT, MAX_WRITES, SWEEP};
use crate::order::{Clock, Order};
use crate::{room, turns};

/// Writes until no one can send orders any more.
pub struct Writer {
    /// The connection.
    pub connection: Connection,
    /// Held as long as the store is open.
    pub lock: Option<File>,
    /// Bounds on what is kept.
    pub limits: Limits,
    /// Seconds since 1970.
    pub clock: Clock,
    /// What was done.
    pub counts: Arc<Live>,
    /// Whether the last write failed, which is logged once.
    pub is_failing: bool,
}

/// What a write did.
#[derive(Debug, Clone, Copy)]
enum Done {
    Added { evicted: u64 },
    Answered { evicted: Option<u64> },
    Deleted(bool),
}

impl Writer {
    /// Takes orders from `orders`.
    pub fn run(mut self, orders: &Receiver<Order>) {
        self.count_turns();
        let mut is_more = self.sweep();
        let mut last_sweep = (self.clock)();
        loop {
            let pause = if is_more { Duration::ZERO } else { SWEEP };
            let batch = match orders.recv_timeout(pause) {
                Ok(first) => self.gather(first, orders),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.write(batch);
            let now = (self.clock)();
            if is_more || now.saturating_sub(last_sweep) >= SWEEP.as_secs() {
                is_more = self.sweep();
                last_sweep = now;
            }
        }
        // Nothing is lost if this fails: the next start reads the log of the database.
        let _ = self.connection.close();
        drop(self.lock);
    }

    /// Writes that wait, from `first` on. Reads among them are done at once.
    fn gather(&self, first: Order, orders: &Receiver<Order>) -> Vec<Order> {
        let mut writes = Vec::new();
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                Order::Read(read) => read(&self.connection),
                write => writes.push(write),
            }
            next = if writes.len() < MAX_WRITES { orders.try_recv().ok() } else { None };
        }
        writes
    }

    fn write(&mut self, batch: Vec<Order>) {
        if batch.is_empty() {
            return;
        }
        let done: Vec<Result<Done, StateError>> = match self.transaction(&batch) {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(error) if batch.len() == 1 => vec![Err(error)],
            Err(_) => batch.iter().map(|order| self.alone(order)).collect(),
        };
        for (order, done) in batch.into_iter().zip(done) {
            self.note(&order, &done);
            match order {
                // Who asked may be gone.
                Order::Add(_, reply) => drop(reply.send(done.map(|_| ()))),
                Order::Delete { done: reply, .. } | Order::Answer { done: reply, .. } => {
                    let was_there =
                        |done| matches!(done, Done::Deleted(true) | Done::Answered { evicted: Some(_) });
                    drop(reply.send(done.map(was_there)));
                }
                Order::Read(_) => {}
            }
        }
        self.recount();
    }

    fn alone(&mut self, order: &Order) -> Result<Done, StateError> {
        let done = self.transaction(std::slice::from_ref(order))?;
        done.into_iter().next().ok_or(StateError::Ended)
    }

    /// Does all of `orders`, or nothing.
    fn transaction(&mut self, orders: &[Order]) -> Result<Vec<Done>, StateError> {
        let now = i64::try_from((self.clock)()).unwrap_or(i64::MAX);
        // Rolled back when it is dropped.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let limit = self.limits.bytes;
        let one = |order: &Order| match order {
            Order::Add(turn, _) => {
                turns::add(&transaction, turn, now, limit).map(|evicted| Done::Added { evicted })
            }
            Order::Answer { owner, id, answer, is_last, .. } => {
                turns::answer(&transaction, (owner, id), answer, *is_last, limit)
                    .map(|evicted| Done::Answered { evicted })
            }
            Order::Delete { owner, id, .. } => turns::delete(&transaction, owner, id).map(Done::Deleted),
            Order::Read(_) => Ok(Done::Deleted(false)),
        };
        let done = orders.iter().map(one).collect::<Result<_, _>>()?;
        transaction.commit()?;
        Ok(done)
    }

    /// Counts a write. A change between failing and not is logged.
    fn note(&mut self, order: &Order, done: &Result<Done, StateError>) {
        let add = |count: &AtomicU64, more| count.fetch_add(more, Ordering::Relaxed);
        match done {
            Ok(Done::Added { evicted }) => {
                add(&self.counts.stored, 1);
                add(&self.counts.turns, 1);
                self.evicted(*evicted);
            }
            Ok(Done::Answered { evicted }) => self.evicted(evicted.unwrap_or(0)),
            Ok(Done::Deleted(deleted)) => {
                add(&self.counts.deleted, u64::from(*deleted));
                self.counts.turns.fetch_sub(u64::from(*deleted), Ordering::Relaxed);
            }
            Err(error) => {
                add(&self.counts.not_stored, u64::from(!matches!(order, Order::Delete { .. })));
                let is_ours = !matches!(error, StateError::TooLarge { .. });
                if is_ours && !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, "responses cannot be stored: answers say \"store\": false");
                }
                return;
            }
        }
        if std::mem::replace(&mut self.is_failing, false) {
            tracing::info!("responses are stored again");
        }
    }

    fn evicted(&self, turns: u64) {
        self.counts.evicted.fetch_add(turns, Ordering::Relaxed);
        self.counts.turns.fetch_sub(turns, Ordering::Relaxed);
    }

    /// Removes what has expired, and returns the room to the disk. Returns whether there may be more.
    fn sweep(&mut self) -> bool {
        let now = (self.clock)();
        let before = i64::try_from(now.saturating_sub(self.limits.kept_for.as_secs())).unwrap_or(i64::MAX);
        let swept = self.expire(before).inspect_err(|error| {
            tracing::warn!(%error, "expired responses were not removed");
        });
        let shrunk = self.shrink();
        let _ =
            shrunk.inspect_err(|error| tracing::warn!(%error, "room of removed responses is not returned"));
        let (removed, is_more) = swept.unwrap_or_default();
        self.counts.expired.fetch_add(removed, Ordering::Relaxed);
        self.counts.turns.fetch_sub(removed, Ordering::Relaxed);
        self.recount();
        is_more
    }

    fn expire(&mut self, before: i64) -> Result<(u64, bool), StateError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let removed = room::expire(&transaction, before, MAX_SWEPT)?;
        transaction.commit()?;
        Ok(removed)
    }

    /// Returns pages without content to the disk, and empties the log of the database.
    fn shrink(&self) -> Result<(), StateError> {
        // Each row of the result is a page.
        let mut vacuum =
            self.connection.prepare(&format!("PRAGMA incremental_vacuum({MAX_PAGES_RETURNED})"))?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        drop(pages);
        drop(vacuum);
        // After this the log has no deleted text. A reader may prevent it until the next sweep.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }

    /// Counts the turns that are there at the start.
    fn count_turns(&self) {
        if let Ok(turns) = room::turns(&self.connection) {
            self.counts.turns.store(turns, Ordering::Relaxed);
        }
    }

    /// Reads how many bytes there are.
    fn recount(&self) {
        if let Ok(bytes) = room::bytes(&self.connection) {
            self.counts.bytes.store(bytes, Ordering::Relaxed);
        }
    }
}
