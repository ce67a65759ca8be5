//! Runs the jobs of a store one at a time, oldest first. A job's requests have the lowest priority and start
//! only while the workers are less than half full, so they hardly delay other clients.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use skein_node::clock;
use tokio::io::BufReader as AsyncBufReader;
use xxhash_rust::xxh3::xxh3_128;

use super::record::{Counts, Job, JobError, Purpose, Status};
use super::store::{Store, StoreError};
use super::{MAX_REQUESTS, WINDOW_SECONDS};
use crate::api;
use crate::app::App;
use crate::batch::input::{InputError, Lines};
use crate::batch::local::send;
use crate::batch::output::Output;
use crate::batch::runner::{self, Pace};
use crate::batch::{Answer, Answerer, Call, WithPriority};
use crate::metrics::pressure;
use crate::request::tenant::Tenant;

/// Requests start only below this worker pressure; 1 means full.
const IDLE_PRESSURE: f64 = 0.5;
/// How often a request that waits for idle capacity checks for it.
const IDLE_POLL: Duration = Duration::from_millis(50);
/// Most requests of a job in flight, for any size of fleet.
const MOST_AT_ONCE: u32 = 256;
/// Priority of a job's requests, unless their body has one. Workers run requests of this priority as
/// background work.
const LOWEST_PRIORITY: i32 = 100;
/// How often a running job is checked for cancellation and expiry.
const END_POLL: Duration = Duration::from_millis(200);
/// Delay after a disk error.
const DISK_PAUSE: Duration = Duration::from_secs(5);
/// Most faults reported for an input.
const MOST_FAULTS: usize = 20;

/// Runs jobs until the router drains. A job running then continues at the next start after its last answer.
pub async fn work(app: App, store: Arc<Store>) {
    loop {
        let changed = store.changed();
        tokio::pin!(changed);
        // Subscribe before looking for a job, so that no new job is missed.
        changed.as_mut().enable();
        let Some(job) = store.next() else {
            tokio::select! {
                () = changed => continue,
                () = app.drain.began() => return,
            }
        };
        let id = job.id.clone();
        let ended = tokio::select! {
            ended = run(&app, &store, job) => ended,
            () = app.drain.began() => return,
        };
        if let Err(error) = ended {
            tracing::error!(batch = id, %error, "a batch failed; retrying");
            tokio::time::sleep(DISK_PAUSE).await;
        }
    }
}

async fn run(app: &App, store: &Store, mut job: Job) -> Result<(), StoreError> {
    if job.status == Status::Validating {
        match validate(store, &job).await {
            Ok(total) => {
                job.counts.total = total;
                job.enter(Status::InProgress, now());
                tracing::info!(batch = job.id, requests = total, "batch started");
            }
            Err(faults) => {
                tracing::info!(batch = job.id, faults = faults.len(), "batch refused");
                job.errors = faults;
                job.enter(Status::Failed, now());
            }
        }
        save_unless_cancelled(store, &mut job)?;
    }
    if job.status == Status::InProgress {
        let answered = tokio::select! {
            answered = answer(app, store, &job) => Some(answered),
            () = ends_early(store, &job) => None,
        };
        match answered {
            Some(Ok(())) => {
                job.enter(Status::Finalizing, now());
                save_unless_cancelled(store, &mut job)?;
            }
            Some(Err(fault)) => {
                job.errors.push(fault);
                job.enter(Status::Failed, now());
                return store.save(&job);
            }
            None => {}
        }
    }
    match job.status {
        status if status.is_final() => Ok(()),
        Status::Finalizing => finalize(store, job, Status::Completed),
        _ if store.is_cancelling(&job.id) => {
            job.enter(Status::Cancelling, now());
            finalize(store, job, Status::Cancelled)
        }
        _ => finalize(store, job, Status::Expired),
    }
}

fn now() -> u64 {
    clock::unix_time().as_secs()
}

/// Saves `job`, but as cancelling if it was cancelled after it was read.
fn save_unless_cancelled(store: &Store, job: &mut Job) -> Result<(), StoreError> {
    if store.is_cancelling(&job.id) && !job.status.is_final() {
        job.enter(Status::Cancelling, now());
    }
    store.save(job)
}

async fn ends_early(store: &Store, job: &Job) {
    while !store.is_cancelling(&job.id) && now() < job.expires_at() {
        tokio::time::sleep(END_POLL).await;
    }
}

