//! Adapters on the ranks of a group. The leader's table decides which ones are in memory. It tells the other
//! ranks in frames, which all ranks read in one order: a rank has an adapter before the first step that needs
//! it, and until after the last. Ranks read files on threads of their own, beside their steps, and answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use skein_model::served_adapter::HeldAdapter;
use skein_node::clock;
use skein_proto::adapter::AdapterId;

use super::frame::Frame;
use super::heartbeat::HEARTBEAT_INTERVAL;
use super::processes::Answer;
use super::sender::FrameSender;
use super::watch::Watch;
use crate::backend::{Batch, LoadedAdapter};

/// Longest wait for the other ranks to check or read an adapter.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// The leader's side: has the other ranks check, read and forget adapters.
pub struct RankAdapters {
    frames: Arc<FrameSender>,
    watch: Watch,
    /// Where each rank is, for errors; the leader first.
    places: Vec<String>,
    /// Locked from a frame to its answers, so that there is one order at a time.
    sent: Mutex<Sent>,
}

struct Sent {
    answers: Receiver<(usize, Answer)>,
    /// Adapters that the ranks have.
    held: BTreeSet<AdapterId>,
}

impl std::fmt::Debug for RankAdapters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RankAdapters").field("places", &self.places).finish_non_exhaustive()
    }
}

impl RankAdapters {
    /// Adapters of the ranks at `places`, leader first. Ranks read `frames` and answer on `answers`; `watch`
    /// reports a lost rank.
    pub fn new(
        frames: Arc<FrameSender>,
        watch: Watch,
        places: Vec<String>,
        answers: Receiver<(usize, Answer)>,
    ) -> Self {
        Self { frames, watch, places, sent: Mutex::new(Sent { answers, held: BTreeSet::new() }) }
    }

