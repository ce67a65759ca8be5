//! What a batching rule is: jobs come in, steps come out.

use std::time::Duration;

use skein_bench::engine::steps::Work;

use super::kv_use::Held;

/// A request that arrives, needs `prompt` tokens of KV cache for its prompt, and ends after `output` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Time of arrival since the start.
    pub at: Duration,
    /// Prompt tokens, at least 1.
    pub prompt: u32,
    /// Output tokens, at least 1. Only the oracle reads it before the job ends.
    pub output: u32,
}

impl Job {
    /// Tokens of prompt and output together.
    pub fn tokens(&self) -> u32 {
        self.prompt + self.output
    }
}

/// Next action of a batcher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Runs a step of this size.
    Step(Work),
    /// Idles until this time or the next arrival, whichever comes first; `None` = until an arrival.
    Wait(Option<Duration>),
}

/// A batching rule with its KV memory. Jobs are identified by their index in the arrivals.
pub trait Batcher {
    /// Queues a job that has arrived.
    fn submit(&mut self, id: usize, job: Job);
    /// Plans the next step at `now`. `more`: further jobs will arrive.
    fn plan(&mut self, now: Duration, more: bool) -> Next;
    /// Accounts for the planned step, which ended at `now`; adds the finished jobs to `ended`.
    fn finish(&mut self, now: Duration, ended: &mut Vec<usize>);
    /// Current use of KV memory, in tokens.
    fn held(&self) -> Held;
}
