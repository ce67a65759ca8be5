//! The fleet under joins, leaves, gaps, restarts and silence: events in, actions and readiness out.

use rand::SeedableRng;
use rand::rngs::StdRng;
use skein_node::discovery::Member;
use skein_proto::TokenId;
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::load::{Load, LoadReport};
use skein_proto::pooling::{PooledKind, PooledModel};
use skein_proto::runs::{CacheChange, RunStored};

use super::*;
use crate::prefix_index::DEFAULT_MAX_BYTES;

const ROUTER: u64 = 77;
const LIMITS: HealthLimits = HealthLimits { worker_timeout: Duration::from_secs(5), wedge_timeout: None };

fn at(ms: u64) -> Timestamp {
    Timestamp::from_start(Duration::from_millis(ms))
}

fn info(epoch: u64) -> WorkerInfo {
    WorkerInfo {
        epoch,
        model: "m".into(),
        max_model_len: 1000,
        vocab_size: 500,
        block_size: 4,
        kv_blocks: 100,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        resume_exact: true,
        version: String::new(),
        backend: "fake".into(),
        fingerprint: 1,
        grammar_fingerprint: 9,
        tokenizer_fingerprint: 5,
        serving_since_ms: 1,
        pooled: None,
    }
}

fn snapshot(runs: Vec<RunStored>) -> WatchBody {
    WatchBody::Snapshot(Snapshot { runs, ..Snapshot::default() })
}

fn load(sequence: u64, report: LoadReport) -> (u64, WatchBody) {
    (sequence, WatchBody::Load(report, Vec::new()))
}

fn rated_at(prefill_tokens_per_second: f32, running: u32, step: u64) -> LoadReport {
    let load = Load { running, free_blocks: 100, prefill_tokens_per_second, ..Load::default() };
    LoadReport { load, step, ..LoadReport::default() }
}

fn rated(running: u32, step: u64) -> LoadReport {
    rated_at(1000.0, running, step)
}

fn admitted(router: u64, sequence: u64, hashes: Vec<BlockHash>, stream_key: Option<StreamKey>) -> WatchBody {
    let placement = skein_proto::placement::Placement { router, sequence };
    WatchBody::Admitted(Admitted { placement, depth: 0, hashes, stream_key })
}

struct Scene {
    fleet: Fleet,
    ids: Vec<WorkerId>,
}

impl Scene {
    /// A fleet with `workers` members whose links have read `Info` (epoch 1) and an empty snapshot.
    fn new(workers: usize) -> Self {
        let fleet = Fleet::new("m", ROUTER, LIMITS, PrefixIndex::new(DEFAULT_MAX_BYTES));
        let mut scene = Self { fleet, ids: Vec::new() };
        for index in 0..workers {
            let member = Member { id: format!("w{index}"), address: format!("host:{}", index + 1) };
            let actions = scene.fleet.handle(at(0), Event::Member(Change::Join(member)));
            let [Action::Follow(id, _)] = actions[..] else { panic!("{actions:?}") };
            scene.ids.push(id);
            assert_eq!(scene.fleet.handle(at(0), Event::Connected(id, info(1))), []);
            assert_eq!(scene.watch(0, index, 1, (1, snapshot(Vec::new()))), [Action::Wake]);
        }
        scene
    }

    fn watch(
        &mut self,
        ms: u64,
        worker: usize,
        epoch: u64,
        (sequence, body): (u64, WatchBody),
    ) -> Vec<Action> {
        self.fleet.handle(at(ms), Event::Watched(self.ids[worker], WatchEvent { epoch, sequence, body }))
    }

    fn dispatched(&mut self, ms: u64, worker: usize, outcome: Outcome) -> Vec<Action> {
        self.fleet.handle(at(ms), Event::Dispatched(first(self.ids[worker]), outcome))
    }

    fn job(tokens: &[TokenId]) -> Job {
        let demand = Demand { prompt_tokens: tokens.len() as u32, expected_output_tokens: 4, sequences: 1 };
        Job::new(block_hash::root("m", "", ""), tokens, &[], &[4], demand)
    }

    fn choice(&mut self, ms: u64, tokens: &[TokenId]) -> Option<Pick> {
        self.fleet.choose(at(ms), &Self::job(tokens), &[], &mut StdRng::seed_from_u64(ms))
    }

    fn is_ready(&self, ms: u64, worker: usize) -> bool {
        self.fleet.status(at(ms))[worker].is_ready()
    }
}

fn first(worker: WorkerId) -> WorkerEpoch {
    WorkerEpoch { worker, epoch: 1 }
}

fn second(worker: WorkerId) -> WorkerEpoch {
    WorkerEpoch { worker, epoch: 2 }
}

fn stored(tokens: &[TokenId]) -> WatchBody {
    let hashes = block_hash::chain(block_hash::root("m", "", ""), tokens, 4);
    let run = RunStored { handle: 1, parent: 0, depth: 0, hashes };
    WatchBody::Cache(CacheChange { stored: vec![run], ..CacheChange::default() })
}

