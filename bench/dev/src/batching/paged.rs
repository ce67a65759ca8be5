//! Skein's scheduler with its paged KV cache. It plans as in a worker; only the device is missing, and every
//! draw returns the same token.

use std::time::Duration;

use skein_bench::engine::steps::Work;
use skein_node::clock::Timestamp;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::{Answer, Batch, Sampled, StepOutput, Want};
use skein_worker::config::SchedulerConfig;
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{NewRequest, Note, RequestEvent, RequestKey, Scheduler, Step};

use super::batcher::{Batcher, Job, Next};
use super::kv_use::Held;

/// Skein's scheduler without a device.
#[derive(Debug)]
pub struct Paged {
    scheduler: Scheduler,
    block_size: u32,
    blocks: u32,
    planned: Option<(Step, StepOutput)>,
    /// Accepted jobs by id.
    jobs: Vec<Option<Progress>>,
    /// Blocks held after the latest plan.
    held_blocks: u32,
    /// Rows of the latest plan, whose tokens become live.
    planned_rows: u32,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    job: Job,
    /// Tokens whose keys and values are computed; 0 while waiting.
    live: u32,
}

impl Paged {
    /// Scheduler with `capacity` tokens of KV memory for sequences of up to `context` tokens. Prefixes are
    /// not shared, because the other batchers do not share them either.
    pub fn new(capacity: u32, context: u32, config: &SchedulerConfig) -> Self {
        let config =
            SchedulerConfig { enable_prefix_caching: false, max_num_queued_reqs: u32::MAX, ..config.clone() };
        let blocks = capacity / config.block_size;
        let scheduler = Scheduler::new(&config, blocks, context.min(blocks * config.block_size));
        let (block_size, planned, jobs) = (config.block_size, None, Vec::new());
        Self { scheduler, block_size, blocks, planned, jobs, held_blocks: 0, planned_rows: 0 }
    }

    fn progress(&mut self, request: RequestKey) -> Option<&mut Progress> {
        self.jobs.get_mut(request.0 as usize)?.as_mut()
    }
}

impl Batcher for Paged {
    fn submit(&mut self, id: usize, job: Job) {
        self.jobs.resize(self.jobs.len().max(id + 1), None);
        self.jobs[id] = Some(Progress { job, live: 0 });
        let params = SamplingParams { max_tokens: job.output, ignore_eos: true, ..SamplingParams::default() };
        let (prompt, scope) = (vec![0; job.prompt as usize], CacheScope::new("bench", ""));
        let request =
            NewRequest { key: RequestKey(id as u64), ..NewRequest::of_one_sample(prompt, params, scope) };
        self.scheduler.submit(request).expect("the queue has no bound here");
    }

    fn plan(&mut self, now: Duration, _more: bool) -> Next {
        let Some(plan) = self.scheduler.plan(Timestamp::from_start(now)) else { return Next::Wait(None) };
        let work = Work { rows: plan.step.rows(), context: context(&plan.batch) };
        self.planned_rows = work.rows;
        self.planned = Some((plan.step, answers(&plan.batch)));
        self.held_blocks = self.blocks - self.scheduler.load().free_blocks;
        for note in self.scheduler.take_notes() {
            if let Note::Preempted { request } = note
                && let Some(progress) = self.progress(request)
            {
                progress.live = 0;
            }
        }
        Next::Step(work)
    }

    fn finish(&mut self, now: Duration, ended: &mut Vec<usize>) {
        let (step, output) = self.planned.take().expect("a step was planned");
        let events = self.scheduler.commit(step, &output, Timestamp::from_start(now));
        for note in self.scheduler.take_notes() {
            if let Note::Prefilled { request, rows } = note
                && let Some(progress) = self.progress(request)
            {
                progress.live += rows;
            }
        }
        for event in events {
            match event {
                // The next step computes the keys and values of the drawn token.
                RequestEvent::Token { request, position, .. } => {
                    if let Some(progress) = self.progress(request) {
                        progress.live = position;
                    }
                }
                RequestEvent::Finished { request, .. } => {
                    self.jobs[request.0 as usize] = None;
                    ended.push(request.0 as usize);
                }
                RequestEvent::Started { .. }
                | RequestEvent::PromptScored { .. }
                | RequestEvent::StopScored { .. }
                | RequestEvent::Pooled { .. } => {}
            }
        }
    }

    fn held(&self) -> Held {
        let held = u64::from(self.held_blocks) * u64::from(self.block_size);
        let (mut live, mut unused) = (u64::from(self.planned_rows), 0);
        for progress in self.jobs.iter().flatten().filter(|progress| progress.live > 0) {
            live += u64::from(progress.live);
            let (end, next) = (progress.job.tokens(), progress.live + 1);
            // The rest of its last block stays unused.
            unused += u64::from(next.next_multiple_of(self.block_size).saturating_sub(end));
        }
        let live = live.min(held);
        let internal = unused.min(held - live);
        Held { live, reserved: held - live - internal, internal, external: 0 }
    }
}

/// KV tokens that the batch reads.
fn context(batch: &Batch) -> u64 {
    batch.sequences.iter().map(|sequence| u64::from(sequence.context_len)).sum()
}

fn answers(batch: &Batch) -> StepOutput {
    let drawn = |want: &Want| {
        assert!(matches!(want, Want::Sample(_)), "plain requests only draw");
        Answer::Sampled(Sampled { token: 0, logprobs: None })
    };
    StepOutput { answers: batch.wants.iter().map(drawn).collect() }
}
