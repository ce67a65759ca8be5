//! Requests of one size, run to their end on an engine.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_node::clock::{self, Timestamp};
use skein_proto::sampling::SamplingParams;
use skein_worker::engine::{EngineHandle, Submission};
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::NewRequest;
use skein_worker::streams::TokenStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::load::metrics::Record;

/// Greedy requests of one size that run to their last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Number of requests.
    pub requests: usize,
    /// Most requests at once.
    pub at_once: usize,
    /// Prompt tokens per request.
    pub input_len: u32,
    /// Output tokens per request.
    pub output_len: u32,
    /// Upper bound of prompt token ids.
    pub vocab_size: u32,
    /// Seed of the prompts.
    pub seed: u64,
}

/// Runs `job` on `engine`. Times count from the start of this call. Calls `on_done` after each request.
pub async fn run(engine: &EngineHandle, job: Job, mut on_done: impl FnMut(&Record)) -> Vec<Record> {
    let start = clock::now();
    let permits = Arc::new(Semaphore::new(job.at_once.max(1)));
    let mut random = StdRng::seed_from_u64(job.seed);
    let mut tasks = JoinSet::new();
    for number in 0..job.requests {
        let prompt = (0..job.input_len).map(|_| random.random_range(0..job.vocab_size.max(1))).collect();
        let submission = submission(&job, number, prompt);
        let (engine, permits) = (engine.clone(), permits.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            one(&engine, submission, u64::from(job.input_len), start).await
        });
    }
    let mut records = Vec::with_capacity(job.requests);
    while let Some(record) = tasks.join_next().await {
        let panicked = |error| Record { error: Some(format!("{error}")), ..Record::default() };
        let record = record.unwrap_or_else(panicked);
        on_done(&record);
        records.push(record);
    }
    records
}

fn submission(job: &Job, number: usize, prompt: Vec<u32>) -> Submission {
    let params = SamplingParams { max_tokens: job.output_len, ..SamplingParams::default() };
    // Each seed has its own scope, so that no run finds cached prompts of another.
    let scope = CacheScope::new("bench", &job.seed.to_string());
    let request = NewRequest::of_one_sample(prompt, params, scope);
    Submission::alone(format!("bench-{}-{number}", job.seed), request)
}

async fn one(engine: &EngineHandle, submission: Submission, prompt_tokens: u64, start: Timestamp) -> Record {
    let sent = clock::now().since(start);
    let record = Record { intended: sent, sent, end: sent, prompt_tokens, ..Record::default() };
    match engine.submit(submission).await {
        Ok(stream) => read(stream, record, start).await,
        Err(error) => Record { error: Some(error.to_string()), ..record },
    }
}

async fn read(mut stream: TokenStream, mut record: Record, start: Timestamp) -> Record {
    while let Some(deltas) = stream.next().await {
        let now = clock::now().since(start);
        match deltas {
            Ok(deltas) => {
                let tokens: usize = deltas.iter().map(|delta| delta.tokens.len()).sum();
                record.cached_tokens +=
                    deltas.iter().filter_map(|delta| delta.cached_tokens).sum::<u32>() as u64;
                if tokens > 0 {
                    match record.first_token {
                        None => record.first_token = Some(now),
                        Some(_) => record.gaps.push(now.saturating_sub(record.end)),
                    }
                    record.output_tokens += tokens as u64;
                    record.end = now;
                }
            }
            Err(fault) => {
                record.error = Some(fault.to_string());
                record.end = now;
            }
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use skein_worker::backend::fake::{FakeBackend, FakeOptions};
    use skein_worker::config::SchedulerConfig;
    use skein_worker::engine::Engine;
    use skein_worker::scheduler::Scheduler;

    #[tokio::test]
    async fn every_request_runs_to_its_last_token() {
        let backend = FakeBackend::new(FakeOptions { kv_blocks: 256, ..FakeOptions::default() });
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 256, 512);
        let (engine, handle) = Engine::new(scheduler, Box::new(backend), 64);
        let thread = std::thread::spawn(move || engine.run());
        let job = Job { requests: 9, at_once: 4, input_len: 40, output_len: 7, vocab_size: 100, seed: 3 };
        let mut seen = 0;
        let records = run(&handle, job, |_| seen += 1).await;
        assert_eq!((records.len(), seen), (9, 9));
        for record in &records {
            assert_eq!((record.output_tokens, &record.error), (7, &None));
            assert!(record.first_token.is_some_and(|first| first >= record.sent && first <= record.end));
        }
        // Requests with a second seed share no cache entries with the first.
        let again = run(&handle, Job { seed: 4, ..job }, |_| {}).await;
        assert!(again.iter().all(|record| record.cached_tokens == 0));
        handle.stop().await;
        assert!(thread.join().is_ok_and(|ended| ended.is_ok()));
    }
}