#[test]
fn a_worker_is_ready_from_its_first_report_on() {
    let mut scene = Scene::new(0);
    let member = Member { id: "w".into(), address: "host:1".into() };
    let actions = scene.fleet.handle(at(0), Event::Member(Change::Join(member.clone())));
    let [Action::Follow(id, _)] = actions[..] else { panic!("{actions:?}") };
    scene.ids.push(id);
    assert!(!scene.is_ready(0, 0));
    scene.fleet.handle(at(0), Event::Connected(id, info(1)));
    assert!(!scene.is_ready(0, 0), "its watch has said nothing");
    assert_eq!(scene.fleet.limits(at(0)), None);
    assert_eq!(scene.watch(0, 0, 1, load(1, rated(0, 0))), [Action::Wake]);
    assert!(scene.is_ready(0, 0));
    assert_eq!(
        scene.fleet.limits(at(0)),
        Some(ModelLimits { max_model_len: 1000, vocab_size: 500, max_num_seqs: 8, pools: false })
    );

    assert_eq!(scene.fleet.handle(at(0), Event::Lost(id)), []);
    assert!(!scene.is_ready(0, 0));
    assert_eq!(scene.watch(0, 0, 1, load(1, rated(0, 0))), [Action::Wake]);
    scene.watch(0, 0, 1, load(1, LoadReport { draining: true, ..rated(0, 0) }));
    assert!(!scene.is_ready(0, 0));

    // The same name at another address: the old worker is removed.
    let moved = Member { address: "host:2".into(), ..member };
    let actions = scene.fleet.handle(at(0), Event::Member(Change::Join(moved)));
    let [Action::Unfollow(old), Action::Recheck(lost), Action::Follow(new, _)] = actions[..] else {
        panic!("{actions:?}")
    };
    assert!(old == id && lost == id && new != id);
    let left = [Action::Unfollow(new), Action::Recheck(new)];
    assert_eq!(scene.fleet.handle(at(0), Event::Member(Change::Leave("w".into()))), left);
    assert_eq!(scene.fleet.handle(at(0), Event::Member(Change::Leave("w".into()))), []);
    assert!(scene.fleet.status(at(0)).is_empty());
    assert!(scene.watch(0, 0, 1, load(1, rated(0, 0))).is_empty(), "what an old link still says is nothing");
}

#[test]
fn a_worker_of_another_model_is_not_used() {
    let mut scene = Scene::new(1);
    let other = WorkerInfo { model: "other".into(), epoch: 2, ..info(2) };
    scene.fleet.handle(at(0), Event::Connected(scene.ids[0], other));
    scene.watch(0, 0, 2, (1, snapshot(Vec::new())));
    assert!(!scene.is_ready(0, 0));
    assert!(
        scene.fleet.status(at(0))[0].refuses.as_ref().is_some_and(|why| why.to_string().contains("other"))
    );
}

#[test]
fn a_gap_in_the_log_requests_a_snapshot() {
    let tokens: Vec<TokenId> = (0..40).collect();
    let mut scene = Scene::new(1);
    let id = scene.ids[0];
    let lost_count = |id| [Action::Log(Notice::OutOfStep(id, Desync { handle: 0 })), Action::Resubscribe(id)];
    assert_eq!(scene.watch(0, 0, 1, (1, stored(&tokens[..20]))), []);
    assert_eq!(
        scene.fleet.watch_from(id),
        Some(LogPosition { epoch: 1, next_sequence: 2 }),
        "a broken watch goes on from here"
    );
    assert_eq!(scene.watch(0, 0, 1, (1, stored(&tokens))), [], "an entry that is known already");
    assert_eq!(scene.choice(0, &tokens).expect("a worker").hit_tokens, 20);
    assert_eq!(scene.watch(0, 0, 1, load(2, rated(0, 0))), [], "a report uses no number up");
    assert_eq!(scene.watch(0, 0, 1, (3, stored(&tokens))), lost_count(id));
    assert_eq!(scene.fleet.watch_from(id), None);
    let WatchBody::Cache(change) = stored(&tokens) else { panic!("a cache change") };
    assert_eq!(scene.watch(0, 0, 1, (4, snapshot(change.stored))), []);
    assert_eq!(scene.fleet.watch_from(id), Some(LogPosition { epoch: 1, next_sequence: 4 }));
    assert_eq!(
        scene.choice(0, &tokens).expect("a worker").hit_tokens,
        39,
        "the last token is always computed"
    );
    // A report whose number lies beyond the next event also reveals the loss.
    assert_eq!(scene.watch(0, 0, 1, load(5, rated(0, 0))), lost_count(id));
}

#[test]
fn a_restarted_worker_starts_from_nothing() {
    let tokens: Vec<TokenId> = (0..40).collect();
    let mut scene = Scene::new(1);
    let id = scene.ids[0];
    scene.watch(0, 0, 1, (1, stored(&tokens)));
    scene.watch(0, 0, 1, load(2, rated(8, 5)));
    assert_eq!(scene.watch(0, 0, 2, load(1, rated(0, 0))), [Action::Reconnect(id)]);
    assert!(!scene.is_ready(0, 0));
    scene.fleet.handle(at(0), Event::Connected(id, info(2)));
    assert_eq!(scene.fleet.watch_from(id), None);
    scene.watch(0, 0, 2, (1, snapshot(Vec::new())));
    assert_eq!(scene.choice(0, &tokens).expect("a worker").hit_tokens, 0);
    assert_eq!(scene.fleet.status(at(0))[0].load.sequences, 0);
    // Streams of its earlier epoch say nothing about this one.
    for _ in 0..9 {
        scene.dispatched(0, 0, Outcome::Fault);
    }
    assert!(scene.is_ready(0, 0));
}

#[test]
fn a_broken_stream_keeps_requests_away_until_the_next_report() {
    let mut scene = Scene::new(1);
    scene.dispatched(0, 0, Outcome::Fault);
    assert!(!scene.is_ready(10, 0));
    scene.watch(10, 0, 1, load(1, rated(0, 0)));
    assert!(!scene.is_ready(10, 0), "that was on its way already");
    assert_eq!(scene.watch(200, 0, 1, load(1, rated(0, 0))), [Action::Wake]);
    scene.dispatched(300, 0, Outcome::Backpressure);
    assert!(scene.is_ready(300, 0), "full is not broken");
    scene.dispatched(400, 0, Outcome::Fault);
    scene.dispatched(400, 0, Outcome::Fault);
    scene.watch(500, 0, 1, load(1, rated(0, 0)));
    assert!(!scene.is_ready(500, 0), "three in a row open the breaker");
    assert!(scene.is_ready(1400, 0));
}

