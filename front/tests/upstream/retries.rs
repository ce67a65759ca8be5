//! Faults before the client has anything: another worker answers.

use std::time::Duration;

use super::mock::{Act, Health};
use super::{Scene, chat, completion, config, expected};

#[tokio::test]
async fn whatever_fails_before_the_first_byte_is_repeated_elsewhere() {
    let acts = [
        Act::Cut(0),
        Act::Status(500),
        Act::Status(502),
        Act::Status(503),
        Act::Status(429),
        Act::Garbage,
        Act::EndlessHead,
    ];
    for act in acts {
        for body in [completion(true, 6), completion(false, 6)] {
            if act == Act::Cut(0) && body["stream"] == false {
                continue;
            }
            let scene = Scene::new(2).await;
            scene.workers.iter().for_each(|worker| worker.plan(&[act]));
            let answer = scene.post("/v1/completions", &body).await;
            assert_eq!(answer.status, 200, "{act:?}: {}", answer.text);
            match body["stream"] == true {
                true => {
                    assert!(answer.is_done() && answer.tokens() == expected(6), "{act:?}: {}", answer.text)
                }
                false => assert_eq!(answer.json()["choices"][0]["text"], expected(6), "{act:?}"),
            }
            assert_eq!(scene.calls(), 3, "{act:?}: one fault at each of two workers");
            scene.wait_for_idle().await;
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_repeated_elsewhere() {
    let scene = Scene::new(2).await;
    scene.workers[0].plan(&[Act::CutBody]);
    scene.workers[1].plan(&[Act::CutBody]);
    let answer = scene.post("/v1/chat/completions", &chat(false, 3)).await;
    assert_eq!(answer.json()["choices"][0]["text"], expected(3));
}

#[tokio::test]
async fn a_clients_error_is_passed_on_and_says_nothing_about_the_worker() {
    let scene = Scene::new(1).await;
    scene.workers[0].plan(&[Act::Status(400); 10]);
    for _ in 0..10 {
        let answer = scene.post("/v1/completions", &completion(true, 1)).await;
        assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (400, Some("mock 400")));
    }
    assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
    assert_eq!(scene.calls(), 11);
}

#[tokio::test]
async fn errors_of_all_workers_reach_the_client() {
    let scene = Scene::new(2).await;
    scene.workers.iter().for_each(|worker| worker.plan(&[Act::Status(500); 10]));
    let answer = scene.post("/v1/completions", &completion(true, 1)).await;
    assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (500, Some("mock 500")));
    assert_eq!(scene.calls(), 4, "the first attempt and three moves");
    scene.workers.iter().for_each(|worker| worker.plan(&[Act::Garbage; 10]));
    for _ in 0..20 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 1)).await.status, 500);
        if scene.calls() > 20 {
            break;
        }
    }
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn full_workers_are_waited_for() {
    let scene = Scene::new(1).await;
    scene.workers[0].plan(&[Act::Status(503)]);
    let answer = scene.post("/v1/completions", &completion(false, 2)).await;
    assert_eq!(answer.json()["choices"][0]["text"], expected(2));
    let mut short = config();
    short.router.recovery.queue_timeout = Duration::from_millis(200);
    let scene = Scene::with(1, short, Duration::ZERO).await;
    scene.workers[0].plan(&[Act::Status(429)]);
    let answer = scene.post("/v1/completions", &completion(false, 2)).await;
    assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (429, Some("mock 429")));
}

/// Each answer of a full worker begins a new second without requests for it, but no new time to wait.
#[tokio::test]
async fn workers_that_stay_full_are_not_asked_forever() {
    let mut short = config();
    short.router.recovery.queue_timeout = Duration::from_millis(1500);
    let scene = Scene::with(2, short, Duration::ZERO).await;
    scene.workers.iter().for_each(|worker| worker.plan(&[Act::Status(429); 100]));
    let body = completion(true, 2);
    let asked = scene.post("/v1/completions", &body);
    let answer = tokio::time::timeout(Duration::from_secs(10), asked)
        .await
        .unwrap_or_else(|_| panic!("{} calls", scene.calls()));
    assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (429, Some("mock 429")));
    assert!(scene.calls() <= 6, "{} calls", scene.calls());
}

#[tokio::test]
async fn a_killed_worker_loses_no_request_that_has_not_begun() {
    let scene = Scene::new(3).await;
    scene.workers[1].kill().await;
    for _ in 0..30 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 3)).await.tokens(), expected(3));
    }
    scene.wait_for_idle().await;
}

/// A stopped process: its system accepts connections, and nothing ever answers.
#[tokio::test]
async fn a_stalled_worker_costs_only_a_bounded_time() {
    let scene = Scene::new(2).await;
    scene.workers[0].plan(&[Act::Stall(0); 100]);
    scene.workers[0].set_health(Health::Silent);
    let asked = (0..10).map(|_| async {
        let began = tokio::time::Instant::now();
        let answer = scene.post("/v1/completions", &completion(true, 3)).await;
        assert_eq!(answer.tokens(), expected(3));
        began.elapsed()
    });
    let times = futures::future::join_all(asked).await;
    let stalled = times.iter().filter(|time| **time > Duration::from_millis(300)).count();
    assert!(stalled <= 5, "only those that were at the worker: {times:?}");
    // Two missed checks and a look, with a worker timeout of one second.
    assert!(times.iter().all(|time| *time < Duration::from_secs(4)), "{times:?}");
    let began = tokio::time::Instant::now();
    for _ in 0..10 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 3)).await.tokens(), expected(3));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "no later request waits");
}

#[tokio::test]
async fn a_worker_that_is_healthy_but_never_answers_is_left_after_its_time() {
    let mut config = config();
    config.first_byte_timeout = Duration::from_secs(1);
    let scene = Scene::with(2, config, Duration::ZERO).await;
    scene.workers[0].plan(&[Act::Stall(0)]);
    for _ in 0..2 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 3)).await.tokens(), expected(3));
    }
    assert_eq!(scene.calls(), 3);
}

#[tokio::test]
async fn a_failing_worker_gets_no_more_than_three_requests() {
    let scene = Scene::new(2).await;
    scene.workers[0].plan(&[Act::Garbage; 100]);
    for _ in 0..20 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 3)).await.tokens(), expected(3));
    }
    assert!(scene.workers[0].calls().len() <= 4, "{}", scene.workers[0].calls().len());
    let metrics = scene.get("/metrics").await.text;
    let open = format!("skein_worker_breaker_open{{worker=\"{}\"}} 1", scene.workers[0].url());
    assert!(metrics.contains(&open), "{metrics}");
}

#[tokio::test]
async fn without_any_worker_a_request_is_refused_at_once() {
    let worker = super::Mock::start().await;
    worker.kill().await;
    let scene = Scene::over(vec![worker], config()).await;
    let answer = scene.post("/v1/completions", &completion(true, 3)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (503, Some("no_ready_worker")));
    assert!(answer.headers.contains_key("retry-after"));
}
