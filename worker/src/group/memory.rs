//! Shared memory of a group's processes on one node.
//!
//! ```text
//! exchanges of steps and of reports for each stage · heartbeat of each process · ring of frames · links
//! ```
//!
//! Processes are numbered on each node. Process 0 writes the frames and all others read them. On the first
//! node it is rank 0, the leader. On the other nodes it is the process connected to the leader, which is no
//! rank.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_kernels::collective::{End, Ring, RingError, RingReader, RingWriter, Shared};
use skein_sys::shared_memory::{APART, SharedMemory};

use super::topology::Topology;

/// Largest message of a rank in one exchange, in bytes; longer ones are split.
const EXCHANGE_BYTES: usize = 1 << 20;
/// Size of the frame ring, in bytes: several steps of 256 sequences of 2,000 tokens.
const RING_BYTES: usize = 4 << 20;
/// Size of a rank's report on a step, in bytes.
pub const REPORT_BYTES: usize = 16;
/// Smallest and largest link between two stages, in bytes.
const LINK_BYTES: [usize; 2] = [64 << 10, 64 << 20];
/// Longest frame, in words.
pub const MAX_FRAME_WORDS: usize = 1 << 28;

/// Layout of the shared memory on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    /// Topology of the whole group.
    pub topology: Topology,
    /// Number of this node, from 0.
    pub node: usize,
    /// Size of a link between two stages, in bytes.
    link_bytes: usize,
}

impl NodePlan {
    /// Layout on `node` if a stage sends at most `step_bytes` bytes per step to the next one. A link holds
    /// one step in transfer and one that waits.
    pub fn new(topology: Topology, node: usize, step_bytes: usize) -> Self {
        let [least, most] = LINK_BYTES;
        let link_bytes = (2 * step_bytes).next_multiple_of(4096).clamp(least, most);
        Self { topology, node, link_bytes }
    }

    /// Size of the shared memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.link_at(self.links())
    }

    /// Ranks on this node with a process of their own: all except the leader.
    pub fn children(&self) -> std::ops::Range<usize> {
        let each = self.topology.on_node();
        (self.node * each).max(1)..(self.node + 1) * each
    }

    /// Process number of `rank`, which must be on this node.
    pub fn process_of(&self, rank: usize) -> usize {
        rank - self.children().start + 1
    }

    /// Rank of `process`, which must not be 0.
    pub fn rank_of(&self, process: usize) -> usize {
        self.children().start + process - 1
    }

    /// Number of processes on this node.
    pub fn processes(&self) -> usize {
        1 + self.children().len()
    }

    fn places(&self) -> usize {
        self.topology.places()
    }

    fn links(&self) -> usize {
        (self.topology.stages_on_node() - 1) * self.places()
    }

    /// Index of `rank`'s stage among those on this node, counted from the last stage.
    fn stage_here(&self, rank: usize) -> usize {
        rank % self.topology.on_node() / self.places()
    }

    fn exchange_at(&self, stage: usize) -> usize {
        stage * Shared::bytes(self.places(), EXCHANGE_BYTES)
    }

    fn reports_at(&self, stage: usize) -> usize {
        self.exchange_at(self.topology.stages_on_node()) + stage * Shared::bytes(self.places(), REPORT_BYTES)
    }

    fn beat_at(&self, process: usize) -> usize {
        self.reports_at(self.topology.stages_on_node()) + process * APART
    }

    fn ring_at(&self) -> usize {
        self.beat_at(self.processes())
    }

    fn link_at(&self, link: usize) -> usize {
        self.ring_at() + Ring::size(RING_BYTES, self.processes() - 1) + link * Ring::size(self.link_bytes, 1)
    }
}

/// The mapped memory of a group on one node.
#[derive(Debug, Clone)]
pub struct GroupMemory {
    memory: SharedMemory,
    plan: NodePlan,
    /// Longest wait for other ranks within a step.
    timeout: Duration,
}