/// A choice began two searches over all workers, the limits for each request another two.
#[test]
fn a_choice_searches_all_workers_once_and_events_and_limits_search_none() {
    for workers in [10, 100, 1000] {
        let mut scene = Scene::new(workers);
        let step = |scene: &mut Scene, ms: u64| {
            let worker = ms as usize * 7 % workers;
            standing::VISITS.set(0);
            drop(scene.watch(ms, worker, 1, load(1, rated(1, ms))));
            let report = standing::VISITS.take();
            assert!(scene.choice(ms, &[1, 2, 3]).is_some());
            let choice = standing::VISITS.take();
            assert!(scene.fleet.limits(at(ms)).is_some());
            (report, choice, standing::VISITS.take())
        };
        step(&mut scene, 1);
        let all: Vec<_> = (2..100).map(|ms| step(&mut scene, ms)).collect();
        assert_eq!(all, vec![(0, workers, 0); 98]);
    }
}

#[test]
fn predictions_learn_what_requests_cost_besides_their_tokens() {
    let mut scene = Scene::new(1);
    scene.watch(0, 0, 1, load(1, rated(0, 0)));
    let mut predicted = Duration::ZERO;
    for nth in 0..200_u64 {
        let (now, tokens) = (1000 * nth, 10 + (nth * 37 % 90) as u32);
        scene.watch(now, 0, 1, load(1, rated(0, nth)));
        let tokens: Vec<TokenId> = (0..tokens).map(|token| token + nth as u32 * 100).collect();
        let pick = scene.choice(now, &tokens).expect("a worker");
        let job = Scene::job(&tokens);
        let placement = scene.fleet.place(at(now), &job, &pick).expect("a worker");
        let took = Duration::from_millis(20 + tokens.len() as u64);
        scene.fleet.handle(at(now) + took, Event::FirstToken(placement));
        scene.fleet.ended(placement);
        predicted = pick.first_token_after;
        if nth > 100 {
            let error = predicted.as_secs_f64() / took.as_secs_f64() - 1.0;
            assert!(error.abs() < 0.05, "{nth}: {predicted:?} instead of {took:?}");
        }
    }
    assert!(predicted > Duration::from_millis(30));
}

/// A deadline must not be refused because of it: the refused request would teach nothing.
#[test]
fn one_slow_first_token_delays_no_deadline() {
    let mut scene = Scene::new(1);
    scene.watch(0, 0, 1, load(1, rated(0, 0)));
    let tokens: Vec<TokenId> = (0..10).collect();
    let pick = scene.choice(0, &tokens).expect("a worker");
    let placement = scene.fleet.place(at(0), &Scene::job(&tokens), &pick).expect("a worker");
    scene.fleet.handle(at(3000), Event::FirstToken(placement));
    scene.fleet.ended(placement);
    scene.watch(3000, 0, 1, load(2, rated(0, 1)));
    let pick = scene.choice(3000, &tokens).expect("a worker");
    assert!(pick.first_token_after > Duration::from_secs(1), "all that is known: {pick:?}");
    assert!(pick.first_token_not_before() < Duration::from_millis(100), "{pick:?}");
}

/// Eight routers all sent what arrived together to the same idle worker: its next report was 50 ms away.
#[test]
fn what_a_worker_admits_from_another_router_counts_at_once() {
    let mut scene = Scene::new(2);
    for worker in 0..2 {
        scene.watch(0, worker, 1, load(1, rated(0, 0)));
    }
    scene.watch(0, 0, 1, (1, admitted(ROUTER + 1, 1, vec![1; 20], None)));
    let queued = |scene: &Scene| {
        scene.fleet.status(at(0)).iter().map(|it| it.load.queued_uncached_tokens).collect::<Vec<_>>()
    };
    assert_eq!(queued(&scene), [80, 0]);
    for ms in 0..20 {
        assert_eq!(scene.choice(ms, &[1, 2, 3]).map(|pick| pick.worker), Some(scene.ids[1]));
    }
    scene.watch(200, 0, 1, load(2, rated(0, 1)));
    assert_eq!(queued(&scene), [0, 0]);
}

#[test]
fn an_open_breaker_keeps_requests_away_only_while_there_is_a_better_worker() {
    let mut scene = Scene::new(2);
    (0..3).for_each(|_| drop(scene.dispatched(0, 0, Outcome::Fault)));
    for worker in 0..2 {
        scene.watch(100, worker, 1, load(1, rated(0, 0)));
    }
    let chosen = |scene: &mut Scene| scene.choice(200, &[1, 2, 3]).map(|pick| pick.worker);
    assert_eq!(chosen(&mut scene), Some(scene.ids[1]));
    scene.fleet.handle(at(200), Event::Lost(scene.ids[1]));
    assert_eq!(chosen(&mut scene), Some(scene.ids[0]), "better than nobody");
    assert!(scene.fleet.is_ready(at(200)));
    scene.fleet.handle(at(200), Event::Lost(scene.ids[0]));
    assert_eq!(chosen(&mut scene), None);
}

