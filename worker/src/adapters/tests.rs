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
    assert!(adapters.unload("a0").unwrap() && !adapters.unload("a0").unwrap());
    let names: Vec<_> = adapters.list().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a1", ""]);
    // A stream that moves here from a worker that died.
    assert_eq!(adapters.acquire(ids[0]).await.unwrap().id, held.id);
    // The name is free for another adapter; the same one under its old name is listed again.
    adapters.load("a0", Path::new("/other"), None).unwrap();
    assert!(matches!(adapters.load("a0", Path::new("/a0"), None), Err(NotChanged::Taken(_))));
    adapters.load("again", Path::new("/a0"), Some(ids[0])).unwrap();
    assert_eq!(adapters.list().len(), 3);
    assert!(matches!(adapters.load("b", Path::new("/b"), Some(ids[0])), Err(NotChanged::Differs(_))));
    let unknown = adapters.acquire(AdapterId(7)).await;
    assert!(matches!(unknown, Err(NotServed::Unknown(AdapterId(7)))));
    let fixed = Adapters::new(&AdaptersConfig { may_change: false, ..config(1, 1, 1) }, None).unwrap();
    assert!(matches!(fixed.unload("a0"), Err(NotChanged::Fixed)));
}
