//! The streams that gateways read through this router. Each reader has a name, by which it can be released or
//! one of its samples aborted. If a reader disconnects without a release, its stream is held for the linger
//! time that it requested, so that the gateway (or its successor) can return through this router or another,
//! and is then dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::task;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::generator::TokenSource;

/// Longest time a stream is held without its reader. Workers have the same bound.
const LONGEST_LINGER: Duration = Duration::from_secs(300);
/// Most aborts queued per reader; each sample is aborted at most once.
const MAX_ABORTS: usize = 64;

/// The readers by name. Clones share the map.
#[derive(Clone, Default)]
pub struct Readers(Arc<Mutex<BTreeMap<String, Reader>>>);

struct Reader {
    released: CancellationToken,
    aborts: mpsc::Sender<u32>,
}

/// A stream being read. If dropped before its end and without a release, the stream is held for `linger`.
pub struct Reading {
    readers: Readers,
    name: String,
    /// `None` once the stream has ended.
    pub source: Option<Box<dyn TokenSource>>,
    linger: Duration,
    released: CancellationToken,
}

/// Signals to the task that sends a reader its stream.
pub struct ReaderSignals {
    /// The reader is done with the stream.
    pub released: CancellationToken,
    /// Samples that the reader aborts.
    pub aborts: mpsc::Receiver<u32>,
}

impl Readers {
    /// Claims a name; `None` if it is in use.
    pub fn enter(&self, name: &str) -> Option<(Entered, ReaderSignals)> {
        let mut readers = self.lock();
        if readers.contains_key(name) {
            return None;
        }
        let (released, (aborts, aborts_in)) = (CancellationToken::new(), mpsc::channel(MAX_ABORTS));
        readers.insert(name.to_owned(), Reader { released: released.clone(), aborts });
        let entered =
            Entered { readers: self.clone(), name: name.to_owned(), released: released.clone(), kept: false };
        Some((entered, ReaderSignals { released, aborts: aborts_in }))
    }

    /// Releases a reader's stream; false if no reader has that name.
    pub fn release(&self, name: &str) -> bool {
        let reader = self.lock().remove(name);
        reader.map(|reader| reader.released.cancel()).is_some()
    }

    /// Aborts one sample of a reader; false if no reader has that name.
    pub fn abort(&self, name: &str, sample_index: u32) -> bool {
        // The channel is full only if every sample has been aborted, this one included.
        self.lock().get(name).map(|reader| reader.aborts.try_send(sample_index)).is_some()
    }

    /// Readers, including those that disconnected and whose stream is held.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Reader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claimed name whose stream has not started. Dropping it frees the name.
pub struct Entered {
    readers: Readers,
    name: String,
    released: CancellationToken,
    kept: bool,
}

impl Entered {
    /// Attaches the stream, which is held for `linger` if its reader disconnects.
    pub fn reads(mut self, source: Box<dyn TokenSource>, linger: Duration) -> Reading {
        self.kept = true;
        let (readers, name, released) = (self.readers.clone(), self.name.clone(), self.released.clone());
        Reading { readers, name, source: Some(source), linger: linger.min(LONGEST_LINGER), released }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.kept {
            self.readers.lock().remove(&self.name);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Without a runtime the process is exiting.
        let runtime = tokio::runtime::Handle::try_current();
        let held = self.source.take().filter(|_| !self.linger.is_zero() && !self.released.is_cancelled());
        let (Some(source), Ok(_)) = (held, runtime) else {
            self.readers.lock().remove(&self.name);
            return;
        };
        let (readers, name, released, linger) =
            (self.readers.clone(), std::mem::take(&mut self.name), self.released.clone(), self.linger);
        task::spawn(async move {
            let _ = tokio::time::timeout(linger, released.cancelled()).await;
            readers.lock().remove(&name);
            drop(source);
        });
    }
}
