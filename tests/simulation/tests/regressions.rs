//! Failures of other routers, each by its number: runs in which a router with that fault fails. The comments
//! say what went wrong there; `planted.toml` plants each fault.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_proto::sampling::SamplingParams;
use skein_router::refusal::Refusal;
use skein_router::request::TokenRequest;
use skein_simulation::reference;
use skein_simulation::scenario::{BLOCK, SEATS, STEP, Scenario, Served, all, each_seed};
use skein_simulation::world::Downtime;
use tokio::time::sleep;

/// Seeds of each scenario.
const SEEDS: std::ops::Range<u64> = 0..20;
/// After this time workers have reported what they did, and routers know it.
const REPORTED: Duration = Duration::from_secs(2);

/// The smallest and the largest number of requests of a worker.
fn spread(scenario: &Scenario, served: &[Served]) -> (usize, usize) {
    let counts = scenario.by_worker(served);
    (counts.values().copied().min().unwrap_or(0), counts.values().copied().max().unwrap_or(0))
}

/// sglang #14532, #14305: a prompt that no worker had cached went to the worker with the smallest cache. That
/// was the one that a queue of heavy requests kept from caching anything, so it got all traffic while
/// another one was idle.
#[test]
fn sglang_14532_a_miss_goes_to_the_idle_worker_and_not_to_the_smallest_cache() {
    each_seed(
        SEEDS,
        (1, 2),
        |_| (),
        async |scenario| {
            for _ in 0..10 {
                let fills = scenario.request(&scenario.prompt(256), 1);
                scenario.ask("r0", scenario.at("w1", fills)).await.expect(1, "it fills the cache of w1");
            }
            let heavy =
                |_| scenario.send("r0", scenario.at("w0", scenario.request(&scenario.prompt(400), 100)));
            let heavy: Vec<_> = (0..SEATS).map(heavy).collect();
            sleep(REPORTED).await;
            let mut misses = Vec::new();
            for _ in 0..10 {
                misses.push(scenario.send("r0", scenario.request(&scenario.prompt(64), 4)));
                sleep(STEP * 20).await;
            }
            let misses = all(misses).await;
            let at_idle = misses.iter().filter(|miss| miss.worker == "w1").count();
            assert!(at_idle >= 9, "{:?}", scenario.by_worker(&misses));
            all(heavy).await.iter().for_each(|one| one.expect(100, "a heavy one"));
        },
    );
}

/// sglang #15473: requests over gRPC were not counted at their workers, so that all went to the first one.
#[test]
fn sglang_15473_a_burst_is_shared_before_any_worker_reports() {
    each_seed(
        SEEDS,
        (1, 4),
        |_| (),
        async |scenario| {
            let burst = (0..64).map(|_| scenario.send("r0", scenario.request(&scenario.prompt(32), 8)));
            let burst = all(burst.collect()).await;
            burst.iter().for_each(|one| one.expect(8, "one of the burst"));
            let (least, most) = spread(&scenario, &burst);
            assert!(least >= 12 && most <= 20, "{:?}", scenario.by_worker(&burst));
        },
    );
}

/// sglang #27547, smg #1714: a request counted at its worker only from the first token on. With long prompts
/// and short answers the load was zero at nearly every decision, and the first worker got everything.
#[test]
fn sglang_27547_long_prompts_with_one_token_are_shared_while_they_are_computed() {
    each_seed(
        SEEDS,
        (1, 4),
        |_| (),
        async |scenario| {
            let mut sent = Vec::new();
            for _ in 0..40 {
                // About 500 ms of prefill each on four workers, which keep up with one every 125 ms.
                sent.push(scenario.send("r0", scenario.request(&scenario.prompt(400), 1)));
                sleep(Duration::from_millis(150)).await;
            }
            let served = all(sent).await;
            served.iter().for_each(|one| one.expect(1, "a prompt"));
            let (least, most) = spread(&scenario, &served);
            assert!(least >= 7 && most <= 13, "{:?}", scenario.by_worker(&served));
            let slowest = served.iter().map(|one| one.first_token).max().unwrap_or_default();
            assert!(slowest < Duration::from_millis(1500), "{slowest:?} to the first token");
        },
    );
}

