//! The batch directory after kills at any byte, its limits, and jobs over a scripted router.

mod full_disk;

use std::time::Duration;

use serde_json::{Map, json};

use super::*;
use crate::batch::Endpoint;
use crate::config::BatchLimits;
use crate::testing::{self, Say, Script, delta, finish};
use skein_proto::finish::FinishReason;

fn upload(store: &Store, tenant: &str, content: &str) -> String {
    let mut file = store.upload(tenant).expect("a file");
    file.write(content.as_bytes()).expect("it is written");
    file.finish("in.jsonl").expect("it is recorded").id
}

/// Script that answers every request with `x`.
fn answers() -> Script {
    Script::of([delta(0, "x"), finish(0, FinishReason::Stop(Some(1)))])
}

fn new_job(input: &str) -> NewJob {
    NewJob {
        endpoint: Endpoint::Completions,
        input_file_id: input.into(),
        metadata: Map::new(),
        rights: None,
    }
}

fn line(name: &str, prompt: &str) -> String {
    let body = json!({"prompt": prompt, "max_tokens": 4});
    json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}).to_string() + "\n"
}

/// Opens a directory with this log and this file, as left by a killed router.
fn reopened_with(log: &[u8], file: &str) -> Result<Store, StoreError> {
    let directory = tempfile::tempdir().expect("a directory").keep();
    std::fs::write(directory.join("jobs.log"), log).expect("the log");
    std::fs::create_dir(directory.join("files")).expect("a directory");
    std::fs::write(directory.join("files").join(file), "x").expect("a file");
    Store::open(&directory, BatchLimits::default())
}

#[test]
fn a_log_that_was_cut_anywhere_holds_a_prefix_of_what_was_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), BatchLimits::default()).expect("a new store");
    let first = upload(&store, "", "x");
    let job = store.create("", new_job(&first)).expect("a job");
    store.cancel("", &job.id).expect("it is cancelled");
    let log = std::fs::read(directory.path().join("jobs.log")).expect("the log");
    let mut seen = Vec::new();
    for cut in 0..=log.len() {
        let store = reopened_with(&log[..cut], &first).expect("a cut log opens");
        let status = store.job("", &job.id).ok().map(|job| job.status);
        assert!(status.is_none() || store.file("", &first).is_ok(), "a job has its input");
        if seen.last() != Some(&status) {
            seen.push(status);
        }
    }
    assert_eq!(seen, [None, Some(Status::Validating), Some(Status::Cancelling)]);
    let error = reopened_with(b"{}\n", "f").expect_err("no record").to_string();
    assert!(error.contains("line 1") && error.contains("another directory"), "{error}");
}

#[test]
fn tenants_see_only_their_own_and_inputs_in_use_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), BatchLimits::default()).expect("a new store");
    let file = upload(&store, "one", "x");
    assert!(store.file("two", &file).is_err() && store.files("two").is_empty());
    assert!(store.create("two", new_job(&file)).is_err());
    let job = store.create("one", new_job(&file)).expect("a job");
    assert!(store.job("two", &job.id).is_err() && store.cancel("two", &job.id).is_err());
    assert!(matches!(store.delete("one", &file), Err(StoreError::FileInUse { .. })));
    store.update(&job.id, |job| job.enter(Status::Completed, 7)).expect("it is recorded");
    store.delete("one", &file).expect("nobody needs it");
    assert!(!store.content(&file).exists());
}

#[test]
fn an_upload_that_is_cut_or_too_large_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), BatchLimits::default()).expect("a new store");
    let mut cut = store.upload("t").expect("a file");
    cut.write(b"half").expect("it is written");
    drop(cut);
    let mut large = store.upload("t").expect("a file");
    let megabyte = vec![b'x'; 1 << 20];
    let written = (0..=MAX_FILE_BYTES >> 20).try_for_each(|_| large.write(&megabyte));
    assert!(matches!(written, Err(StoreError::TooLarge)));
    drop(large);
    let left = std::fs::read_dir(directory.path().join("files")).expect("files").count();
    assert_eq!((left, store.files("t").len()), (0, 0));
}

#[test]
fn one_router_has_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), BatchLimits::default()).expect("a new store");
    assert!(matches!(Store::open(directory.path(), BatchLimits::default()), Err(StoreError::InUse(_))));
    drop(store);
    Store::open(directory.path(), BatchLimits::default()).expect("it is free");
}