#[test]
fn a_frozen_engine_is_noticed_even_if_its_process_reports() {
    let mut scene = Scene::new(1);
    let placement = WorkerPlacement { at: first(scene.ids[0]), sequence: 1 };
    scene.watch(0, 0, 1, load(1, rated(0, 3)));
    for ms in (0..=4000).step_by(1000) {
        scene.watch(ms, 0, 1, load(1, rated(2, 4)));
    }
    assert!(!scene.fleet.is_stuck(at(4900), placement, at(0)));
    assert!(scene.is_ready(4900, 0));
    assert!(scene.fleet.is_stuck(at(5000), placement, at(0)));
    assert!(!scene.is_ready(5000, 0));
    scene.watch(5100, 0, 1, load(1, rated(2, 5)));
    assert!(!scene.fleet.is_stuck(at(5100), placement, at(0)), "it moves again");
    // A long step is not a wedge: four full budgets at the measured rate are allowed.
    let slow = |step| rated_at(10.0, 2, step);
    scene.watch(5200, 0, 1, load(1, slow(6)));
    scene.watch(25_000, 0, 1, load(1, slow(6)));
    assert!(!scene.fleet.is_stuck(at(25_000), placement, at(5200)));
    scene.watch(30_000, 0, 1, load(1, slow(6)));
    assert!(scene.fleet.is_stuck(at(31_000), placement, at(5200)));
    // A worker without any work no longer has the request.
    scene.watch(40_000, 0, 1, load(1, rated(0, 7)));
    assert!(!scene.fleet.is_stuck(at(40_000), placement, at(36_000)));
    assert!(scene.fleet.is_stuck(at(42_000), placement, at(36_000)));
    // A worker that was replaced: once its stream is silent, nothing more is expected.
    let elsewhere = Member { id: "w0".into(), address: "host:9".into() };
    scene.fleet.handle(at(50_000), Event::Member(Change::Join(elsewhere)));
    assert!(!scene.fleet.is_stuck(at(50_000), placement, at(49_900)));
    assert!(scene.fleet.is_stuck(at(50_000), placement, at(49_500)));
}

#[test]
fn a_prefix_follows_its_first_request_before_it_is_cached() {
    let tokens: Vec<TokenId> = (0..400).collect();
    let mut scene = Scene::new(2);
    let job = Scene::job(&tokens);
    let first = scene.choice(1, &tokens).expect("a worker");
    let placement = scene.fleet.place(at(1), &job, &first).expect("it is there");
    assert_eq!(first.hit_tokens, 0);
    // Placed only: the other worker would start from nothing, while this one is busy with this very prompt.
    let hits = |scene: &mut Scene| -> Vec<u32> {
        let mut hits = Hits::default();
        scene.fleet.index.search(&job.chains[0].1, &mut hits);
        let standings: Vec<_> = scene.fleet.standings.takers(at(3), Version::UNKNOWN).copied().collect();
        standings
            .iter()
            .map(|standing| standing.seen(at(3), hits.blocks(standing.column), 400).hit_tokens)
            .collect()
    };
    let holder = scene.ids.iter().position(|&id| id == first.worker).expect("one of them");
    let mut expected = vec![0, 0];
    expected[holder] = 399;
    assert_eq!(hits(&mut scene), expected);
    // Admitted: the worker has reported it, also to routers that did not place it.
    let hashes = job.chains[0].1.clone();
    let admitted = admitted(ROUTER, placement.sequence, hashes, None);
    scene.watch(2, holder, 1, (1, admitted));
    assert_eq!(hits(&mut scene), expected);
    // Prefilled: its queue is no longer a reason to choose another worker.
    scene.fleet.handle(at(3), Event::FirstToken(placement));
    assert_eq!(scene.choice(3, &tokens).expect("a worker").worker, first.worker);
    scene.fleet.ended(placement);
    assert_eq!(hits(&mut scene), expected, "what was admitted stays expected");
}

#[test]
fn repeats_of_a_cached_prompt_expect_nothing() {
    let mut scene = Scene::new(1);
    let tokens: Vec<TokenId> = (0..8).collect();
    scene.watch(0, 0, 1, (1, stored(&tokens)));
    for ms in 1..100 {
        let pick = scene.choice(ms, &tokens).expect("a worker");
        assert_eq!(pick.hit_tokens, 7, "the last token is always computed");
        let placed = scene.fleet.place(at(ms), &Scene::job(&tokens), &pick).expect("a member");
        scene.fleet.handle(at(ms), Event::FirstToken(placed));
        assert!(scene.fleet.ended(placed));
    }
    assert!(scene.fleet.index.expects_nothing());
}

#[test]
fn a_failed_placement_leaves_no_expectation() {
    let tokens: Vec<TokenId> = (0..400).collect();
    let mut scene = Scene::new(1);
    let before = scene.fleet.status(at(0))[0].load;
    let pick = scene.choice(1, &tokens).expect("a worker");
    let placement = scene.fleet.place(at(1), &Scene::job(&tokens), &pick).expect("it is there");
    assert_eq!(scene.fleet.status(at(0))[0].load.queued_uncached_tokens, 400);
    scene.fleet.ended(placement);
    assert_eq!(scene.fleet.status(at(0))[0].load, before);
    assert_eq!(scene.choice(1, &tokens).expect("a worker").hit_tokens, 0);
}

#[test]
fn a_worker_with_another_tokenizer_is_not_used() {
    let mut scene = Scene::new(2);
    let other = WorkerInfo { tokenizer_fingerprint: 6, ..info(2) };
    scene.fleet.handle(at(10), Event::Connected(scene.ids[1], other));
    scene.watch(10, 1, 2, (1, snapshot(Vec::new())));
    let statuses = scene.fleet.status(at(20));
    let states: Vec<bool> = statuses
        .iter()
        .map(|status| {
            status.refuses.as_ref().is_some_and(|why| why.to_string().contains("another tokenizer"))
        })
        .collect();
    assert_eq!(states, [false, true], "{statuses:?}");
    let silent = WorkerInfo { tokenizer_fingerprint: 0, ..info(3) };
    scene.fleet.handle(at(30), Event::Connected(scene.ids[1], silent));
    scene.watch(30, 1, 3, (1, snapshot(Vec::new())));
    assert!(scene.is_ready(30, 1), "it may have a tokenizer of another form");
}

/// A fleet of `workers` workers at epoch 2, which serve these versions of the model since these times.
fn of_versions(workers: &[(u64, u64)]) -> Scene {
    let mut scene = Scene::new(workers.len());
    for (index, &(fingerprint, serving_since_ms)) in workers.iter().enumerate() {
        let info = WorkerInfo { fingerprint, serving_since_ms, ..info(2) };
        scene.fleet.handle(at(10), Event::Connected(scene.ids[index], info));
        scene.watch(10, index, 2, (1, snapshot(Vec::new())));
    }
    scene
}

