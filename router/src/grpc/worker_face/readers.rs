//! Who reads streams through this router's worker face: each reader by its name, so that it can be released or lose a
//! sample, and the streams of readers that broke off without a word. Those are held for as long as their reader asked
//! (a gateway that died comes back through another router, or this one), and then let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::task;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::generator::TokenSource;

/// Longest time that a stream is held without its reader; workers have the same bound.
const LONGEST_LINGER: Duration = Duration::from_secs(300);
/// Samples that may wait to be aborted: each at most once.
const MAX_ABORTS: usize = 64;

/// The readers. Clones share them.
#[derive(Clone, Default)]
pub struct Readers(Arc<Mutex<BTreeMap<String, Entry>>>);

struct Entry {
    released: CancellationToken,
    aborts: mpsc::Sender<u32>,
}

/// What a reader reads. Dropped before its end, and without a release, it is held for a while.
pub struct Reading {
    readers: Readers,
    name: String,
    /// `None` once the stream is over.
    pub source: Option<Box<dyn TokenSource>>,
    linger: Duration,
    released: CancellationToken,
}

/// What a reader's stream is told.
pub struct Told {
    /// The reader leaves for good.
    pub released: CancellationToken,
    /// Samples that it wants no more of.
    pub aborts: mpsc::Receiver<u32>,
}

impl Readers {
    /// Takes a name; `None` when it is in use.
    pub fn enter(&self, name: &str) -> Option<(Entered, Told)> {
        let mut readers = self.lock();
        if readers.contains_key(name) {
            return None;
        }
        let (released, (aborts, wanted)) = (CancellationToken::new(), mpsc::channel(MAX_ABORTS));
        readers.insert(name.to_owned(), Entry { released: released.clone(), aborts });
        let entered =
            Entered { readers: self.clone(), name: name.to_owned(), released: released.clone(), kept: false };
        Some((entered, Told { released, aborts: wanted }))
    }

    /// Lets a reader leave for good; false when there is none of that name.
    pub fn release(&self, name: &str) -> bool {
        let entry = self.lock().remove(name);
        entry.map(|entry| entry.released.cancel()).is_some()
    }

    /// Ends one sample of a reader; false when there is none of that name.
    pub fn abort(&self, name: &str, sample_index: u32) -> bool {
        // With the channel full of samples that were aborted this one was, too.
        self.lock().get(name).map(|entry| entry.aborts.try_send(sample_index)).is_some()
    }

    /// Readers now, and streams held for those that broke off.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in use, before its stream has come. Dropped, it is free again.
pub struct Entered {
    readers: Readers,
    name: String,
    released: CancellationToken,
    kept: bool,
}

impl Entered {
    /// The stream has come: it lives on for `linger` if its reader breaks off.
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
        // Without a runtime the process is at its end.
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