#[test]
fn a_key_cannot_take_the_room_of_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = BatchLimits { files_per_key: 2, batches_per_key: 2, bytes_per_key: 10, bytes: 15 };
    let store = Store::open(directory.path(), limits).expect("a new store");
    let put = |tenant: &str, content: &str| {
        let mut file = store.upload(tenant)?;
        file.write(content.as_bytes())?;
        file.finish("f").map(|file| file.id)
    };
    let refused = |result: Result<String, StoreError>| result.expect_err("over a limit").to_string();
    let first = put("one", "123456").expect("the first");
    assert!(refused(put("one", "12345")).contains("over 10 bytes"));
    let second = put("one", "").expect("the second");
    assert!(refused(put("one", "")).starts_with("2 files are stored"));
    put("two", "123456789").expect("another key");
    assert!(refused(put("three", "1")).contains("no room"), "15 bytes of all");
    store.delete("one", &second).expect("nobody needs it");
    let unfinished = store.upload("one").expect("a place became free");
    assert!(refused(put("one", "")).starts_with("2 files"), "an upload that has not ended counts");
    drop(unfinished);
    put("one", "").expect("it was given up");

    let job = || store.create("one", new_job(&first)).map(|job| job.id);
    let (oldest, newest) = (job().expect("the first"), job().expect("the second"));
    assert!(refused(job()).contains("2 batches of this key have not ended"));
    store.update(&newest, |job| job.enter(Status::Completed, 7)).expect("it is recorded");
    job().expect("the ended one makes room");
    assert!(store.job("one", &newest).is_err() && store.job("one", &oldest).is_ok());
}

#[test]
fn only_its_user_can_read_the_directory_and_the_log_does_not_tell_who() {
    use std::os::unix::fs::PermissionsExt;
    let outer = tempfile::tempdir().expect("a directory");
    let directory = outer.path().join("batches");
    let name = "0123456789abcdef0123456789abcdef";
    let store = Store::open(&directory, BatchLimits::default()).expect("a new store");
    let owner = store.owner(name);
    let file = upload(&store, &owner, "x");
    // A log of an older version has the name itself.
    let log = std::fs::read_to_string(directory.join("jobs.log")).expect("the log");
    assert!(!log.contains(name) && owner.starts_with("k1-") && store.owner("").is_empty(), "{log}");
    drop(store);
    std::fs::write(directory.join("jobs.log"), log.replace(&owner, name)).expect("it is written");
    let store = Store::open(&directory, BatchLimits::default()).expect("the same store");
    assert!(store.file(&store.owner(name), &file).is_ok() && store.owner(name) == owner);
    let log = std::fs::read_to_string(directory.join("jobs.log")).expect("the log");
    assert!(!log.contains(name), "{log}");
    let content = format!("files/{file}");
    let modes = [
        ("", 0o700),
        ("files", 0o700),
        ("work", 0o700),
        ("jobs.log", 0o600),
        ("tenants.key", 0o600),
        (&content, 0o600),
    ];
    for (path, mode) in modes {
        let found = std::fs::metadata(directory.join(path)).expect("it is there").permissions().mode();
        assert_eq!(found & 0o777, mode, "{path}");
    }
}

#[test]
fn a_restart_shows_the_answers_so_far_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), BatchLimits::default()).expect("a new store");
    let job = store.create("", new_job(&upload(&store, "", "x"))).expect("a job");
    store.update(&job.id, |job| job.enter(Status::InProgress, 7)).expect("it is recorded");
    let line = |status: u64| json!({"id": "batch_req_1", "custom_id": "a", "response": {"status_code": status}, "error": null});
    let cut = r#"{"id": "#;
    let lines = format!("{}\n{}\n{}\n{cut}", line(200), line(400), line(200));
    std::fs::write(store.answers(&job.id), lines).expect("it is written");
    drop(store);
    let store = Store::open(directory.path(), BatchLimits::default()).expect("the same store");
    let counts = |job: Job| (job.counts.completed, job.counts.failed);
    assert_eq!(counts(store.job("", &job.id).expect("the job")), (2, 1));
    let job = store.update(&job.id, |job| job.enter(Status::Finalizing, 8)).expect("it is recorded");
    assert_eq!(counts(job), (2, 1), "another status keeps them");
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
    let store =
        std::sync::Arc::new(Store::open(directory.path(), BatchLimits::default()).expect("a new store"));
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
async fn a_request_with_an_id_of_its_own_is_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let store =
        std::sync::Arc::new(Store::open(directory.path(), BatchLimits::default()).expect("a new store"));
    tokio::spawn(work(testing::app(answers()), store.clone()));
    let body = json!({"prompt": "x", "request_id": "mine"});
    let input = json!({"custom_id": "c", "url": "/v1/completions", "body": body}).to_string();
    let job = store.create("", new_job(&upload(&store, "", &input))).expect("a job");
    let job = until_ended(&store, &job.id).await;
    assert_eq!(job.counts, Counts { total: 1, completed: 1, failed: 0 }, "{job:?}");
}

#[tokio::test]
async fn a_wrong_input_fails_with_its_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let store =
        std::sync::Arc::new(Store::open(directory.path(), BatchLimits::default()).expect("a new store"));
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
    let store =
        std::sync::Arc::new(Store::open(directory.path(), BatchLimits::default()).expect("a new store"));
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

#[test]
fn a_log_that_is_a_pipe_is_refused_instead_of_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jobs.log");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    let error = Store::open(directory.path(), BatchLimits::default()).map(drop).expect_err("no log");
    assert!(error.to_string().contains("not a regular file"), "{error}");
}