/// sglang #32195: at any imbalance the shortest queue won, so that under load every follow-up was computed
/// from its beginning.
#[test]
fn sglang_32195_follow_ups_keep_their_prefix_under_load() {
    each_seed(
        SEEDS,
        (1, 4),
        |_| (),
        async |scenario| {
            let conversations: Vec<_> = (0..8).map(|_| scenario.prompt(240)).collect();
            for prompt in &conversations {
                scenario.ask("r0", scenario.request(prompt, 1)).await.expect(1, "a first turn");
            }
            sleep(REPORTED).await;
            let mut sent = Vec::new();
            for _ in 0..3 {
                for prompt in &conversations {
                    let turn = [prompt.clone(), scenario.prompt(BLOCK)].concat();
                    sent.push(scenario.send("r0", scenario.request(&turn, 16)));
                    sleep(STEP * 3).await;
                }
            }
            let turns = all(sent).await;
            turns.iter().for_each(|turn| turn.expect(16, "a turn"));
            let hits = turns.iter().filter(|turn| turn.cached >= 232).count();
            assert!(
                hits >= 22,
                "{hits} of {} found their prefix: {:?}",
                turns.len(),
                scenario.by_worker(&turns)
            );
        },
    );
}

/// sglang #25811: answers of 4xx, the client's fault, opened the breakers of healthy workers.
#[test]
fn sglang_25811_refused_requests_open_no_breaker() {
    each_seed(
        SEEDS,
        (1, 2),
        |_| (),
        async |scenario| {
            for _ in 0..20 {
                // The validator before the router refuses it, too; here it reaches the worker.
                let served = scenario.ask("r0", scenario.request(&[1_000_000], 4)).await;
                assert!(
                    matches!(served.refusal, Some(Refusal::Invalid { .. } | Refusal::Internal)),
                    "{served:?}"
                );
                assert_eq!(served.moves, 0, "no other worker would take it");
            }
            let ready = scenario.status("r0").iter().filter(|worker| worker.is_ready()).count();
            assert_eq!(
                ready,
                2,
                "{:?}",
                scenario.status("r0").iter().map(|one| one.state()).collect::<Vec<_>>()
            );
            scenario.ask("r0", scenario.request(&[1, 2, 3], 4)).await.expect(4, "a good request");
        },
    );
}

/// sglang #39464: a full worker's refusal counted as a fault, so that overload opened breakers and became an
/// outage.
#[test]
fn sglang_39464_a_full_worker_is_healthy() {
    let tight = |plan: &mut skein_simulation::plan::Plan| plan.worker.scheduler.max_num_queued_reqs = 1;
    each_seed(SEEDS, (2, 2), tight, async |scenario| {
        let routers = scenario.world.plan.routers.clone();
        let send =
            |number: usize| scenario.send(routers[number % 2], scenario.request(&scenario.prompt(40), 20));
        let mut sent: Vec<_> = (0..120).map(send).collect();
        for _ in 0..20 {
            sleep(Duration::from_millis(100)).await;
            for router in &routers {
                let states = scenario.status(router).into_iter().map(|worker| worker.state());
                let broken: Vec<String> = states.filter(|state| state.contains("faults")).collect();
                assert!(broken.is_empty(), "{broken:?}");
            }
        }
        sent.push(send(0));
        all(sent).await.iter().for_each(|one| one.expect(20, "one of the crowd"));
    });
}

/// Dynamo #589: several routers with the same figures all chose the same worker, until the next figures.
#[test]
fn dynamo_589_routers_with_the_same_figures_do_not_herd() {
    let met = Cell::new(0);
    each_seed(
        0..60,
        (3, 4),
        |_| (),
        async |scenario| {
            // Nothing has run yet, so that the workers are equal for every router.
            let send =
                |router: &&'static str| scenario.send(router, scenario.request(&scenario.prompt(40), 4));
            let first = all(scenario.world.plan.routers.iter().map(send).collect()).await;
            first.iter().for_each(|one| one.expect(4, "a first request"));
            met.set(met.get() + u32::from(first.iter().all(|one| one.worker == first[0].worker)));
        },
    );
    // By chance one in sixteen.
    assert!(met.get() <= 12, "all routers met at one worker in {} of 60 clusters", met.get());
}