impl GroupMemory {
    /// Creates the memory for `plan`. Within a step, a rank waits at most `timeout` for the others.
    ///
    /// # Errors
    /// If the system cannot provide the memory.
    pub fn create(plan: NodePlan, timeout: Duration) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::create(plan.bytes())?, plan, timeout })
    }

    /// Maps the memory that this rank process inherited.
    ///
    /// # Errors
    /// If `descriptor` is not a group's memory.
    #[cfg(target_os = "linux")]
    pub fn inherited(descriptor: i32, plan: NodePlan, timeout: Duration) -> io::Result<Self> {
        let memory = SharedMemory::inherited(descriptor)?;
        if memory.len() != plan.bytes() {
            let why =
                format!("{} bytes do not fit the memory of a group of {:?}", memory.len(), plan.topology);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { memory, plan, timeout })
    }

    /// Descriptor under which a child process inherits the memory.
    #[cfg(target_os = "linux")]
    pub fn descriptor(&self) -> i32 {
        self.memory.descriptor()
    }

    /// Layout of this memory.
    pub fn plan(&self) -> NodePlan {
        self.plan
    }

    /// Longest wait for other ranks within a step.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Exchange of `rank` within steps, with the ranks of its stage on this node.
    pub fn exchange(&self, rank: usize) -> Shared {
        self.shared(rank, self.plan.exchange_at(self.plan.stage_here(rank)), EXCHANGE_BYTES)
    }

    /// Exchange of `rank`'s reports after steps, with the same ranks.
    pub fn reports(&self, rank: usize) -> Shared {
        self.shared(rank, self.plan.reports_at(self.plan.stage_here(rank)), REPORT_BYTES)
    }

    fn shared(&self, rank: usize, at: usize, bytes: usize) -> Shared {
        let places = self.plan.places();
        Shared::new(self.memory.clone(), at, (rank % places, places), bytes, self.timeout)
    }

    /// Link over which `rank` receives rows from the previous stage, if that stage is on this node.
    pub fn link_to(&self, rank: usize) -> Ring {
        let places = self.plan.places();
        let at = self.plan.link_at(self.plan.stage_here(rank) * places + rank % places);
        Ring::new(self.memory.clone(), at, self.plan.link_bytes, 1, self.end())
    }

    /// Counts a heartbeat of `process`.
    pub fn beat(&self, process: usize) {
        self.memory.word(self.plan.beat_at(process)).fetch_add(1, Ordering::Relaxed);
    }

    /// Number of heartbeats of `process` so far.
    pub fn beats(&self, process: usize) -> u32 {
        self.memory.word(self.plan.beat_at(process)).load(Ordering::Relaxed)
    }

    /// Fails every wait of every rank, with `rank` as the cause.
    pub fn end_because_of(&self, rank: usize) {
        let each = self.plan.topology.on_node();
        // The first exchange goes last because `cause` reads it.
        for of_stage in (0..each).step_by(self.plan.places()).rev() {
            self.reports(of_stage).end().because_of(rank);
            self.exchange(of_stage).end().because_of(rank);
        }
        self.frames().wake();
        (0..self.plan.links()).for_each(|link| self.link_to(link).wake());
    }

    /// Rank that caused the group to end.
    pub fn cause(&self) -> Option<usize> {
        self.end().cause()
    }

    fn end(&self) -> End {
        self.exchange(0).end()
    }

    fn frames(&self) -> Ring {
        let readers = self.plan.processes() - 1;
        Ring::new(self.memory.clone(), self.plan.ring_at(), RING_BYTES, readers, self.end())
    }

    /// Writing end of the frame ring, for process 0.
    pub fn writer(&self) -> FrameWriter {
        FrameWriter { ring: self.frames().writer(self.timeout) }
    }

    /// Reading end of the frame ring for `rank`.
    pub fn reader(&self, rank: usize) -> FrameReader {
        FrameReader { ring: self.frames().reader(self.plan.process_of(rank) - 1) }
    }
}

/// Writes frames for the other processes on this node.
#[derive(Debug)]
pub struct FrameWriter {
    ring: RingWriter,
}

impl FrameWriter {
    /// Writes a frame. Waits only if the ring is full because a rank is behind.
    ///
    /// # Errors
    /// If the group ends or a rank does not read in time.
    pub fn write(&mut self, words: &[u32]) -> Result<(), RingError> {
        self.ring.put(&[words.len() as u32, 0])?;
        self.ring.put(words)?;
        self.ring.publish();
        Ok(())
    }
}

/// Reads the leader's frames.
#[derive(Debug)]
pub struct FrameReader {
    ring: RingReader,
}

impl FrameReader {
    /// Whether a frame arrives within `most`.
    ///
    /// # Errors
    /// If the group ends.
    pub fn comes_within(&self, most: Duration) -> Result<bool, RingError> {
        self.ring.has_more(most)
    }

    /// Reads the next frame into `words`, waiting as long as the group exists.
    ///
    /// # Errors
    /// If the group ends. An oversized frame is read as empty.
    pub fn read(&mut self, words: &mut Vec<u32>) -> Result<(), RingError> {
        let mut length = [0; 2];
        self.ring.take(&mut length, None)?;
        let length = Some(length[0] as usize).filter(|length| *length <= MAX_FRAME_WORDS).unwrap_or(0);
        // Without clearing it first: frames are about equally long, and all words are overwritten.
        words.resize(length, 0);
        self.ring.take(words, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn parts_of_the_processes_of_a_node_do_not_overlap() {
        let plan = |node| NodePlan::new(Topology::new(2, 4, 2).unwrap(), node, 1 << 20);
        assert_eq!((plan(0).children(), plan(0).processes(), plan(0).process_of(1)), (1..4, 4, 1));
        assert_eq!((plan(1).children(), plan(1).processes(), plan(1).process_of(4)), (4..8, 5, 1));
        assert_eq!((plan(1).rank_of(1), plan(0).rank_of(3)), (4, 3));
        let memory = GroupMemory::create(plan(1), TIMEOUT).unwrap();
        (0..5).for_each(|at| memory.beat(at));
        let mut outlet = memory.link_to(5).writer(TIMEOUT);
        outlet.put(&[7; 64]).unwrap();
        outlet.publish();
        memory.writer().write(&[1, 2, 3]).unwrap();
        let mut words = Vec::new();
        memory.reader(6).read(&mut words).unwrap();
        assert_eq!(words, [1, 2, 3]);
        let mut passed = [0; 64];
        memory.link_to(5).reader(0).take(&mut passed, Some(TIMEOUT)).unwrap();
        assert_eq!((passed, [0, 4].map(|at| memory.beats(at)), memory.cause()), ([7; 64], [1; 2], None));
    }

    #[test]
    fn an_end_wakes_those_that_wait_for_frames() {
        let plan = NodePlan::new(Topology::new(2, 2, 1).unwrap(), 0, 0);
        let group = GroupMemory::create(plan, TIMEOUT).unwrap();
        let mut reader = group.reader(3);
        let waiting = std::thread::spawn(move || reader.read(&mut Vec::new()));
        group.end_because_of(2);
        assert_eq!(waiting.join().unwrap(), Err(RingError::Ended(2)));
        assert_eq!((group.cause(), group.exchange(3).end().cause()), (Some(2), Some(2)));
    }
}
