use super::*;

fn config(max_loras: usize, max_cpu_loras: usize, count: usize) -> AdaptersConfig {
    let module = |nth: usize| AdapterConfig { name: format!("a{nth}"), directory: format!("/a{nth}").into() };
    AdaptersConfig {
        modules: (0..count).map(module).collect(),
        max_loras,
        max_cpu_loras,
        may_change: true,
        is_enabled: true,
        ..AdaptersConfig::default()
    }
}

fn of_fake(max_loras: usize, max_cpu_loras: usize, count: usize) -> (Adapters, Vec<AdapterId>) {
    let adapters = Adapters::new(&config(max_loras, max_cpu_loras, count), None).unwrap();
    let ids = adapters.list().iter().map(|info| info.id).collect();
    (adapters, ids)
}

fn resident(adapters: &Adapters) -> Vec<String> {
    adapters.list().into_iter().filter(|info| info.is_resident).map(|info| info.name).collect()
}

#[tokio::test]
async fn the_adapter_unused_for_longest_loses_its_place() {
    let (adapters, ids) = of_fake(2, 2, 3);
    let first = adapters.acquire(ids[0]).await.unwrap();
    drop(adapters.acquire(ids[1]).await.unwrap());
    assert_eq!(resident(&adapters), ["a0", "a1"]);
    let third = adapters.acquire(ids[2]).await.unwrap();
    assert_eq!(resident(&adapters), ["a0", "a2"], "a0 is in use");
    let same = adapters.acquire(ids[0]).await.unwrap();
    assert!(Arc::ptr_eq(&first, &same), "all requests of an adapter share it");
    drop((first, same, third));
    drop(adapters.acquire(ids[1]).await.unwrap());
    assert_eq!(resident(&adapters), ["a0", "a1"], "a0 was used after a2");
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_turn_for_a_place_and_not_for_ever() {
    let (adapters, ids) = of_fake(1, 1, 2);
    let held = adapters.acquire(ids[0]).await.unwrap();
    let of = |id| {
        let adapters = adapters.clone();
        tokio::spawn(async move { adapters.acquire(id).await })
    };
    let other = of(ids[1]);
    tokio::task::yield_now().await;
    // It could share the place in use, but then the other would wait for as long as such requests come.
    let same = of(ids[0]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!other.is_finished() && !same.is_finished());
    let usage = adapters.usage();
    assert_eq!(
        (usage.running, usage.waiting),
        (vec!["a0".to_owned()], vec!["a0".to_owned(), "a1".to_owned()])
    );
    drop(held);
    let other = other.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!same.is_finished());
    let refused = same.await.unwrap().err().map(|error| error.to_string()).unwrap();
    assert!(refused.contains("1 adapters are in use") && refused.contains("--max-loras"), "{refused}");
    drop(other);
    adapters.acquire(ids[0]).await.unwrap();
    let expected = AdapterUse { known: 2, in_memory: 1, max_in_use: 1, ..AdapterUse::default() };
    assert_eq!(adapters.usage(), expected, "nobody waits any more");
}

#[tokio::test]
async fn an_unloaded_adapter_serves_only_requests_that_had_begun() {
    let (adapters, ids) = of_fake(2, 2, 2);
    let held = adapters.acquire(ids[0]).await.unwrap();
    assert!(adapters.unload("a0", 0, false).unwrap() && !adapters.unload("a0", 0, false).unwrap());
    let names: Vec<_> = adapters.list().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a1", ""]);
    // A stream that moves here from a worker that died.
    assert_eq!(adapters.acquire(ids[0]).await.unwrap().id, held.id);
    // The name is free for another adapter; the same one under its old name is listed again.
    adapters.load("a0", Path::new("/other"), None, 0).unwrap();
    assert!(matches!(adapters.load("a0", Path::new("/a0"), None, 0), Err(NotChanged::Taken(_))));
    adapters.load("again", Path::new("/a0"), Some(ids[0]), 0).unwrap();
    assert_eq!(adapters.list().len(), 3);
    assert!(matches!(adapters.load("b", Path::new("/b"), Some(ids[0]), 0), Err(NotChanged::Differs(_))));
    let unknown = adapters.acquire(AdapterId(7)).await;
    assert!(matches!(unknown, Err(NotServed::Unknown(AdapterId(7)))));
    let fixed = Adapters::new(&AdaptersConfig { may_change: false, ..config(1, 1, 1) }, None).unwrap();
    assert!(matches!(fixed.unload("a0", 0, false), Err(NotChanged::Fixed)));
}

#[test]
fn the_latest_change_of_a_name_counts_whatever_arrives_last() {
    let (adapters, ids) = of_fake(2, 2, 1);
    let load = |path: &str, stamp| adapters.load("new", Path::new(path), None, stamp).unwrap();
    let unload = |name: &str, stamp| adapters.unload(name, stamp, true).unwrap();
    let named = || -> Vec<(String, AdapterId)> {
        let list = adapters.list().into_iter().filter(|info| !info.name.is_empty());
        list.map(|info| (info.name, info.id)).collect()
    };
    let first = ("a0".to_owned(), ids[0]);
    assert!(adapters.records().is_empty(), "what the flags name is no change");
    let one = load("/one", 5);
    assert_eq!(named(), [first.clone(), ("new".into(), one)]);
    let other = load("/other", 7);
    assert_eq!(named(), [first.clone(), ("new".into(), other)], "a later change takes the name");
    assert!(!unload("new", 6), "earlier than the one that counts");
    load("/one", 6);
    assert_eq!(named().len(), 2);
    assert!(unload("new", 7) && !unload("new", 7));
    load("/other", 7);
    assert_eq!(named(), [first], "at equal stamps it is unloaded");
    // Names of the flags are unloaded as well, and stay so if the flags name them again.
    assert!(unload("a0", 3));
    assert!(!unload("unknown", 4), "it is remembered for a worker that may have it");
    let mut records = adapters.records();
    records.retain(|record| !record.name.is_empty());
    let unloaded = |(name, stamp): (&str, u64)| AdapterRecord {
        name: name.to_owned(),
        change: skein_proto::adapter::AdapterChange::Unloaded { stamp },
    };
    assert_eq!(records, [("a0", 3), ("new", 7), ("unknown", 4)].map(unloaded));
    adapters.unload("nowhere", 9, false).unwrap();
    assert_eq!(adapters.records().len(), 3 + records.len(), "three adapters end what began, no more names");
    assert_eq!(load("/other", 8), other);
    assert_eq!(named(), [("new".to_owned(), other)]);
}
