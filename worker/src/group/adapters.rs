//! Adapters on the ranks of a group. The leader decides which ranks have them in memory and says so in
//! frames, before the step that needs one; followers read them beside their steps.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use skein_proto::adapter::AdapterId;

use super::frame::Frame;
use crate::backend::{Batch, LoadedAdapter};
use crate::model::served_adapter::HeldAdapter;

/// Which adapters the followers have, by the leader's frames. Pure.
#[derive(Debug)]
pub struct Announced {
    /// Most adapters in memory; no more are in use at once.
    most: usize,
    /// Least recently used first.
    held: Vec<AdapterId>,
}

impl Announced {
    /// None yet, at most `most`.
    pub fn new(most: usize) -> Self {
        Self { most, held: Vec::new() }
    }

    /// Frames that must precede a step over `batch`.
    pub fn before(&mut self, batch: &Batch) -> Vec<Frame> {
        let mut frames = Vec::new();
        let used: Vec<&Arc<LoadedAdapter>> =
            batch.sequences.iter().filter_map(|sequence| sequence.adapter.as_ref()).collect();
        for adapter in &used {
            if let Some(at) = self.held.iter().position(|id| *id == adapter.id) {
                let id = self.held.remove(at);
                self.held.push(id);
                continue;
            }
            let is_idle = |id: &AdapterId| !used.iter().any(|adapter| adapter.id == *id);
            while self.held.len() >= self.most {
                let Some(at) = self.held.iter().position(is_idle) else { break };
                frames.push(Frame::Unload(self.held.remove(at)));
            }
            self.held.push(adapter.id);
            frames.push(Frame::Load(adapter.id, adapter.directory.clone()));
        }
        frames
    }
}

/// Reads this rank's part of the adapter in a directory, whose identity must be the given one.
pub type ReadAdapter = dyn Fn(AdapterId, &Path) -> Result<HeldAdapter, String> + Send + Sync;

/// The adapters of a follower.
pub struct Followed {
    read: Option<Arc<ReadAdapter>>,
    held: HashMap<AdapterId, Loading>,
}

enum Loading {
    Reading(JoinHandle<Result<HeldAdapter, String>>),
    Ready(Arc<LoadedAdapter>),
}

impl Followed {
    /// None yet; `None`: the rank serves none.
    pub fn new(read: Option<Arc<ReadAdapter>>) -> Self {
        Self { read, held: HashMap::new() }
    }

    /// Begins to read an adapter.
    ///
    /// # Errors
    /// If the rank serves none, or has no thread for it.
    pub fn load(&mut self, id: AdapterId, directory: PathBuf) -> Result<(), String> {
        let read = self.read.clone().ok_or("the leader sent an adapter to a rank that serves none")?;
        let thread = std::thread::Builder::new().name("skein-adapter".into());
        let thread = thread.spawn(move || read(id, &directory));
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.held.insert(id, Loading::Reading(thread));
        Ok(())
    }

    /// Forgets an adapter; steps in flight keep it.
    pub fn unload(&mut self, id: AdapterId) {
        self.held.remove(&id);
    }

    /// Gives each sequence of `batch` this rank's part of its adapter; waits for those that are being read.
    ///
    /// # Errors
    /// If one could not be read, or was never announced.
    pub fn fill(&mut self, batch: &mut Batch) -> Result<(), String> {
        for adapter in batch.sequences.iter_mut().filter_map(|sequence| sequence.adapter.as_mut()) {
            *adapter = self.get(adapter.id)?;
        }
        Ok(())
    }

    fn get(&mut self, id: AdapterId) -> Result<Arc<LoadedAdapter>, String> {
        let unknown = || format!("the leader sent a step with the adapter {:016x} and not the adapter", id.0);
        let adapter = match self.held.remove(&id).ok_or_else(unknown)? {
            Loading::Ready(adapter) => adapter,
            Loading::Reading(thread) => {
                let held = thread.join().unwrap_or_else(|_| Err("reading an adapter panicked".into()))?;
                Arc::new(LoadedAdapter::new(id, Some(Arc::new(held)), Arc::default()))
            }
        };
        self.held.insert(id, Loading::Ready(adapter.clone()));
        Ok(adapter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BatchSequence;

    fn batch(ids: &[u64]) -> Batch {
        let sequence = |id: &u64| {
            let adapter = LoadedAdapter::new(AdapterId(*id), None, Arc::default());
            let adapter = Some(Arc::new(adapter.in_directory(format!("/{id}").into())));
            BatchSequence { rows: 0..1, context_len: 1, blocks: 0..1, adapter }
        };
        Batch { sequences: ids.iter().map(sequence).collect(), ..Batch::default() }
    }

    #[test]
    fn the_adapter_unused_for_longest_goes_and_never_one_of_the_step() {
        let mut announced = Announced::new(2);
        let mut frames = |ids: &[u64]| -> Vec<String> {
            let name = |frame: &Frame| match frame {
                Frame::Load(id, directory) => format!("load {} from {}", id.0, directory.display()),
                Frame::Unload(id) => format!("unload {}", id.0),
                other => format!("{other:?}"),
            };
            announced.before(&batch(ids)).iter().map(name).collect()
        };
        assert_eq!(frames(&[1, 1]), ["load 1 from /1"]);
        assert_eq!(frames(&[1, 2]), ["load 2 from /2"]);
        assert_eq!(frames(&[]), [""; 0]);
        assert_eq!(frames(&[1]), [""; 0]);
        assert_eq!(frames(&[3]), ["unload 2", "load 3 from /3"]);
        assert_eq!(frames(&[1, 2]), ["unload 3", "load 2 from /2"], "1 is of the step");
    }

    #[test]
    fn an_adapter_that_cannot_be_read_is_an_error_of_the_step_that_needs_it() {
        let read = |id: AdapterId, directory: &Path| Err(format!("{} has no {}", directory.display(), id.0));
        let mut followed = Followed::new(Some(Arc::new(read)));
        followed.load(AdapterId(7), "/a".into()).unwrap();
        assert_eq!(followed.fill(&mut batch(&[])), Ok(()));
        assert_eq!(followed.fill(&mut batch(&[7])), Err("/a has no 7".into()));
        assert!(followed.fill(&mut batch(&[8])).unwrap_err().contains("0000000000000008"));
        assert!(Followed::new(None).load(AdapterId(7), "/a".into()).is_err());
    }
}
