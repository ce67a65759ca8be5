//! Host work of a group for a decode step: the leader packs a frame and writes it to the ring once; every
//! other rank copies, checks and unpacks it, and packs the message for its device. Without the device.
//!
//! `cargo bench -p skein-bench --bench frames [-- SEQUENCES TOKENS RANKS]`. Default: 256 sequences of 2,000
//! tokens, 8 ranks. While the leader is timed, the others sleep until its frame arrives; then each of them is
//! timed alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skein_proto::sampling::SamplingParams;
use skein_worker::BlockId;
use skein_worker::backend::cuda::pack_step;
use skein_worker::backend::{
    Backend, BackendError, Batch, BatchSequence, SampleRow, StepHandle, StepOutput, Want,
};
use skein_worker::group::{Followed, GroupMemory, Leader, NodePlan, Topology, Watch, follow};

const BLOCK_SIZE: u32 = 16;
/// Steps in a round; their frames fit into the ring together.
const STEPS: usize = 8;
const ROUNDS: usize = 200;
const EPOCH: u64 = 1;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time from one moment to the next of the same rank.
#[derive(Default, Clone)]
struct Times(Arc<Mutex<Vec<Duration>>>);

impl Times {
    fn add(&self, time: Duration) {
        self.0.lock().expect("no holder panics").push(time);
    }

    fn last(&self) -> Duration {
        self.0.lock().expect("no holder panics").last().copied().unwrap_or_default()
    }

    fn print(&self, what: &str) {
        let mut times = self.0.lock().expect("no holder panics").clone();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        println!("{what:<58} best {:>7.1} us, p50 {:>7.1} us, p99 {:>7.1} us", at(0.0), at(0.5), at(0.99));
    }
}

/// Packs steps for a device that does not exist.
struct Packer {
    words: Vec<u32>,
    packing: Times,
    /// Time since the previous step was packed; `None` for the leader.
    receiving: Option<(Times, Instant)>,
    launched: u64,
}

impl Packer {
    fn new(words: usize, packing: &Times, receiving: Option<&Times>) -> Self {
        let receiving = receiving.map(|times| (times.clone(), now()));
        Self { words: vec![0; words], packing: packing.clone(), receiving, launched: 0 }
    }
}

impl Backend for Packer {
    fn kv_blocks(&self) -> u32 {
        u32::MAX
    }

    fn steps_in_flight(&self) -> usize {
        STEPS
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let began = now();
        if let Some((times, since)) = self.receiving.as_mut().filter(|_| self.launched > 0) {
            times.add(began.duration_since(*since));
        }
        pack_step(&batch, &mut self.words)?;
        self.packing.add(now().duration_since(began));
        drop(batch);
        self.launched += 1;
        if let Some((_, since)) = &mut self.receiving {
            *since = now();
        }
        Ok(StepHandle(self.launched))
    }

    fn collect(&mut self, _: StepHandle) -> Result<StepOutput, BackendError> {
        Ok(StepOutput { answers: Vec::new() })
    }

    fn has_ended(&mut self) -> Option<bool> {
        Some(false)
    }
}

#[allow(clippy::disallowed_methods)] // the differences are microseconds
fn now() -> Instant {
    Instant::now()
}

/// A decode step of `count` sequences of `len` tokens.
fn decode(count: u32, len: u32) -> Batch {
    let (blocks, params) = (len.div_ceil(BLOCK_SIZE), Arc::new(SamplingParams::default()));
    let sequence = |index: u32| BatchSequence {
        rows: index..index + 1,
        context_len: len,
        blocks: index * blocks..(index + 1) * blocks,
        adapter: None,
    };
    let sample = |row| {
        Want::Sample(SampleRow {
            row,
            params: params.clone(),
            sample_index: 0,
            position: len,
            forbid_stop: false,
            history: 0..0,
            prompt_len: len / 2,
            mask: None,
        })
    };
    Batch {
        tokens: (0..count).collect(),
        positions: vec![len - 1; count as usize],
        slots: (0..count).map(|index| (index + 1) * blocks * BLOCK_SIZE - 1).collect(),
        sequences: (0..count).map(sequence).collect(),
        block_tables: (0..count * blocks).map(BlockId).collect(),
        wants: (0..count).map(sample).collect(),
        ..Batch::default()
    }
}