#[test]
fn new_requests_go_to_the_version_with_most_seats_then_to_the_newest() {
    let check = |workers: &[(u64, u64)], expected: u64| {
        assert_eq!(of_versions(workers).fleet.current_version(at(20)), Version(expected), "{workers:?}");
    };
    check(&[(7, 5)], 7);
    check(&[(7, 5), (7, 6), (8, 9)], 7);
    check(&[(7, 5), (7, 6), (8, 9), (8, 9)], 8);
    check(&[(7, 5), (8, 3)], 7);
    // A worker of the old version that restarts does not make it the newest.
    check(&[(7, 5), (7, 99), (8, 9), (8, 10)], 8);
    // A router in front says no version, and takes any request.
    check(&[(0, 0), (0, 0)], 0);
    check(&[(0, 0), (7, 5)], 7);
}

#[test]
fn a_request_that_began_stays_on_its_version_and_its_prefix_counts_only_there() {
    let mut scene = of_versions(&[(7, 1), (8, 2)]);
    let tokens: Vec<TokenId> = (0..400).collect();
    scene.watch(11, 0, 2, (1, stored(&tokens)));
    let pick = |scene: &mut Scene, version| {
        let job = Job { version: Version(version), ..Scene::job(&tokens) };
        let pick = scene.fleet.choose(at(20), &job, &[], &mut StdRng::seed_from_u64(1))?;
        Some((scene.ids.iter().position(|&id| id == pick.worker).expect("one of them"), pick.hit_tokens))
    };
    // The new version has none of the prefix, though the hashes of the prompt's blocks are the same.
    assert_eq!(pick(&mut scene, 0), Some((1, 0)), "a new request");
    assert_eq!(pick(&mut scene, 7), Some((0, 399)));
    assert_eq!(pick(&mut scene, 8), Some((1, 0)));
    assert_eq!(pick(&mut scene, 9), None);
    assert!(scene.fleet.lacks(at(20), Version(9)) && !scene.fleet.lacks(at(20), Version(7)));
    // The worker restarts with the other version: what it had cached is gone.
    scene.fleet.handle(at(30), Event::Connected(scene.ids[0], WorkerInfo { fingerprint: 8, ..info(3) }));
    scene.watch(30, 0, 3, (1, snapshot(Vec::new())));
    assert_eq!(pick(&mut scene, 8).map(|(_, hit)| hit), Some(0));
    assert!(scene.fleet.lacks(at(30), Version(7)));
}

/// A worker connected before the mode was set: the next version that came was taken for the first, and once
/// its workers had been stopped as unchanged, no request was served.
#[test]
fn the_first_version_is_that_of_a_worker_that_has_already_connected() {
    let mut scene = Scene::new(1);
    scene.fleet.set_new_requests(NewRequests::First);
    let member = Member { id: "w1".into(), address: "host:2".into() };
    let actions = scene.fleet.handle(at(0), Event::Member(Change::Join(member)));
    let [Action::Follow(id, _)] = actions[..] else { panic!("{actions:?}") };
    scene.ids.push(id);
    scene.fleet.handle(at(0), Event::Connected(id, WorkerInfo { fingerprint: 8, ..info(1) }));
    scene.watch(0, 1, 1, (1, snapshot(Vec::new())));
    assert_eq!(scene.fleet.current_version(at(1)), Version(1));
    assert_eq!(scene.choice(1, &[1, 2, 3]).expect("a worker").worker, scene.ids[0]);
    // The same for the router's own tokenizer.
    scene.fleet.expect_tokenizer(6, 0);
    assert!(!scene.is_ready(1, 0) && scene.choice(1, &[1, 2, 3]).is_none());
}

#[test]
fn a_worker_that_cannot_constrain_answers_is_reported_and_used() {
    let mut scene = Scene::new(1);
    scene.fleet.expect_tokenizer(0, 9);
    for (epoch, grammar_fingerprint, is_reported) in [(2, 9, false), (3, 8, true), (4, 0, false)] {
        let info = WorkerInfo { grammar_fingerprint, ..info(epoch) };
        let said = scene.fleet.handle(at(0), Event::Connected(scene.ids[0], info));
        let reported = said.iter().any(|said| matches!(said, Action::Log(Notice::OtherGrammars(_))));
        assert_eq!(reported, is_reported, "{said:?}");
        scene.watch(0, 0, epoch, (1, snapshot(Vec::new())));
        assert!(scene.is_ready(1, 0));
    }
}

#[test]
fn a_supervised_worker_that_comes_back_with_other_files_gets_no_new_requests_before_a_swap() {
    let mut scene = Scene::new(0);
    scene.fleet.set_new_requests(NewRequests::First);
    for (index, fingerprint) in [(0, 7), (1, 8), (2, 8)] {
        let member = Member { id: format!("w{index}"), address: format!("host:{}", index + 1) };
        let actions = scene.fleet.handle(at(0), Event::Member(Change::Join(member)));
        let [Action::Follow(id, _)] = actions[..] else { panic!("{actions:?}") };
        scene.ids.push(id);
        let said = scene.fleet.handle(at(0), Event::Connected(id, WorkerInfo { fingerprint, ..info(1) }));
        let notice = Action::Log(Notice::Version(format!("w{index}"), Version(8)));
        assert_eq!(said, if index == 1 { vec![notice] } else { vec![] });
        scene.watch(0, index, 1, (1, snapshot(Vec::new())));
    }
    let worker_of = |scene: &mut Scene| {
        let pick = scene.choice(1, &[1, 2, 3]).map(|pick| pick.worker);
        pick.and_then(|worker| scene.ids.iter().position(|&id| id == worker))
    };
    assert_eq!(worker_of(&mut scene), Some(0));
    scene.fleet.set_new_requests(NewRequests::Only(Version(8)));
    assert!(matches!(worker_of(&mut scene), Some(1 | 2)));
    scene.fleet.set_new_requests(NewRequests::Only(Version(9)));
    assert!(worker_of(&mut scene).is_none() && !scene.fleet.is_ready(at(1)));
}

