use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rusqlite::Connection;

use crate::limits::TURN_BYTES;
use crate::{Limits, NewTurn, StateError, Store, files, schema, turns};

const ROOMY: Limits = Limits { bytes: 1 << 30, kept_for: Duration::from_secs(1000) };

fn now() -> u64 {
    1_000_000
}

fn turn(owner: &str, id: &str, previous: Option<&str>, text: &str) -> NewTurn {
    let previous = previous.map(str::to_owned);
    let (input, answer) = (format!("[{text:?}]"), format!("{{\"id\": {id:?}}}"));
    NewTurn { owner: owner.to_owned(), id: id.to_owned(), previous, input, answer, request: None }
}

fn ids(turns: Result<Vec<crate::Turn>, StateError>) -> Result<String, String> {
    let turns = turns.map_err(|error| error.to_string())?;
    Ok(turns.iter().map(|turn| turn.id.as_str()).collect::<Vec<_>>().join(" "))
}

async fn check_a_conversation(store: &Store) {
    for (id, previous) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", Some("b"))] {
        store.add(turn("me", id, previous, "hello")).await.unwrap();
    }
    assert_eq!(ids(store.turns_up_to("me", "c").await), Ok("a b c".to_owned()));
    assert_eq!(ids(store.turns_up_to("me", "d").await), Ok("a b d".to_owned()), "a conversation may fork");
    assert_eq!(store.turn("me", "b").await.unwrap().unwrap().input, "[\"hello\"]");
    assert_eq!(store.turn("you", "b").await.unwrap(), None, "it is somebody else's");
    assert_eq!(ids(store.turns_up_to("you", "b").await), Err("there is no response `b`".to_owned()));
    assert!(!store.delete("you", "b").await.unwrap());
    assert!(store.add(turn("me", "b", None, "again")).await.is_err(), "an id is given once");
    store.add(turn("you", "b", None, "mine")).await.unwrap();
    assert!(store.delete("me", "b").await.unwrap());
    assert!(!store.delete("me", "b").await.unwrap());
    let broken = "response `c` continues `b`, which is not stored any more";
    assert_eq!(ids(store.turns_up_to("me", "c").await), Err(broken.to_owned()));
    assert!(store.turn("me", "c").await.unwrap().is_some(), "it can still be read");
    let counts = store.counts();
    assert_eq!((counts.turns, counts.stored, counts.deleted, counts.not_stored), (4, 5, 1, 1));
    assert!(counts.bytes > 4 * TURN_BYTES);
}

#[tokio::test]
async fn turns_are_read_with_all_that_they_continue() {
    check_a_conversation(&Store::in_memory(ROOMY, now).unwrap()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/here");
    {
        let store = Store::open(&path, ROOMY, now).unwrap();
        check_a_conversation(&store).await;
        let in_use = Store::open(&path, ROOMY, now).unwrap_err();
        assert!(in_use.to_string().contains("in use by another router"), "{in_use}");
    }
    let store = reopened(&path, ROOMY, now).await;
    assert_eq!(ids(store.turns_up_to("me", "a").await), Ok("a".to_owned()));
    store.add(turn("me", "e", Some("a"), "more")).await.unwrap();
    assert_eq!(ids(store.turns_up_to("me", "e").await), Ok("a e".to_owned()));
    assert_eq!(store.counts().turns, 5);
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o077, 0, "{:?} is for this user alone", file.path());
    }
}