/// Dynamo #7836: workers without figures yet looked busier than those at work, so that two of five got no
/// request of a single-turn load for as long as it lasted.
#[test]
fn dynamo_7836_workers_that_come_back_get_their_share() {
    each_seed(
        SEEDS,
        (1, 5),
        |_| (),
        async |scenario| {
            let load = async |count: usize| {
                let client = async |_| {
                    let mut served = Vec::new();
                    for _ in 0..count {
                        served.push(scenario.ask("r0", scenario.request(&scenario.prompt(64), 16)).await);
                    }
                    served
                };
                futures::future::join_all((0..24).map(client)).await.concat()
            };
            load(5).await;
            for worker in ["w3", "w4"] {
                let process = scenario.world.process(worker).expect("it runs");
                scenario.world.plan_downtime(worker, Downtime { lasts: Duration::from_secs(2), dark: false });
                process.kill();
            }
            let meanwhile = load(10).await;
            meanwhile.iter().for_each(|one| one.expect(16, "while two are away"));
            scenario.all_ready().await;
            let served = load(20).await;
            served.iter().for_each(|one| one.expect(16, "after they came back"));
            let (least, _) = spread(&scenario, &served);
            assert!(least * 10 >= served.len(), "{:?} of {}", scenario.by_worker(&served), served.len());
        },
    );
}

/// Dynamo #3493, #7932, #11068: a lease that etcd had forgotten restarted healthy workers.
#[test]
fn dynamo_3493_an_outage_of_etcd_restarts_no_worker_and_fails_no_request() {
    each_seed(
        0..5,
        (1, 3),
        |_| (),
        async |scenario| {
            let world = &scenario.world;
            let runs = || world.plan.workers.iter().map(|&worker| world.worker(worker)).collect::<Vec<_>>();
            let before = runs();
            // Workers that work stay in use, whatever etcd says.
            let steady = async |seconds: u32| {
                for _ in 0..seconds * 20 {
                    sleep(Duration::from_millis(50)).await;
                    let states = scenario.status("r0").into_iter().map(|worker| worker.state());
                    assert_eq!(states.collect::<Vec<_>>(), ["ready"; 3]);
                }
            };
            for kept in [true, false] {
                world.etcd.set_away(true, kept);
                for _ in 0..60 {
                    let served = scenario.ask("r0", scenario.request(&scenario.prompt(24), 4)).await;
                    served.expect(4, "during the outage");
                    assert_eq!(served.moves, 0);
                    sleep(Duration::from_secs(10)).await;
                }
                world.etcd.set_away(false, kept);
                steady(30).await;
            }
            world.etcd.end_leases();
            steady(20).await;
            scenario.ask("r0", scenario.request(&scenario.prompt(24), 4)).await.expect(4, "after the leases");
            scenario.all_ready().await;
            for (before, after) in before.iter().zip(runs()) {
                let (before, after) = (before.as_ref().expect("it ran"), after.expect("it runs"));
                assert!(Arc::ptr_eq(before, &after), "{} was started again", after.host);
            }
        },
    );
}

/// Dynamo #4904: a router that was started again did not know what workers had cached before.
#[test]
fn dynamo_4904_a_router_that_was_started_again_knows_the_caches() {
    each_seed(
        SEEDS,
        (1, 4),
        |_| (),
        async |scenario| {
            let prompts: Vec<_> = (0..8).map(|_| scenario.prompt(160)).collect();
            let mut first = Vec::new();
            for prompt in &prompts {
                first.push(scenario.ask("r0", scenario.request(prompt, 1)).await.worker);
            }
            scenario.world.process("r0").expect("it runs").kill();
            sleep(REPORTED).await;
            scenario.all_ready().await;
            sleep(REPORTED).await;
            for (prompt, first) in prompts.iter().zip(&first) {
                let again = scenario.ask("r0", scenario.request(prompt, 1)).await;
                assert_eq!((&again.worker, again.cached >= 152), (first, true), "{again:?}");
            }
        },
    );
}