#[test]
fn a_silent_worker_is_the_last_choice_and_then_lost() {
    let mut scene = Scene::new(2);
    let placement = WorkerPlacement { at: first(scene.ids[0]), sequence: 1 };
    let tick = |scene: &mut Scene, ms| scene.fleet.handle(at(ms), Event::Tick);
    for ms in (0..6000).step_by(250) {
        scene.watch(ms, 1, 1, load(1, rated(0, 0)));
        let lost = tick(&mut scene, ms);
        let member = Member { id: "w0".into(), address: "host:1".into() };
        let said = [
            Action::Lost(member),
            Action::Log(Notice::Lost("w0".into(), Loss::Silent)),
            Action::Recheck(scene.ids[0]),
        ];
        assert_eq!(lost, if ms == 5000 { said.to_vec() } else { vec![] }, "{ms} ms");
        assert!(ms < 2500 || scene.choice(ms, &[1]).expect("a worker").worker == scene.ids[1]);
    }
    assert!(!scene.is_ready(5750, 0));
    // A stream that flows while only the reports are missing is left alone.
    assert!(!scene.fleet.is_stuck(at(5750), placement, at(5700)));
    assert!(!scene.fleet.is_stuck(at(4900), placement, at(0)));
    assert!(scene.fleet.is_stuck(at(5000), placement, at(2500)));
    assert_eq!(scene.watch(6000, 0, 1, load(1, rated(0, 0))), [Action::Wake], "it is back");
    assert_eq!(tick(&mut scene, 6000), []);
}

#[test]
fn a_pause_of_the_router_does_not_count_as_its_workers_silence() {
    let mut scene = Scene::new(2);
    let placement = WorkerPlacement { at: first(scene.ids[0]), sequence: 1 };
    scene.fleet.handle(at(0), Event::Tick);
    assert_eq!(scene.fleet.handle(at(60_000), Event::Tick), []);
    assert!(!scene.fleet.is_stuck(at(60_000), placement, at(0)));
    assert!(scene.is_ready(60_000, 0) && scene.is_ready(60_000, 1));
    for ms in (60_250..66_000).step_by(250) {
        scene.fleet.handle(at(ms), Event::Tick);
    }
    assert!(!scene.is_ready(66_000, 0), "but then it counts");
}

#[test]
fn a_configured_wedge_timeout_applies_exactly() {
    let limits = HealthLimits { wedge_timeout: Some(Duration::from_millis(1500)), ..LIMITS };
    let mut scene = Scene::new(1);
    scene.fleet.limits = limits;
    let placement = WorkerPlacement { at: first(scene.ids[0]), sequence: 1 };
    // Nothing is measured, and by its rates a step could take long.
    scene.watch(0, 0, 1, load(1, rated_at(0.0, 2, 4)));
    scene.watch(1400, 0, 1, load(1, rated_at(0.0, 2, 4)));
    assert!(!scene.fleet.is_stuck(at(1490), placement, at(0)));
    assert!(scene.fleet.is_stuck(at(1500), placement, at(0)));
}

#[test]
fn a_lost_worker_has_the_reason_that_holds() {
    let loss = |scene: &mut Scene, until: u64, each: &mut dyn FnMut(&mut Scene, u64)| {
        let mut actions = Vec::new();
        for ms in (0..until).step_by(250) {
            each(scene, ms);
            actions.extend(scene.fleet.handle(at(ms), Event::Tick));
        }
        actions.into_iter().find_map(|action| match action {
            Action::Log(Notice::Lost(_, loss)) => Some(loss),
            _ => None,
        })
    };
    let connected = || {
        let mut scene = Scene::new(1);
        scene.watch(0, 0, 1, load(1, rated(0, 0)));
        scene
    };
    assert_eq!(loss(&mut connected(), 6000, &mut |_, _| ()), Some(Loss::Silent));
    let mut cut = connected();
    cut.fleet.handle(at(0), Event::Lost(cut.ids[0]));
    assert_eq!(loss(&mut cut, 6000, &mut |_, _| ()), Some(Loss::Unreachable));
    let mut stuck = connected();
    stuck.fleet.limits = HealthLimits { wedge_timeout: Some(Duration::from_millis(1500)), ..LIMITS };
    let reports = &mut |scene: &mut Scene, ms| {
        scene.watch(ms, 0, 1, load(1, rated_at(0.0, 2, 4)));
    };
    assert_eq!(loss(&mut stuck, 6000, reports), Some(Loss::Stuck));
}

