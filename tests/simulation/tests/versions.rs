//! Two versions of the model in one cluster: a rolling update to new weights, with workers and routers that
//! die meanwhile. Every answer is from one version, as that version gives it alone.

use std::time::Duration;

use skein_proto::version::Version;
use skein_router::refusal::Refusal;
use skein_router::request::{Resume, ResumeSample, TokenRequest};
use skein_simulation::reference::Answers;
use skein_simulation::scenario::{Scenario, Served, all, each_seed};
use skein_simulation::worker::{OTHER_VERSION, USUAL_VERSION};
use skein_simulation::world::Downtime;
use tokio::time::sleep;

const SEEDS: std::ops::Range<u64> = 0..30;
/// Tokens of each answer.
const TOKENS: u32 = 60;
/// Longer than a worker takes to start, and routers to know it.
const STARTED: Duration = Duration::from_secs(4);

/// Replaces a worker by one with the new weights: it is told to end, as a rolling update does.
fn update(scenario: &Scenario, worker: &'static str) {
    scenario.world.swap_weights(worker);
    let lasts = Duration::from_millis(200);
    scenario.world.plan_downtime(worker, Downtime { lasts, dark: false });
    scenario.world.worker(worker).expect("it runs").told_to_end.notify_one();
}

/// The version of an answer.
///
/// # Panics
/// If it is not the whole answer of the version that it says it is from.
async fn version_of(scenario: &Scenario, request: &TokenRequest, served: &Served) -> Version {
    served.expect(TOKENS, &request.id);
    let answers = Answers::to(&scenario.world.plan, request).await;
    assert_eq!(
        served.tokens,
        answers.of(served.version).samples[0].tokens,
        "{} of {}",
        request.id,
        served.version
    );
    assert_ne!(
        answers.of(USUAL_VERSION).samples[0].tokens,
        answers.of(OTHER_VERSION).samples[0].tokens,
        "the versions differ, else nothing is tested"
    );
    served.version
}

#[test]
fn a_rolling_update_under_load_loses_and_mixes_nothing() {
    each_seed(
        SEEDS,
        (2, 4),
        |_| (),
        async |scenario| {
            let routers = scenario.world.plan.routers.clone();
            let mut requests = Vec::new();
            let mut sent = Vec::new();
            let mut versions = Vec::new();
            for (step, worker) in scenario.world.plan.workers.clone().into_iter().enumerate() {
                for number in 0..8 {
                    let request = scenario.request(&scenario.prompt(32), TOKENS);
                    sent.push(scenario.send(routers[number % 2], request.clone()));
                    requests.push(request);
                    sleep(Duration::from_millis(40)).await;
                }
                update(&scenario, worker);
                // One of the others dies while streams move; it comes back with the weights it had.
                let other = scenario.world.plan.workers[(step + 2) % 4];
                if step == 0 && scenario.random.once_in(2) {
                    scenario.world.process(other).expect("it runs").kill();
                }
                sleep(STARTED).await;
                let request = scenario.request(&scenario.prompt(32), TOKENS);
                let served = scenario.ask(routers[step % 2], request.clone()).await;
                versions.push(version_of(&scenario, &request, &served).await);
            }
            for (request, served) in requests.iter().zip(all(sent).await) {
                version_of(&scenario, request, &served).await;
            }
            // New requests move when half of the fleet is new: among equals, the newer version.
            let expected = [USUAL_VERSION, OTHER_VERSION, OTHER_VERSION, OTHER_VERSION];
            assert_eq!(versions, expected);
        },
    );
}

#[test]
fn a_stream_whose_version_has_gone_ends_with_an_error_and_never_with_other_tokens() {
    each_seed(
        SEEDS,
        (1, 2),
        |_| (),
        async |scenario| {
            // Slow, so that the streams outlast the workers.
            for worker in scenario.world.plan.workers.clone() {
                let device = scenario.world.worker(worker).expect("it runs").device.clone();
                device.slowness.store(20, std::sync::atomic::Ordering::Relaxed);
            }
            let request = scenario.request(&scenario.prompt(16), TOKENS);
            let stream = scenario.send("r0", request.clone());
            sleep(Duration::from_secs(3)).await;
            for worker in scenario.world.plan.workers.clone() {
                scenario.world.swap_weights(worker);
                scenario.world.process(worker).expect("it runs").kill();
            }
            let served = stream.await.expect("it does not panic");
            assert!(matches!(served.refusal, Some(Refusal::VersionGone)), "{served:?}");
            let usual =
                Answers::to(&scenario.world.plan, &request).await.of(USUAL_VERSION).samples[0].tokens.clone();
            assert!(!served.tokens.is_empty() && served.tokens.len() < usual.len(), "{served:?}");
            assert_eq!(served.tokens[..], usual[..served.tokens.len()], "what came is of its version");
            // The client that returns with its part gets the same error; anew, the whole new answer.
            let sample = ResumeSample { index: 0, delivered: served.tokens.clone() };
            let resume = Some(Resume { samples: vec![sample], prompt_logprobs_done: true }.into());
            let again = TokenRequest { resume, version: served.version, ..request.clone() };
            let refused = scenario.ask("r0", again).await;
            assert!(matches!(refused.refusal, Some(Refusal::VersionGone)), "{refused:?}");
            let anew = scenario.ask("r0", request.clone()).await;
            assert_eq!(version_of(&scenario, &request, &anew).await, OTHER_VERSION);
        },
    );
}

#[test]
fn a_client_that_returns_to_another_router_goes_on_with_its_version() {
    each_seed(
        SEEDS,
        (2, 4),
        |_| (),
        async |scenario| {
            let request = scenario.request(&scenario.prompt(16), TOKENS);
            let first = scenario.ask("r0", request.clone()).await;
            assert_eq!(version_of(&scenario, &request, &first).await, USUAL_VERSION);
            for worker in ["w0", "w1", "w2"] {
                update(&scenario, worker);
                sleep(STARTED).await;
            }
            // Its stream is no longer kept anywhere, and most workers are new.
            sleep(Duration::from_secs(15)).await;
            let delivered = first.tokens[..20].to_vec();
            let sample = ResumeSample { index: 0, delivered };
            let resume = Some(Resume { samples: vec![sample], prompt_logprobs_done: true }.into());
            let rest =
                scenario.ask("r1", TokenRequest { resume, version: first.version, ..request.clone() }).await;
            assert_eq!((rest.refusal.is_none(), rest.version), (true, USUAL_VERSION), "{rest:?}");
            assert_eq!(rest.tokens, first.tokens[20..]);
            let new = scenario.request(&scenario.prompt(16), TOKENS);
            let served = scenario.ask("r1", new.clone()).await;
            assert_eq!(version_of(&scenario, &new, &served).await, OTHER_VERSION);
        },
    );
}