/// Dynamo #8551, #3581: of workers with equal scores always the same one was chosen.
#[test]
fn dynamo_8551_equal_workers_take_turns() {
    each_seed(
        SEEDS,
        (1, 4),
        |_| (),
        async |scenario| {
            let mut served = Vec::new();
            for _ in 0..60 {
                served.push(scenario.ask("r0", scenario.request(&scenario.prompt(24), 2)).await);
                sleep(REPORTED).await;
            }
            let (least, most) = spread(&scenario, &served);
            assert!(least >= 5 && most <= 30, "{:?}", scenario.by_worker(&served));
        },
    );
}

/// smg #2438, #1578: follow-ups through another gateway found their prefix in three cases of four, because
/// each gateway knew only what it had placed, or learnt of the others' placements late.
#[test]
fn smg_2438_a_follow_up_through_another_router_finds_its_prefix() {
    each_seed(
        SEEDS,
        (3, 4),
        |_| (),
        async |scenario| {
            let routers = scenario.world.plan.routers.clone();
            let mut found = 0;
            for turn in 0..20 {
                let prompt = scenario.prompt(160);
                scenario
                    .ask(routers[turn % 3], scenario.request(&prompt, 2))
                    .await
                    .expect(2, "the first turn");
                let follow_up = [prompt, scenario.prompt(16)].concat();
                // As soon as the client has the answer, which is before a worker's next report of its load.
                sleep(Duration::from_millis(20)).await;
                let follow_up = scenario.ask(routers[(turn + 1) % 3], scenario.request(&follow_up, 2)).await;
                found += usize::from(follow_up.cached >= 152);
            }
            assert!(found >= 19, "{found} of 20 follow-ups found their prefix");
        },
    );
}

/// smg #1172: replacing workers one after another broke the streams that they had.
#[test]
fn smg_1172_a_rolling_restart_changes_no_answer() {
    each_seed(
        SEEDS,
        (1, 3),
        // Shorter than the streams, so that they have to move.
        |plan| plan.worker.drain_grace = Duration::from_millis(300),
        async |scenario| {
            let world = scenario.world.clone();
            let mut sent = Vec::new();
            for round in 0..30 {
                if round % 10 == 5 {
                    let worker = world.plan.workers[round / 10];
                    world.plan_downtime(worker, Downtime { lasts: Duration::from_secs(1), dark: false });
                    world.worker(worker).expect("it runs").told_to_end.notify_one();
                }
                let request = TokenRequest {
                    sampling: Arc::new(SamplingParams {
                        seed: round as u64,
                        max_tokens: 300,
                        ignore_eos: true,
                        ..SamplingParams::default()
                    }),
                    ..scenario.request(&scenario.prompt(24), 300)
                };
                let whole = reference::answer(&world.plan, &request).await;
                sent.push((scenario.send("r0", request), whole));
                sleep(Duration::from_secs(1)).await;
            }
            for (served, whole) in sent {
                let served = served.await.expect("it does not panic");
                served.expect(300, "through the restarts");
                assert_eq!(served.tokens, whole.samples[0].tokens);
            }
        },
    );
}

/// vime #350, #371: long generations opened the breakers of healthy engines, and training ran into 503s, so
/// that its users switched the breaker off.
#[test]
fn vime_350_an_hour_of_generation_opens_no_breaker() {
    let long = |plan: &mut skein_simulation::plan::Plan| {
        plan.worker.scheduler.max_model_len = Some(1024);
        plan.router.limits.request_timeout = Duration::from_secs(100_000);
    };
    each_seed(0..3, (1, 2), long, async |scenario| {
        for worker in ["w0", "w1"] {
            // Four seconds a token: an hour for nine hundred.
            scenario.world.worker(worker).expect("it runs").device.slowness.store(360, Ordering::Relaxed);
        }
        let crowd = (0..2 * SEATS).map(|_| scenario.send("r0", scenario.request(&scenario.prompt(8), 900)));
        let crowd: Vec<_> = crowd.collect();
        for _ in 0..60 {
            sleep(Duration::from_secs(60)).await;
            let states: Vec<String> = scenario.status("r0").iter().map(|worker| worker.state()).collect();
            assert_eq!(states, ["ready", "ready"]);
        }
        for one in all(crowd).await {
            one.expect(900, "a long generation");
            assert_eq!(one.moves, 0);
        }
    });
}