fn main() {
    let given: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let [count, len, ranks] = [0, 1, 2].map(|at| given.get(at).copied().unwrap_or([256, 2000, 8][at]));
    let words = 4096 + (count * (len.div_ceil(BLOCK_SIZE) + 64)) as usize;
    let (batch, ranks) = (decode(count, len), ranks as usize);
    let [writing, packing, receiving] = [(); 3].map(|()| Times::default());
    lead(&batch, ranks, words, &writing);
    (0..ROUNDS).for_each(|_| follow_in_turn(&batch, ranks, words, [&packing, &receiving]));
    println!("{count} sequences of {len} tokens, {ranks} ranks");
    writing.print("leader: packs the frame and writes it once (50 asked for)");
    receiving.print("rank: copies, checks and unpacks it");
    packing.print("each: packs the message for its device");
}

/// A leader whose followers run in threads of their own and wait for frames.
fn lead(batch: &Batch, ranks: usize, words: usize, writing: &Times) {
    let group = Group::new(ranks);
    let received = Arc::new(AtomicUsize::new(0));
    let follower = |rank| {
        let (memory, received) = (group.memory.clone(), received.clone());
        std::thread::spawn(move || {
            follow(memory.reader(rank), None, (EPOCH, Followed::new(None)), || Ok(Counter(received)))
                .expect("nothing fails");
        })
    };
    let followers: Vec<_> = (1..ranks).map(follower).collect();
    let packing = Times::default();
    let mut leader = group.lead(Packer::new(words, &packing, None));
    for step in 1..=STEPS * ROUNDS {
        let batch = batch.clone();
        let began = now();
        leader.launch(batch).expect("the followers read");
        writing.add(began.elapsed().saturating_sub(packing.last()));
        while received.load(Ordering::Acquire) < step * (ranks - 1) {
            std::thread::yield_now();
        }
    }
    drop(leader);
    followers.into_iter().for_each(|follower| follower.join().expect("nothing fails"));
}

/// [`STEPS`] frames, which each rank then executes without waiting.
fn follow_in_turn(batch: &Batch, ranks: usize, words: usize, [packing, receiving]: [&Times; 2]) {
    let group = Group::new(ranks);
    let mut leader = group.lead(Packer::new(words, &Times::default(), None));
    for _ in 0..STEPS {
        leader.launch(batch.clone()).expect("the ring has room");
    }
    drop(leader);
    for rank in 1..ranks {
        let check = || Ok(Packer::new(words, packing, Some(receiving)));
        follow(group.memory.reader(rank), None, (EPOCH, Followed::new(None)), check).expect("nothing fails");
    }
}

/// Memory of a group on one node.
struct Group {
    memory: GroupMemory,
}

impl Group {
    fn new(ranks: usize) -> Self {
        let topology = Topology::new(ranks, 1, 1).expect("a power of two up to eight");
        Self { memory: GroupMemory::create(NodePlan::new(topology, 0, 0), TIMEOUT).expect("there is memory") }
    }

    fn lead(&self, packer: Packer) -> Leader<Packer> {
        let watch = Watch::new(self.memory.clone(), || ());
        let reports = (Box::new(self.memory.reports(0)) as Box<_>, None);
        let leader = Leader::start(&self.memory, (EPOCH, watch), reports, || Ok::<_, BackendError>(packer));
        leader.expect("nothing fails")
    }
}

/// Counts the steps that followers receive.
struct Counter(Arc<AtomicUsize>);

impl Backend for Counter {
    fn kv_blocks(&self) -> u32 {
        u32::MAX
    }

    fn launch(&mut self, _: Batch) -> Result<StepHandle, BackendError> {
        Ok(StepHandle(self.0.fetch_add(1, Ordering::Release) as u64))
    }

    fn collect(&mut self, _: StepHandle) -> Result<StepOutput, BackendError> {
        Ok(StepOutput { answers: Vec::new() })
    }
}