    /// Checks that the machine of each rank has the adapter `id` in `directory`. Blocks.
    ///
    /// # Errors
    /// Names the first rank that has not, and what it found.
    pub fn examine(&self, id: AdapterId, directory: &Path) -> Result<(), String> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        self.order(&mut sent, &Frame::Examine(id, directory.to_owned()))
    }

    /// Has all ranks read the adapter `id` in `directory`, and forget those that `keeps` denies. Blocks.
    ///
    /// # Errors
    /// Names the first rank that cannot; then none has it.
    pub fn load(
        &self,
        id: AdapterId,
        directory: &Path,
        keeps: impl Fn(AdapterId) -> bool,
    ) -> Result<(), String> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let goes: Vec<AdapterId> = sent.held.iter().copied().filter(|held| !keeps(*held)).collect();
        for old in goes {
            self.frames.write(&Frame::Unload(old))?;
            sent.held.remove(&old);
        }
        sent.held.insert(id);
        self.order(&mut sent, &Frame::Load(id, directory.to_owned())).inspect_err(|_| {
            sent.held.remove(&id);
            // An error means that the group has ended.
            let _ = self.frames.write(&Frame::Unload(id));
        })
    }

    /// Sends a frame and waits until all ranks have carried it out.
    fn order(&self, sent: &mut Sent, frame: &Frame) -> Result<(), String> {
        let number = self.frames.write(frame)?;
        let (began, mut problems) = (clock::now(), BTreeMap::new());
        while problems.len() + 1 < self.places.len() {
            if self.watch.is_over() {
                return Err(self.watch.failure().unwrap_or_else(|| "the group has stopped".to_owned()));
            }
            match sent.answers.recv_timeout(HEARTBEAT_INTERVAL) {
                // The answer to an earlier order was late.
                Ok((_, Answer::Adapter { frame, .. })) if frame != number => {}
                Ok((rank, Answer::Adapter { problem, .. })) => drop(problems.insert(rank, problem)),
                Ok((rank, other)) => tracing::debug!(rank, ?other, "ignored an unexpected answer"),
                Err(RecvTimeoutError::Timeout) if clock::now().since(began) < ANSWERS_WITHIN => {}
                Err(RecvTimeoutError::Timeout) => {
                    let late = (1..self.places.len()).find(|rank| !problems.contains_key(rank));
                    let late = late.map_or("a rank", |rank| &self.places[rank]);
                    return Err(format!(
                        "{late} has not read the adapter within {} s",
                        ANSWERS_WITHIN.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("the group has ended".to_owned()),
            }
        }
        let first = problems.into_iter().find_map(|(rank, problem)| Some((rank, problem?)));
        first.map_or(Ok(()), |(rank, problem)| Err(format!("{}: {problem}", self.places[rank])))
    }
}

/// Reads or checks an adapter: its identity and directory. The error says what is wrong.
type OnAdapter<T> = dyn Fn(AdapterId, &Path) -> Result<T, String> + Send + Sync;

/// What a rank can do with adapters.
pub struct RankReader {
    /// Reads this rank's part of an adapter.
    pub read: Box<OnAdapter<HeldAdapter>>,
    /// Checks that an adapter could be read on this machine.
    pub check: Box<OnAdapter<()>>,
    /// Answers the frame of a number; `None` = it has been carried out.
    pub answer: Box<dyn Fn(u64, Option<String>) + Send + Sync>,
}

/// The adapters of a follower.
pub struct Followed {
    reader: Option<Arc<RankReader>>,
    held: HashMap<AdapterId, Loading>,
}

enum Loading {
    Reading(JoinHandle<Option<HeldAdapter>>),
    Ready(Arc<LoadedAdapter>),
}

impl Followed {
    /// None yet; `None`: the rank serves none.
    pub fn new(reader: Option<RankReader>) -> Self {
        Self { reader: reader.map(Arc::new), held: HashMap::new() }
    }

    /// Checks an adapter and answers frame `number`, on a thread.
    ///
    /// # Errors
    /// If the rank serves none, or has no thread for it.
    pub fn examine(&mut self, number: u64, id: AdapterId, directory: PathBuf) -> Result<(), String> {
        self.begin(move |reader| (reader.answer)(number, (reader.check)(id, &directory).err())).map(drop)
    }

    /// Begins to read an adapter on a thread, which answers frame `number`.
    ///
    /// # Errors
    /// As [`examine`](Self::examine).
    pub fn load(&mut self, number: u64, id: AdapterId, directory: PathBuf) -> Result<(), String> {
        let read = move |reader: &RankReader| match (reader.read)(id, &directory) {
            Ok(held) => {
                (reader.answer)(number, None);
                Some(held)
            }
            Err(why) => {
                (reader.answer)(number, Some(why));
                None
            }
        };
        let thread = self.begin(read)?;
        self.held.insert(id, Loading::Reading(thread));
        Ok(())
    }

    fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RankReader) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, String> {
        let reader = self.reader.clone().ok_or("the leader sent an adapter to a rank that serves none")?;
        let thread = std::thread::Builder::new().name("skein-adapter".into());
        thread.spawn(move || work(&reader)).map_err(|error| format!("cannot start a thread: {error}"))
    }

    /// Forgets an adapter; steps in flight keep it.
    pub fn unload(&mut self, id: AdapterId) {
        self.held.remove(&id);
    }

    /// Gives each sequence of `batch` this rank's part of its adapter.
    ///
    /// # Errors
    /// If the rank does not have one, which the leader knew.
    pub fn fill(&mut self, batch: &mut Batch) -> Result<(), String> {
        for adapter in batch.sequences.iter_mut().filter_map(|sequence| sequence.adapter.as_mut()) {
            *adapter = self.get(adapter.id)?;
        }
        Ok(())
    }

    fn get(&mut self, id: AdapterId) -> Result<Arc<LoadedAdapter>, String> {
        let missing = || format!("the leader sent a step with the adapter {:016x}, which is not here", id.0);
        let adapter = match self.held.remove(&id).ok_or_else(missing)? {
            Loading::Ready(adapter) => adapter,
            Loading::Reading(thread) => {
                let held = thread.join().ok().flatten().ok_or_else(missing)?;
                Arc::new(LoadedAdapter::new(id, Some(Arc::new(held)), Arc::default()))
            }
        };
        self.held.insert(id, Loading::Ready(adapter.clone()));
        Ok(adapter)
    }
}
