//! Iteration-level batching (Orca, Yu et al. 2022): jobs join and leave between steps, first come, first
//! served. A job's first step computes its whole prompt. Each job reserves a contiguous piece of KV memory
//! when it joins and holds it until it ends.

use std::collections::VecDeque;
use std::time::Duration;

use skein_bench::engine::steps::Work;

use super::batcher::{Batcher, Job, Next};
use super::contiguous::Contiguous;
use super::kv_use::Held;

/// Reservation per job: the PagedAttention paper's three variants of Orca, whose source is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// The model's context length, in tokens.
    Max(u32),
    /// Prompt and output, with the output rounded up to a power of two, as from a good length prediction.
    PowerOfTwo,
    /// Exactly prompt and output; a real server cannot know the output length.
    Oracle,
}

/// Iteration-level batching over contiguous reservations.
#[derive(Debug)]
pub struct Orca {
    memory: Contiguous,
    reserve: Reserve,
    most: usize,
    waiting: VecDeque<(usize, Job)>,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    id: usize,
    job: Job,
    piece: u32,
    length: u32,
    /// Output tokens so far.
    drawn: u32,
}

impl Orca {
    /// Up to `most` jobs at once in `capacity` tokens of memory.
    pub fn new(capacity: u32, reserve: Reserve, most: usize) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { memory: Contiguous::new(capacity), reserve, most: most.max(1), waiting, running }
    }

    fn needs(&self, job: &Job) -> u32 {
        let wanted = match self.reserve {
            Reserve::Max(context) => context.max(job.tokens()),
            Reserve::PowerOfTwo => job.prompt + job.output.next_power_of_two(),
            Reserve::Oracle => job.tokens(),
        };
        wanted.min(self.memory.size())
    }

    fn admit(&mut self) {
        while self.running.len() < self.most {
            let Some(&(id, job)) = self.waiting.front() else { return };
            let length = self.needs(&job);
            let Some(piece) = self.memory.take(length) else { return };
            self.waiting.pop_front();
            self.running.push(Running { id, job, piece, length, drawn: 0 });
        }
    }
}

impl Batcher for Orca {
    fn submit(&mut self, id: usize, job: Job) {
        self.waiting.push_back((id, job));
    }

    fn plan(&mut self, _now: Duration, _more: bool) -> Next {
        self.admit();
        if self.running.is_empty() {
            return Next::Wait(None);
        }
        let mut work = Work::default();
        for running in &self.running {
            work.rows += if running.drawn == 0 { running.job.prompt } else { 1 };
            work.context += u64::from(running.job.prompt + running.drawn);
        }
        Next::Step(work)
    }

    fn finish(&mut self, _now: Duration, ended: &mut Vec<usize>) {
        for running in &mut self.running {
            running.drawn += 1;
        }
        for running in self.running.extract_if(.., |running| running.drawn == running.job.output) {
            self.memory.give_back(running.piece);
            ended.push(running.id);
        }
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for running in &self.running {
            let live = running.job.prompt + running.drawn;
            held.live += u64::from(live);
            held.reserved += u64::from(running.job.tokens() - live);
            held.internal += u64::from(running.length - running.job.tokens());
        }
        let free = self.memory.free();
        if self.running.len() < self.most
            && self.waiting.front().is_some_and(|(_, job)| self.needs(job) <= free)
        {
            held.external = u64::from(free);
        }
        held
    }
}
