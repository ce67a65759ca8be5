//! A disk without room, at every number of bytes that still fit.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::batch::disk::Disk;
use crate::refusal::Refusal;

/// Lines of a job; one of them is refused.
const LINES: usize = 6;

fn input() -> String {
    let bad =
        json!({"custom_id": "bad", "url": "/v1/completions", "body": {"prompt": "x", "temperature": -1}});
    (1..LINES).map(|n| line(&n.to_string(), "x")).collect::<String>() + &bad.to_string()
}

fn open(directory: &std::path::Path, room: Option<usize>) -> Store {
    let disk = Disk::of(directory);
    *disk.room.lock().expect("nobody panicked") = room;
    Store::open_on(disk, directory, BatchLimits::default()).expect("a full disk is no error")
}

fn set_room(store: &Store, room: Option<usize>) {
    *store.disk().room.lock().expect("nobody panicked") = room;
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_for_room_and_loses_no_answer() {
    for room in (0..3_000).step_by(157) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Arc::new(open(directory.path(), None));
        let job = store.create("", new_job(&upload(&store, "", &input()))).expect("a job");
        set_room(&store, Some(room));
        let worker = tokio::spawn(work(testing::app(answers()), store.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let waiting = store.job("", &job.id).expect("the job");
        assert!(!waiting.status.is_final() && waiting.errors.is_empty(), "{room}: {waiting:?}");
        set_room(&store, None);
        let ended = until_ended(&store, &job.id).await;
        assert_eq!(ended.status, Status::Completed, "{room}");
        assert_eq!(ended.counts, Counts { total: 6, completed: 5, failed: 1 }, "{room}");
        let text = std::fs::read_to_string(store.content(&ended.output_file_id.expect("answers")))
            .expect("it is there");
        let mut names: Vec<_> =
            text.lines().map(|line| line.split("custom_id").nth(1).expect("a name")).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), text.lines().count()), (5, 5), "{room}: each once");
        worker.abort();
        let _ = worker.await;
        drop(store);
        let again = open(directory.path(), None);
        assert_eq!(
            again.job("", &job.id).expect("the job").status,
            Status::Completed,
            "{room}: the log is whole"
        );
    }
}

#[test]
fn an_upload_without_room_is_refused_without_our_path_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path(), None);
    let kept = upload(&store, "t", "x");
    for room in [0, 3, 5, 100] {
        set_room(&store, Some(room));
        let mut file = store.upload("t").expect("a file");
        let error = file.write(b"12345").and_then(|()| file.finish("f").map(drop)).expect_err("no room");
        let refusal = Refusal::from(error);
        let shape = refusal.http();
        assert_eq!(
            (shape.status, shape.code, refusal.retry_after()),
            (507, Some("insufficient_storage"), None)
        );
        assert!(!refusal.to_string().contains(directory.path().to_str().expect("text")), "{refusal}");
        let refusal = Refusal::from(store.create("t", new_job(&kept)).expect_err("no room"));
        assert_eq!(refusal.http().status, 507);
    }
    let left = std::fs::read_dir(directory.path().join("files")).expect("files").count();
    assert_eq!((left, store.files("t").len()), (1, 1));
    set_room(&store, None);
    upload(&store, "t", "y");
}

#[test]
fn a_restart_without_room_keeps_what_was_recorded_and_files_can_be_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path(), None);
    let (first, second) = (upload(&store, "", "x"), upload(&store, "", "y"));
    drop(store);
    let log = directory.path().join("jobs.log");
    let whole = std::fs::read(&log).expect("the log");
    std::fs::write(&log, [&whole[..], b"{\"file\": {"].concat()).expect("a line that a kill cut");
    for room in [0, 20, whole.len() + 20] {
        let store = open(directory.path(), Some(room));
        assert_eq!(store.files("").len(), 2, "{room}");
    }
    let store = open(directory.path(), Some(0));
    store.delete("", &first).expect("it makes room");
    assert!(store.file("", &first).is_err());
    drop(store);
    let store = open(directory.path(), Some(0));
    assert_eq!(store.files("").iter().map(|file| &file.id).collect::<Vec<_>>(), [&second]);
    set_room(&store, None);
    upload(&store, "", "z");
    drop(store);
    assert_eq!(open(directory.path(), None).files("").len(), 2, "the log is whole");
}
