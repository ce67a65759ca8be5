//! An endpoint picker beside the routers: it picks what they would choose, and they follow its picks.

use skein_router::generator::FleetView;
use skein_router::links::picks::Endpoints;

use super::*;

const ALL: Endpoints = Endpoints { port: 8000, only: None };

impl Scene {
    /// Another process that watches the same workers.
    async fn picker(&self) -> Cluster {
        let (changes, receiver) = discovery::in_process();
        let config = config(AdmissionConfig::default(), RecoveryConfig::default());
        let tuning = Tuning { seed: Some(1) };
        let cluster = Cluster::start_with(&config, receiver, MODEL, tuning, Arc::new(Grpc::default()));
        for (index, worker) in self.workers.iter().enumerate() {
            let member = Member { id: format!("w{index}"), address: worker.address.to_string() };
            changes.send(Change::Join(member)).await.expect("the cluster listens");
        }
        let ready = || cluster.snapshot().workers.iter().filter(|worker| worker.is_ready()).count();
        wait_for("the picker's workers", || ready() == self.workers.len()).await;
        cluster
    }

    /// Worker of the last call.
    fn last_called(&self) -> String {
        format!("w{}", lock(&self.script.calls).last().expect("there was a call").0)
    }
}

fn cached(cluster: &Cluster) -> usize {
    cluster.snapshot().workers.iter().map(|worker| worker.cached_blocks).sum()
}

/// Prompt of conversation `number`: six blocks shared with no other.
fn prompt(number: u32) -> impl Iterator<Item = TokenId> + Clone {
    number * 24..(number + 1) * 24
}

#[tokio::test]
async fn a_picker_picks_what_the_router_chooses() {
    let scene = Scene::new(3).await;
    let picker = scene.picker().await;
    let mut workers = std::collections::BTreeSet::new();
    for number in 0..12 {
        scene.run(request(&format!("r{number}"), prompt(number), 4)).await;
        let holder = scene.last_called();
        // The picker learns of the cached prefix from the worker itself.
        wait_for("the picker's index", || cached(&picker) >= 6 * (number as usize + 1)).await;
        let again = request(&format!("again{number}"), prompt(number).chain([7, 7]), 4);
        let picked = picker.pick(&again, &ALL).expect("a worker is ready");
        assert_eq!(&*picked.worker, holder, "conversation {number}");
        assert_eq!(picked.endpoint.port(), 8000);
        drop(picked);
        scene.run(again).await;
        assert_eq!(scene.last_called(), holder, "and so chooses the router");
        workers.insert(holder);
    }
    assert!(workers.len() > 1, "{workers:?}");
}

#[tokio::test]
async fn a_pick_counts_as_load_until_it_is_dropped() {
    let scene = Scene::new(2).await;
    let load = || {
        let workers = scene.cluster.snapshot().workers;
        workers.iter().map(|worker| worker.load.queued_uncached_tokens).sum::<u64>()
    };
    let mut picks: Vec<_> = (0..4)
        .map(|number| scene.cluster.pick(&request("r", prompt(number), 4), &ALL).expect("a worker is ready"))
        .collect();
    assert_eq!((load(), scene.cluster.snapshot().running.requests), (4 * 24, 4));
    picks[0].answered();
    picks[1].reported();
    assert_eq!(load(), 2 * 24);
    drop(picks);
    assert_eq!((load(), scene.cluster.snapshot().running.requests), (0, 0));
}

#[tokio::test]
async fn picks_beyond_the_queue_are_refused() {
    let admission = AdmissionConfig { max_num_queued_reqs: 1, ..AdmissionConfig::default() };
    let scene = Scene::with(1, admission, None).await;
    let pick = |only| scene.cluster.pick(&request("r", 0..9, 4), &Endpoints { port: 8000, only });
    let status = |refused: Result<_, Refusal>| refused.err().expect("it is refused").http().status;
    assert_eq!(status(pick(Some(Vec::new()))), 503);
    let held = pick(None).expect("a worker is ready");
    assert_eq!(status(pick(None)), 429);
    drop(held);
    assert!(pick(None).is_ok());
}

#[tokio::test]
async fn a_request_runs_where_it_was_picked_and_moves_on_if_that_worker_fails() {
    let scene = Scene::new(3).await;
    let picked = |id: &str, worker: &str| {
        let request = request(id, 0..30, 6);
        TokenRequest { picked_worker: Some(worker.into()), ..request }
    };
    for worker in ["w2", "w0", "w1"] {
        scene.run(picked("r", worker)).await;
        assert_eq!(scene.last_called(), worker, "although another may have the prefix");
    }
    let expected = scene.run(picked("r", "w1")).await;
    scene.script.faults([Fault::Break(2)]);
    let got = scene.run(picked("r", "w1")).await;
    assert_eq!((got.error, got.samples), (None, expected.samples));
    assert!(scene.run(picked("r", "gone")).await.error.is_none(), "a pick that has left binds nobody");
}