/// Reads the whole input; returns its number of requests, or its faults.
async fn validate(store: &Store, job: &Job) -> Result<u64, Vec<JobError>> {
    let one = |code: &str, message: String, line| vec![JobError { code: code.into(), message, line }];
    let input = tokio::fs::File::open(store.content(&job.input_file_id)).await;
    let input =
        input.map_err(|error| one("invalid_file", format!("the input cannot be read: {error}"), None))?;
    let mut lines = Lines::new(AsyncBufReader::new(input));
    let (mut names, mut faults) = (HashSet::new(), Vec::new());
    loop {
        let (number, item) = match lines.next().await {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(error) => {
                let line = if let InputError::Line { number, .. } = &error { Some(*number) } else { None };
                return Err(one("invalid_json_line", error.to_string(), line));
            }
        };
        let mut fault = |code: &str, message: String| {
            faults.push(JobError { code: code.into(), message, line: Some(number) });
        };
        if !names.insert(xxh3_128(item.custom_id.as_bytes())) {
            fault("duplicate_custom_id", format!("the custom_id `{}` is used twice", item.custom_id));
        }
        if let Ok(call) = &item.call
            && call.endpoint.path() != job.endpoint
        {
            let message = format!("url is {}, but the batch is for {}", call.endpoint.path(), job.endpoint);
            fault("mismatched_endpoint", message);
        }
        if names.len() as u64 > MAX_REQUESTS {
            let message = format!("the input has more than {MAX_REQUESTS} requests; split it");
            return Err(one("too_many_requests", message, Some(number)));
        }
        if faults.len() >= MOST_FAULTS {
            break;
        }
    }
    match (faults.is_empty(), names.len()) {
        (true, 0) => Err(one("empty_file", "the input has no request".into(), None)),
        (true, total) => Ok(total as u64),
        (false, _) => Err(faults),
    }
}

/// Processes every line without an answer.
async fn answer(app: &App, store: &Store, job: &Job) -> Result<(), JobError> {
    let failed = |message: String| JobError { code: "server_error".into(), message, line: None };
    let input = tokio::fs::File::open(store.content(&job.input_file_id)).await;
    let input = input.map_err(|error| failed(format!("the input cannot be read: {error}")))?;
    let mut output = Output::open(&store.answers(&job.id)).map_err(|error| failed(error.to_string()))?;
    let idle = Idle::new(app, &job.tenant);
    let pace =
        Pace { at_once: idle.at_once(), retry_for: Duration::from_secs(WINDOW_SECONDS), checked: true };
    let show = |progress: runner::Progress| {
        let completed = progress.before + progress.answered;
        store.show(&job.id, Counts { total: job.counts.total, completed, failed: progress.failed });
    };
    let lowest = WithPriority { answerer: &idle, priority: Some(LOWEST_PRIORITY) };
    let done = runner::run(AsyncBufReader::new(input), &mut output, &lowest, pace, show).await;
    done.map(drop).map_err(|error| failed(error.to_string()))
}

/// Writes answers and refused lines to one file each and ends the job. The file ids derive from the job's id,
/// so a repetition after a kill replaces the same files.
fn finalize(store: &Store, mut job: Job, end: Status) -> Result<(), StoreError> {
    let path = store.answers(&job.id);
    let hex = job.id.trim_start_matches("batch_").to_owned();
    let mut output = store.write_file(format!("file-{hex}-output"))?;
    let mut errors = store.write_file(format!("file-{hex}-errors"))?;
    let (mut completed, mut failed) = (0, 0);
    if let Ok(answers) = std::fs::File::open(&path) {
        let mut reader = BufReader::new(answers);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            read.map_err(|error| StoreError::Io { path: path.clone(), error })?;
            if line.last() != Some(&b'\n') {
                break;
            }
            if is_refused(&line) {
                failed += 1;
                errors.write(&line, Purpose::BatchOutput)?;
            } else {
                completed += 1;
                output.write(&line, Purpose::BatchOutput)?;
            }
        }
    }
    job.counts = Counts { completed, failed, ..job.counts };
    if completed > 0 {
        let name = format!("{}_output.jsonl", job.id);
        job.output_file_id = Some(output.finish(&job.tenant, &name, Purpose::BatchOutput)?.id);
    }
    if failed > 0 {
        let name = format!("{}_error.jsonl", job.id);
        job.error_file_id = Some(errors.finish(&job.tenant, &name, Purpose::BatchOutput)?.id);
    }
    job.enter(end, now());
    store.save(&job)?;
    tracing::info!(batch = job.id, status = ?end, completed, failed, "batch ended");
    let _ = std::fs::remove_file(path);
    Ok(())
}

fn is_refused(line: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(line).unwrap_or_default();
    !value["error"].is_null()
}

/// Sends requests of one tenant to this router while it has idle capacity.
struct Idle {
    app: App,
    routes: Router,
}

impl Idle {
    fn new(app: &App, tenant: &str) -> Self {
        let tenant = Tenant::named(tenant);
        Self { app: app.clone(), routes: api::completions_for(app.clone(), tenant) }
    }

    /// Half of the workers' total `max_num_seqs`.
    fn at_once(&self) -> usize {
        let seats = self.app.fleet.capacity().map_or(1, |capacity| capacity.max_num_seqs);
        (seats / 2).clamp(1, MOST_AT_ONCE) as usize
    }

    async fn idle(&self) {
        loop {
            let workers = self.app.fleet.workers();
            let ready = || workers.iter().filter(|worker| worker.is_ready());
            let mean = ready().map(pressure).sum::<f64>() / ready().count().max(1) as f64;
            if mean < IDLE_PRESSURE {
                return;
            }
            tokio::time::sleep(IDLE_POLL).await;
        }
    }
}

impl Answerer for Idle {
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>> {
        async move {
            self.idle().await;
            send(&self.routes, call, key).await
        }
        .boxed()
    }
}
