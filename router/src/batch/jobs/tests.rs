//! The batch directory after kills at any byte, and jobs over a scripted router.

use std::time::Duration;

use serde_json::{Map, json};

use super::record::{NewJob, Purpose, Status};
use super::store::{Store, StoreError};
use super::*;
use crate::batch::Endpoint;
use crate::testing::{self, Say, Script, delta, finish};
use skein_proto::finish::FinishReason;

fn upload(store: &Store, tenant: &str, content: &str) -> String {
    let mut file = store.upload().expect("a file");
    file.write(content.as_bytes(), Purpose::Batch).expect("it is written");
    file.finish(tenant, "in.jsonl", Purpose::Batch).expect("it is recorded").id
}

/// Script that answers every request with `x`.
fn answers() -> Script {
    Script::of([delta(0, "x"), finish(0, FinishReason::Stop(Some(1)))])
}

fn new_job(input: &str) -> NewJob {
    NewJob { endpoint: Endpoint::Completions, input_file_id: input.into(), metadata: Map::new() }
}

fn line(name: &str, prompt: &str) -> String {
    let body = json!({"prompt": prompt, "max_tokens": 4});
    json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}).to_string() + "\n"
}

/// Opens a directory with this log, as left by a killed router.
fn reopened_with(log: &[u8]) -> Result<Store, StoreError> {
    let directory = tempfile::tempdir().expect("a directory").keep();
    std::fs::write(directory.join("jobs.log"), log).expect("the log");
    Store::open(&directory)
}

#[test]
fn a_log_that_was_cut_anywhere_holds_a_prefix_of_what_was_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a new store");
    let first = upload(&store, "t", "x");
    let job = store.create("t", new_job(&first)).expect("a job");
    store.cancel("t", &job.id).expect("it is cancelled");
    let log = std::fs::read(directory.path().join("jobs.log")).expect("the log");
    let mut seen = Vec::new();
    for cut in 0..=log.len() {
        let store = reopened_with(&log[..cut]).expect("a cut log opens");
        let status = store.job("t", &job.id).ok().map(|job| job.status);
        assert!(status.is_none() || store.file("t", &first).is_ok(), "a job has its input");
        if seen.last() != Some(&status) {
            seen.push(status);
        }
    }
    assert_eq!(seen, [None, Some(Status::Validating), Some(Status::Cancelling)]);
    let error = reopened_with(b"{}\n").expect_err("no record").to_string();
    assert!(error.contains("line 1") && error.contains("another directory"), "{error}");
}

#[test]
fn tenants_see_only_their_own_and_inputs_in_use_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a new store");
    let file = upload(&store, "one", "x");
    assert!(store.file("two", &file).is_err() && store.files("two").is_empty());
    assert!(store.create("two", new_job(&file)).is_err());
    let job = store.create("one", new_job(&file)).expect("a job");
    assert!(store.job("two", &job.id).is_err() && store.cancel("two", &job.id).is_err());
    assert!(matches!(store.delete("one", &file), Err(StoreError::FileInUse { .. })));
    let mut ended = job;
    ended.enter(Status::Completed, 7);
    store.save(&ended).expect("it is recorded");
    store.delete("one", &file).expect("nobody needs it");
    assert!(!store.content(&file).exists());
}

#[test]
fn an_upload_that_is_cut_or_too_large_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a new store");
    let mut cut = store.upload().expect("a file");
    cut.write(b"half", Purpose::Batch).expect("it is written");
    drop(cut);
    let mut large = store.upload().expect("a file");
    let megabyte = vec![b'x'; 1 << 20];
    let written = (0..=MAX_FILE_BYTES >> 20).try_for_each(|_| large.write(&megabyte, Purpose::Batch));
    assert!(matches!(written, Err(StoreError::TooLarge)));
    drop(large);
    let left = std::fs::read_dir(directory.path().join("files")).expect("files").count();
    assert_eq!((left, store.files("t").len()), (0, 0));
}

#[test]
fn one_router_has_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let _store = Store::open(directory.path()).expect("a new store");
    assert!(matches!(Store::open(directory.path()), Err(StoreError::InUse(_))));
}

async fn until_ended(store: &Store, id: &str) -> Job {
    loop {
        let job = store.job("", id).expect("the job");
        if job.status.is_final() {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_job_ends_with_an_answer_or_an_error_for_each_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = std::sync::Arc::new(Store::open(directory.path()).expect("a new store"));
    let app = testing::app(answers());
    tokio::spawn(work(app, store.clone()));
    let body = json!({"prompt": "x", "temperature": -1});
    let bad = json!({"custom_id": "c", "url": "/v1/completions", "body": body}).to_string();
    let input = line("a", "one") + &line("b", "two") + &bad;
    let job = store.create("", new_job(&upload(&store, "", &input))).expect("a job");
    let job = until_ended(&store, &job.id).await;
    assert_eq!(job.status, Status::Completed, "{job:?}");
    assert_eq!(job.counts, Counts { total: 3, completed: 2, failed: 1 });
    let text = |id: &Option<String>| {
        std::fs::read_to_string(store.content(id.as_ref().expect("a file"))).expect("it is read")
    };
    assert_eq!(text(&job.output_file_id).lines().count(), 2);
    assert!(text(&job.error_file_id).contains("temperature"));
    assert!(!store.answers(&job.id).exists());
}

#[tokio::test]
async fn a_wrong_input_fails_with_its_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = std::sync::Arc::new(Store::open(directory.path()).expect("a new store"));
    tokio::spawn(work(testing::app(answers()), store.clone()));
    let check = async |input: &str, code: &str, at: Option<u64>| {
        let job = store.create("", new_job(&upload(&store, "", input))).expect("a job");
        let job = until_ended(&store, &job.id).await;
        assert_eq!(job.status, Status::Failed, "{input}");
        assert_eq!((job.errors[0].code.as_str(), job.errors[0].line), (code, at), "{input}");
    };
    check("", "empty_file", None).await;
    check(&(line("a", "x") + "{"), "invalid_json_line", Some(2)).await;
    check(&(line("a", "x") + &line("a", "y")), "duplicate_custom_id", Some(2)).await;
    check(&line("a", "x").replace("completions", "chat/completions"), "mismatched_endpoint", Some(1)).await;
}

#[tokio::test]
async fn a_cancelled_job_keeps_what_was_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = std::sync::Arc::new(Store::open(directory.path()).expect("a new store"));
    let hangs = Script { say: vec![Say::Hang], ..Script::default() };
    let app = testing::app(hangs);
    tokio::spawn(work(app.clone(), store.clone()));
    let job = store.create("", new_job(&upload(&store, "", &line("a", "x")))).expect("a job");
    while store.job("", &job.id).expect("the job").status != Status::InProgress {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.cancel("", &job.id).expect("it is cancelled").status, Status::Cancelling);
    let job = until_ended(&store, &job.id).await;
    assert_eq!((job.status, job.output_file_id), (Status::Cancelled, None));
    assert_eq!(app.drain.running(), 0, "its request was cancelled, too");
}