/// Opens a store whose threads may still be ending.
async fn reopened(path: &Path, limits: Limits, clock: crate::Clock) -> Store {
    loop {
        match Store::open(path, limits, clock) {
            Err(StateError::InUse(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            opened => return opened.unwrap(),
        }
    }
}

#[tokio::test]
async fn conversations_expire_as_a_whole_after_their_last_use() {
    let directory = tempfile::tempdir().unwrap();
    let early: crate::Clock = || 5_000;
    {
        let store = Store::open(directory.path(), ROOMY, early).unwrap();
        for (id, previous) in [("a", None), ("b", Some("a")), ("old", None)] {
            store.add(turn("me", id, previous, &"kept secret".repeat(100_000))).await.unwrap();
        }
    }
    {
        let store = reopened(directory.path(), ROOMY, || 5_900).await;
        store.add(turn("me", "c", Some("b"), "later")).await.unwrap();
    }
    {
        // The first two are 1,001 s old, and the third one 101.
        let store = reopened(directory.path(), ROOMY, || 6_001).await;
        assert_eq!(ids(store.turns_up_to("me", "c").await), Ok("a b c".to_owned()));
        until_expired(&store, 1).await;
        assert_eq!(store.turn("me", "old").await.unwrap(), None);
    }
    let store = reopened(directory.path(), ROOMY, || 6_901).await;
    until_expired(&store, 3).await;
    let counts = store.counts();
    assert_eq!((counts.turns, counts.bytes), (0, 0));
    let bytes = std::fs::metadata(directory.path().join("responses.db")).unwrap().len();
    assert!(bytes < 200_000, "{bytes} bytes are left of an empty store");
    drop(store);
    let store = reopened(directory.path(), ROOMY, || 6_901).await;
    for name in ["responses.db", "responses.db-wal"] {
        let bytes = std::fs::read(directory.path().join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.contains("kept secret"), "{name} still has the text");
    }
    drop(store);
}

async fn until_expired(store: &Store, turns: u64) {
    while store.counts().expired < turns {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.counts().expired, turns);
}

#[tokio::test]
async fn a_turn_that_is_to_be_answered_stays_so_over_a_restart_and_is_answered_once() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 10_000, ..ROOMY };
    {
        let store = Store::open(directory.path(), limits, now).unwrap();
        let asked =
            |id: &str| NewTurn { request: Some(format!("request {id}")), ..turn("me", id, None, "x") };
        for id in ["a", "b", "c"] {
            store.add(asked(id)).await.unwrap();
        }
        assert!(store.answer("me", "a", "\"running\"".to_owned(), false).await.unwrap());
        assert!(store.answer("me", "b", "\"done\"".to_owned(), true).await.unwrap());
        assert!(!store.answer("me", "b", "\"late\"".to_owned(), true).await.unwrap(), "it has its answer");
        assert!(!store.answer("you", "a", "\"other\"".to_owned(), true).await.unwrap());
        assert!(store.delete("me", "c").await.unwrap());
        assert!(!store.answer("me", "c", "\"late\"".to_owned(), true).await.unwrap(), "it was deleted");
    }
    let store = reopened(directory.path(), limits, now).await;
    let left = store.unanswered().await.unwrap();
    let left: Vec<_> = left.iter().map(|one| (one.id.as_str(), one.request.as_str())).collect();
    assert_eq!(left, [("a", "request a")]);
    // What fills the store removes answered conversations only.
    for id in ["d", "e", "f"] {
        store.add(turn("me", id, None, &"x".repeat(3000))).await.unwrap();
    }
    let there = async |id| store.turn("me", id).await.unwrap().is_some();
    assert_eq!((there("a").await, there("b").await, there("d").await), (true, false, false));
    assert!(store.answer("me", "a", "\"done\"".to_owned(), true).await.unwrap());
    assert_eq!(store.turn("me", "a").await.unwrap().unwrap().answer, "\"done\"");
    assert!(store.unanswered().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_full_store_drops_the_oldest_conversation_of_the_owner_with_the_most() {
    let text = "x".repeat(1000);
    // Each turn has about 1,530 bytes, so that six fit.
    let limits = Limits { bytes: 10_000, ..ROOMY };
    let store = Store::in_memory(limits, now).unwrap();
    store.add(turn("small", "s", None, &text)).await.unwrap();
    for id in ["a", "b", "c", "d", "e"] {
        store.add(turn("large", id, None, &text)).await.unwrap();
    }
    store.add(turn("large", "f", Some("e"), &text)).await.unwrap();
    store.add(turn("small", "t", None, &text)).await.unwrap();
    let mut left = Vec::new();
    for (owner, id) in [("large", "a"), ("large", "b"), ("large", "c"), ("large", "f"), ("small", "s")] {
        if store.turn(owner, id).await.unwrap().is_some() {
            left.push(id);
        }
    }
    assert_eq!(left, ["c", "f", "s"], "the owner with most bytes lost its two oldest");
    assert_eq!((store.counts().evicted, store.counts().turns), (2, 6));
    assert!(store.counts().bytes <= limits.bytes);
    let long = "x".repeat(20_000);
    let refused = store.add(turn("large", "g", None, &long)).await.unwrap_err();
    assert!(refused.to_string().contains("all that are stored may have 10000"), "{refused}");
    assert_eq!(store.counts().turns, 6, "what does not fit removes nothing");
}

#[tokio::test]
async fn a_write_that_fails_does_not_take_others_with_it() {
    let store = Store::in_memory(ROOMY, now).unwrap();
    store.add(turn("me", "0", None, "first")).await.unwrap();
    let add = |id: usize| store.add(turn("me", &(id % 50).to_string(), None, "text"));
    let done = futures_of((0..100).map(add)).await;
    let stored = done.iter().filter(|done| done.is_ok()).count();
    assert_eq!((stored, store.counts().turns), (49, 50));
}

/// All of `futures`, begun together.
async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (at, future) in running.iter_mut().enumerate() {
            if done[at].is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                done[at] = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[test]
fn a_full_disk_keeps_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _lock) = files::prepare(directory.path()).unwrap();
    let connection = schema::open(&path).unwrap();
    let add = |id: &str, previous, text: &str| {
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let added = turns::add(&connection, &turn("me", id, previous, text), 1, 1 << 30);
        match added {
            Ok(_) => connection.execute_batch("COMMIT").unwrap(),
            // SQLite may have rolled it back already.
            Err(_) => drop(connection.execute_batch("ROLLBACK")),
        }
        added
    };
    add("a", None, "text").unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages + 1).unwrap();
    let refused = add("b", Some("a"), &"long ".repeat(10_000)).unwrap_err();
    assert!(refused.is_disk_full(), "{refused}");
    assert_eq!(ids(turns::up_to(&connection, "me", "a")), Ok("a".to_owned()));
    connection.pragma_update(None, "max_page_count", pages + 1000).unwrap();
    add("b", Some("a"), &"long ".repeat(10_000)).unwrap();
    assert_eq!(ids(turns::up_to(&connection, "me", "b")), Ok("a b".to_owned()));
}