#[test]
fn a_member_that_leaves_is_kept_while_it_reports() {
    let mut scene = Scene::new(2);
    let (id, member) = (scene.ids[0], Member { id: "w0".into(), address: "host:1".into() });
    let leave = || Event::Member(Change::Leave("w0".into()));
    let join = || Event::Member(Change::Join(member.clone()));
    assert_eq!(scene.fleet.handle(at(0), leave()), []);
    assert!(scene.is_ready(0, 0), "its lease ran out, it did not");
    // Discovery returns with its state lost and announces the worker again: its link is left alone.
    assert_eq!(scene.fleet.handle(at(0), join()), []);
    assert_eq!(scene.fleet.handle(at(0), Event::Lost(id)), [], "a member is connected again");
    assert_eq!(scene.fleet.handle(at(0), join()), [Action::Hurry(id)]);
    scene.watch(0, 0, 1, load(1, rated(0, 0)));
    assert_eq!(scene.fleet.handle(at(0), leave()), []);
    let gone = vec![Action::Unfollow(id), Action::Recheck(id)];
    assert_eq!(scene.fleet.handle(at(0), Event::Lost(id)), gone, "now nobody vouches for it");
    assert!(!scene.fleet.has(id));
    // If it falls silent after it left, it is removed as well; if it has no link, at once.
    let other = scene.ids[1];
    scene.fleet.handle(at(0), Event::Tick);
    assert_eq!(scene.fleet.handle(at(100), Event::Member(Change::Leave("w1".into()))), []);
    let mut actions = Vec::new();
    (250..6000).step_by(250).for_each(|ms| actions.extend(scene.fleet.handle(at(ms), Event::Tick)));
    let lost = actions.iter().filter(|action| matches!(action, Action::Lost(member) if member.id == "w1"));
    assert_eq!(lost.count(), 1, "it is to be replaced");
    actions.retain(|action| !matches!(action, Action::Lost(_)));
    let said = Action::Log(Notice::Lost("w1".into(), Loss::Silent));
    assert_eq!(actions, [said, Action::Recheck(other), Action::Unfollow(other), Action::Recheck(other)]);
    assert!(scene.fleet.status(at(6000)).is_empty());
}

#[test]
fn a_worker_that_drained_has_left_and_is_not_called_lost() {
    let mut scene = Scene::new(2);
    for (worker, running) in [(0, 0), (1, 1)] {
        scene.watch(0, worker, 1, load(1, LoadReport { draining: true, ..rated(running, 0) }));
    }
    let actions: Vec<Action> =
        (250..6000).step_by(250).flat_map(|ms| scene.fleet.handle(at(ms), Event::Tick)).collect();
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Log(_))).count(), 2, "{actions:?}");
    // w1 had a request left.
    for notice in [Notice::Left("w0".into()), Notice::Lost("w1".into(), Loss::Silent)] {
        assert!(actions.contains(&Action::Log(notice)), "{actions:?}");
    }
}

#[test]
fn a_worker_that_handed_back_drains_despite_delayed_reports() {
    let mut scene = Scene::new(1);
    let id = scene.ids[0];
    scene.fleet.handle(at(0), Event::HandedBack(WorkerEpoch { worker: id, epoch: 7 }));
    assert!(scene.is_ready(0, 0), "of another epoch");
    scene.fleet.handle(at(0), Event::HandedBack(first(id)));
    scene.watch(10, 0, 1, load(1, rated(0, 0)));
    assert!(!scene.is_ready(10, 0));
    scene.fleet.handle(at(20), Event::Connected(id, info(2)));
    scene.watch(20, 0, 2, load(1, rated(0, 0)));
    assert!(scene.is_ready(20, 0), "its next life takes requests");
}

#[test]
fn streams_are_found_where_they_were_reported() {
    let key = |byte| StreamKey::from_wire(&[byte; 16]).expect("sixteen bytes");
    let mut scene = Scene::new(2);
    let [one, other] = scene.ids[..] else { panic!("two workers") };
    let stream_key = Some(key(1));
    let admitted = admitted(5, 1, Vec::new(), stream_key);
    scene.watch(0, 0, 1, (1, admitted));
    scene.fleet.stream_opened(key(2), first(other));
    scene.fleet.stream_opened(key(3), WorkerEpoch { worker: other, epoch: 9 });
    assert_eq!(scene.fleet.find_stream(at(0), key(1), Version::UNKNOWN), Some(first(one)));
    assert_eq!(scene.fleet.find_stream(at(0), key(2), Version::UNKNOWN), Some(first(other)));
    assert_eq!(scene.fleet.find_stream(at(0), key(3), Version::UNKNOWN), None, "it is not at that epoch");
    scene.fleet.stream_gone(key(2), one);
    assert_eq!(scene.fleet.find_stream(at(0), key(2), Version::UNKNOWN), Some(first(other)));
    scene.fleet.handle(at(0), Event::Lost(other));
    assert_eq!(scene.fleet.find_stream(at(0), key(2), Version::UNKNOWN), None, "out of reach");
    let snapshot = WatchBody::Snapshot(Snapshot { stream_keys: vec![key(4)], ..Snapshot::default() });
    scene.watch(0, 0, 1, (2, snapshot));
    assert_eq!(scene.fleet.find_stream(at(0), key(1), Version::UNKNOWN), None, "a snapshot is all there is");
    assert_eq!(scene.fleet.find_stream(at(0), key(4), Version::UNKNOWN), Some(first(one)));
    scene.fleet.handle(at(0), Event::Connected(one, info(2)));
    scene.watch(0, 0, 2, load(1, rated(0, 0)));
    assert_eq!(scene.fleet.find_stream(at(0), key(4), Version::UNKNOWN), None, "a new life has nothing");
    assert!(!scene.fleet.may_have_kept(at(0), first(one)) && scene.fleet.may_have_kept(at(0), second(one)));
    assert!(
        !scene.fleet.may_have_kept(at(1000), second(one)) && scene.fleet.is_reachable(at(1000), second(one))
    );
}

#[test]
fn a_stream_is_looked_for_only_at_a_worker_of_its_version() {
    let key = StreamKey::from_wire(&[1; 16]).expect("sixteen bytes");
    let mut scene = Scene::new(2);
    let one = scene.ids[0];
    let other = WorkerInfo { fingerprint: 2, ..info(2) };
    scene.fleet.handle(at(0), Event::Connected(one, other));
    let snapshot = WatchBody::Snapshot(Snapshot { stream_keys: vec![key], ..Snapshot::default() });
    scene.watch(0, 0, 2, (1, snapshot));
    assert!(scene.fleet.is_reachable(at(0), second(one)));
    assert_eq!(scene.fleet.find_stream(at(0), key, Version(1)), None);
    assert_eq!(scene.fleet.find_stream(at(0), key, Version(2)), Some(second(one)));
    assert_eq!(scene.fleet.find_stream(at(0), key, Version::UNKNOWN), Some(second(one)));
}

