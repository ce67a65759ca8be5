//! Runs the jobs of a store one at a time, oldest first. A job's requests have the lowest priority and start
//! only while the workers are less than half full, so they hardly delay other clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use futures::future::BoxFuture;
use skein_node::clock;
use tokio::io::BufReader as AsyncBufReader;

use super::check::check;
use super::error::StoreError;
use super::limits::WINDOW_SECONDS;
use super::record::{Counts, Job, JobError, Status};
use super::results::finalize;
use super::store::Store;
use crate::api;
use crate::app::App;
use crate::batch::input::InputError;
use crate::batch::local::send;
use crate::batch::output::{Output, OutputError};
use crate::batch::runner::{self, Pace, RunError};
use crate::batch::{Answer, Answerer, Call, WithPriority};
use crate::metrics::pressure;
use crate::request::tenant::Tenant;
use crate::tenants::tenant_of::tenant_of;

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
        let Err(error) = ended else { continue };
        // The disk itself says once that it is full.
        if !error.is_disk_full() {
            tracing::error!(batch = id, %error, "a batch cannot go on; trying again");
        }
        tokio::select! {
            () = tokio::time::sleep(DISK_PAUSE) => {}
            () = app.drain.began() => return,
        }
    }
}

async fn run(app: &App, store: &Store, mut job: Job) -> Result<(), StoreError> {
    // One that cannot be checked does not hold up the others for ever.
    if job.status == Status::Validating && now() < job.expires_at() {
        job = begin(store, &job).await?;
    }
    if job.status == Status::InProgress {
        let answered = tokio::select! {
            // First, so that a job that is over sends nothing.
            biased;
            () = ends_early(store, &job) => None,
            answered = answer(app, store, &job) => Some(answered?),
        };
        if let Some(outcome) = answered {
            job = store.update(&job.id, |job| leave(job, outcome))?;
        }
    }
    match job.status {
        status if status.is_final() => Ok(()),
        Status::Finalizing => finalize(store, &job, Status::Completed),
        _ if store.is_cancelling(&job.id) => finalize(store, &job, Status::Cancelled),
        _ => finalize(store, &job, Status::Expired),
    }
}

/// Checks the input; `job` is then in progress, or has failed.
async fn begin(store: &Store, job: &Job) -> Result<Job, StoreError> {
    match check(store, job).await? {
        Ok(total) => {
            tracing::info!(batch = job.id, requests = total, "batch started");
            store.update(&job.id, |job| {
                job.counts.total = total;
                if job.status == Status::Validating {
                    job.enter(Status::InProgress, now());
                }
            })
        }
        Err(faults) => {
            tracing::info!(batch = job.id, faults = faults.len(), "batch refused");
            store.update(&job.id, |job| {
                job.errors = faults;
                job.enter(Status::Failed, now());
            })
        }
    }
}

/// The status after the last line. A job that was cancelled meanwhile stays so.
fn leave(job: &mut Job, outcome: Result<(), JobError>) {
    match outcome {
        Ok(()) if job.status == Status::InProgress => job.enter(Status::Finalizing, now()),
        Ok(()) => {}
        Err(fault) => {
            job.errors.push(fault);
            job.enter(Status::Failed, now());
        }
    }
}

fn now() -> u64 {
    clock::unix_time().as_secs()
}

async fn ends_early(store: &Store, job: &Job) {
    while !store.is_cancelling(&job.id) && now() < job.expires_at() {
        tokio::time::sleep(END_POLL).await;
    }
}

/// Processes every line without an answer.
///
/// # Errors
/// If the disk fails.
async fn answer(app: &App, store: &Store, job: &Job) -> Result<Result<(), JobError>, StoreError> {
    let path = store.content(&job.input_file_id);
    let input = tokio::fs::File::open(&path).await.map_err(|error| StoreError::Io { path, error })?;
    let path = store.answers(&job.id);
    let mut output = match Output::open_on(store.disk().clone(), &path) {
        Ok(output) => output,
        Err(error) => return ended_by(store, job, error.into()),
    };
    let idle = Idle::new(app, tenant(app, store, job));
    let pace = Pace {
        at_once: idle.at_once(),
        retry_for: Duration::from_secs(WINDOW_SECONDS),
        checked: true,
        waits_for_room: true,
    };
    let earlier = output.earlier();
    let show = |progress: runner::Progress| {
        let completed = earlier.answered + progress.answered;
        let failed = earlier.refused + progress.failed;
        store.show(&job.id, Counts { total: job.counts.total, completed, failed });
    };
    let lowest = WithPriority { answerer: &idle, priority: Some(LOWEST_PRIORITY) };
    match runner::run(AsyncBufReader::new(input), &mut output, &lowest, pace, show).await {
        Ok(_) => Ok(Ok(())),
        Err(error) => ended_by(store, job, error),
    }
}

/// What `error` means for `job`: a fault of the disk, after which it goes on, or the job's end. Clients learn
/// no paths.
fn ended_by(store: &Store, job: &Job, error: RunError) -> Result<Result<(), JobError>, StoreError> {
    let failed = |message: String| Ok(Err(JobError { code: "server_error".into(), message, line: None }));
    match error {
        RunError::Output(OutputError::Io { path, error }) => Err(StoreError::Io { path, error }),
        RunError::Input(InputError::Unreadable(error)) => {
            Err(StoreError::Io { path: store.content(&job.input_file_id), error })
        }
        RunError::Output(error) => {
            tracing::error!(batch = job.id, %error, "the answers so far cannot be used");
            failed(
                "the server's record of the answers is damaged; its operator finds the reason in the log"
                    .into(),
            )
        }
        other => failed(other.to_string()),
    }
}

/// The tenant that `job` belongs to, with the rights of the key that created the job. If its key or its
/// tenant is gone, one that no client has.
fn tenant(app: &App, store: &Store, job: &Job) -> Tenant {
    let is_owner = |name: &str| store.owner(name) == job.tenant;
    let owning = tenant_of(&app.config, is_owner, job.rights.as_ref());
    owning.unwrap_or_else(|| Tenant::named(&job.tenant))
}

/// Sends requests of one tenant to this router while it has idle capacity.
struct Idle {
    app: App,
    routes: Router,
}

impl Idle {
    fn new(app: &App, tenant: Tenant) -> Self {
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