#[test]
fn other_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("responses.db");
    let refused = |expected: &str| {
        let looked = crate::check_file(directory.path());
        assert!(looked.is_err() || path.is_dir(), "{expected}");
        let error = Store::open(directory.path(), ROOMY, now).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("give another directory"), "{error}");
    };
    std::fs::write(&path, "this is a text file, and long enough for a header. ".repeat(40)).unwrap();
    refused("SQLite does not read it");
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE other (a)").unwrap();
    refused("another program's database");
    std::fs::remove_file(&path).unwrap();
    drop(schema::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
    refused("its layout is 9, and this release reads 1");
    std::fs::remove_file(&path).unwrap();
    crate::check_file(directory.path()).unwrap();
    drop(schema::open(&path).unwrap());
    crate::check_file(directory.path()).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("not a regular file");
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Store::open(&file, ROOMY, now).unwrap_err().to_string();
    assert!(error.contains("not a directory"), "{error}");
}

#[test]
fn turns_that_continue_too_many_are_refused() {
    let connection = schema::in_memory().unwrap();
    let mut previous: Option<String> = None;
    connection.execute_batch("BEGIN").unwrap();
    for at in 0..=crate::limits::MAX_TURNS {
        let id = at.to_string();
        turns::add(&connection, &turn("me", &id, previous.as_deref(), "x"), 1, 1 << 40).unwrap();
        previous = Some(id);
    }
    let error = turns::up_to(&connection, "me", &previous.unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "response `10000` continues more than 10000 turns");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any order of additions, deletions and expiries, the store agrees with a map, and its sums with
    /// its rows.
    #[test]
    fn a_store_agrees_with_a_map(orders in prop::collection::vec((0..6_u8, 0..3_u8, 0..12_u8, 0..12_u8, 0..400_usize), 1..60)) {
        let connection = schema::in_memory().unwrap();
        let mut model: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
        for (at, (kind, owner, id, previous, length)) in orders.into_iter().enumerate() {
            let (owner, id, previous) = (format!("o{owner}"), id.to_string(), previous.to_string());
            let key = (owner.clone(), id.clone());
            if kind < 4 {
                let previous = (previous != id).then_some(previous);
                let new = turn(&owner, &id, previous.as_deref(), &"x".repeat(length));
                let new = NewTurn { request: (kind == 0).then(|| "y".repeat(length)), ..new };
                connection.execute_batch("SAVEPOINT one").unwrap();
                let added = turns::add(&connection, &new, at as i64, u64::MAX >> 1);
                prop_assert_eq!(added.is_ok(), !model.contains_key(&key));
                if added.is_ok() {
                    model.insert(key, previous);
                } else {
                    connection.execute_batch("ROLLBACK TO one").unwrap();
                }
                connection.execute_batch("RELEASE one").unwrap();
            } else if kind == 4 {
                turns::answer(&connection, (&owner, &id), &"z".repeat(length), length % 2 == 0, u64::MAX >> 1).unwrap();
            } else {
                let deleted = turns::delete(&connection, &owner, &id).unwrap();
                prop_assert_eq!(deleted, model.remove(&key).is_some());
            }
        }
        for ((owner, id), previous) in &model {
            let found = turns::one(&connection, owner, id).unwrap().unwrap();
            prop_assert_eq!(&found.previous, previous);
        }
        let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        prop_assert_eq!(one("SELECT count(*) FROM turns"), model.len() as i64);
        prop_assert_eq!(
            one("SELECT coalesce(sum(bytes), 0) FROM owners"), one("SELECT coalesce(sum(bytes), 0) FROM turns")
        );
        let counted = "SELECT count(*) FROM turns WHERE bytes != 512 + octet_length(input) + octet_length(answer) + \
                       coalesce(octet_length(request), 0)";
        prop_assert_eq!(one(counted), 0);
        let lone = "SELECT count(*) FROM trees WHERE NOT EXISTS (SELECT 1 FROM turns WHERE tree = trees.number)";
        prop_assert_eq!(one(lone), 0);
        connection.execute_batch("UPDATE turns SET request = NULL").unwrap();
        crate::room::expire(&connection, i64::MAX, 1000).unwrap();
        prop_assert_eq!(one("SELECT (SELECT count(*) FROM turns) + (SELECT count(*) FROM trees) + (SELECT count(*) FROM owners)"), 0);
    }
}