/// sglang #14532 and #14305: an uncached prompt went to the worker with the smallest cache, however long its
/// queue, and that worker never recovered.
#[test]
fn sglang_14532_a_miss_goes_by_load_and_not_by_the_size_of_the_cache() {
    let mut scene = Scene::new(2);
    scene.watch(1, 0, 1, (1, stored(&(0..400).collect::<Vec<_>>())));
    scene.watch(1, 0, 1, load(2, rated(0, 1)));
    let queue = Load { queued_uncached_tokens: 5000, ..rated(4, 1).load };
    scene.watch(1, 1, 1, load(1, LoadReport { load: queue, ..rated(4, 1) }));
    let other: Vec<TokenId> = (100..300).collect();
    let pick = scene.choice(2, &other).expect("a worker");
    assert_eq!((pick.worker, pick.hit_tokens), (scene.ids[0], 0));
}

/// sglang #15473: without reports in between, all requests went to the first worker.
#[test]
fn sglang_15473_a_burst_without_reports_is_shared() {
    let mut scene = Scene::new(4);
    (0..4).for_each(|worker| drop(scene.watch(1, worker, 1, load(1, rated(0, 1)))));
    let mut counts = [0; 4];
    for request in 0..100 {
        let tokens: Vec<TokenId> = (0..40).map(|token| token + request * 1000).collect();
        let pick = scene.choice(2, &tokens).expect("a worker");
        scene.fleet.place(at(2), &Scene::job(&tokens), &pick).expect("it is there");
        counts[scene.ids.iter().position(|&id| id == pick.worker).expect("one of them")] += 1;
    }
    assert!(counts.iter().all(|count| (20..=30).contains(count)), "{counts:?}");
}

/// sglang #32195: a guard against imbalance sent follow-ups away from their prefix at any difference.
#[test]
fn sglang_32195_a_small_imbalance_does_not_cost_the_prefix() {
    let mut scene = Scene::new(2);
    let tokens: Vec<TokenId> = (0..400).collect();
    scene.watch(1, 0, 1, (1, stored(&tokens)));
    scene.watch(1, 0, 1, load(2, rated(3, 1)));
    scene.watch(1, 1, 1, load(1, rated(0, 1)));
    assert_eq!(scene.choice(2, &tokens).expect("a worker").worker, scene.ids[0]);
}

/// Dynamo #589: routers with the same state all picked the same worker.
#[test]
fn dynamo_589_routers_with_the_same_picture_do_not_herd() {
    let mut scene = Scene::new(8);
    (0..8).for_each(|worker| drop(scene.watch(1, worker, 1, load(1, rated(0, 1)))));
    let tokens: Vec<TokenId> = (0..40).collect();
    let mut picked = [false; 8];
    for router in 0..64 {
        let rng = &mut StdRng::seed_from_u64(router);
        let pick = scene.fleet.choose(at(2), &Scene::job(&tokens), &[], rng).expect("a worker");
        picked[scene.ids.iter().position(|&id| id == pick.worker).expect("one of them")] = true;
    }
    assert_eq!(picked, [true; 8]);
}

/// A worker that refused gets no request until a seat becomes free; until then the others are used.
#[test]
fn a_full_worker_is_not_asked_again_before_a_seat_comes_free() {
    let mut scene = Scene::new(2);
    let tokens: Vec<TokenId> = (0..40).collect();
    let job = Scene::job(&tokens);
    let place = |scene: &mut Scene, ms| {
        let pick = scene.choice(ms, &tokens)?;
        scene.fleet.place(at(ms), &job, &pick)
    };
    let running = place(&mut scene, 1).expect("a worker");
    scene.fleet.handle(at(1), Event::FirstToken(running));
    let full = scene.ids.iter().position(|&id| id == running.at.worker).expect("one of them");
    scene.dispatched(2, full, Outcome::Backpressure);
    assert!(!scene.fleet.is_full(at(3), Version::UNKNOWN));
    assert_eq!(place(&mut scene, 3).expect("the other one").at.worker, scene.ids[1 - full]);
    scene.dispatched(4, 1 - full, Outcome::Backpressure);
    assert!(scene.fleet.is_full(at(5), Version::UNKNOWN) && place(&mut scene, 5).is_none());
    // Its sequence ends, so there is a seat. Otherwise it would be tried after a second.
    assert!(scene.fleet.ended(running));
    assert_eq!(place(&mut scene, 6).expect("a free seat").at.worker, scene.ids[full]);
    assert!(!scene.fleet.is_full(at(1100), Version::UNKNOWN));
}

#[test]
fn a_long_prompt_that_is_read_in_one_step_is_no_wedge() {
    let stuck_after = |pooled: Option<PooledModel>, seconds: u64| {
        let mut scene = Scene::new(1);
        let info = WorkerInfo { max_model_len: 1000, max_num_batched_tokens: 64, pooled, ..info(1) };
        let worker = scene.ids[0];
        scene.fleet.handle(at(0), Event::Connected(worker, info));
        let placement = WorkerPlacement { at: first(worker), sequence: 1 };
        // 100 tokens a second: a whole prompt takes ten seconds.
        for second in 0..=seconds {
            scene.watch(second * 1000, 0, 1, load(1, rated_at(100.0, 2, 4)));
        }
        scene.fleet.is_stuck(at(seconds * 1000), placement, at(0))
    };
    let kind = PooledKind::Embedding { is_normalised: true };
    let pooled = Some(PooledModel { width: 4, kind, labels: Vec::new() });
    assert_eq!([6, 39, 41].map(|seconds| stuck_after(pooled.clone(), seconds)), [false, false, true]);
    assert!(stuck_after(None, 6), "a step of 64 tokens is long over");
}
