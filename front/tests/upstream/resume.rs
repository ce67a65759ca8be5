//! Faults in the middle of a stream.

use std::time::Duration;

use serde_json::json;

use super::mock::{Act, Health, Mock};
use super::{Answer, Scene, chat, completion, config, expected};

const RESUME: (&str, &str) = ("x-skein-resume", "text");

async fn ask(scene: &Scene, path: &str, body: &serde_json::Value, header: (&str, &str)) -> Answer {
    scene.ask("POST", path, &[header], body.to_string()).await
}

#[tokio::test]
async fn a_cut_stream_continues_on_another_worker_if_the_client_asks() {
    for act in [Act::Cut(3), Act::CutWithin(3), Act::EndEarly(3), Act::EngineFails(3)] {
        for (path, body) in
            [("/v1/chat/completions", chat(true, 8)), ("/v1/completions", completion(true, 8))]
        {
            let scene = Scene::new(2).await;
            scene.workers.iter().for_each(|worker| worker.plan(&[act]));
            let answer = ask(&scene, path, &body, RESUME).await;
            assert!(answer.is_done(), "{act:?} {path}: {}", answer.text);
            assert_eq!(answer.tokens(), expected(8), "{act:?} {path}: {}", answer.text);
            assert_eq!(answer.text.matches(": skein-resumed by=text exact=false\n\n").count(), 2);
            assert!(answer.text.matches("\"role\"").count() <= 1, "one message begins once: {}", answer.text);
            let ids = answer.text.matches("\"id\":\"id-1\"").count();
            assert_eq!(ids, answer.text.matches("\"id\"").count(), "one answer has one id");
            let last = scene
                .workers
                .iter()
                .flat_map(Mock::calls)
                .map(|(_, body)| body["max_tokens"].clone())
                .min_by_key(|left| left.as_u64());
            assert_eq!(last, Some(json!(2)), "eight less two times three");
            scene.wait_for_idle().await;
            let metrics = scene.get("/metrics").await.text;
            assert!(metrics.contains("skein_streams_continued_by_text_total 2\n"), "{metrics}");
        }
    }
}

/// A server that ends every stream without saying so must not be asked for ever, whatever it says before.
#[tokio::test]
async fn no_stream_is_continued_for_ever() {
    const ONLY_A_COMMENT: Act =
        Act::RawAndClose("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: ping\n\n");
    const ONLY_A_ROLE: Act = Act::RawAndClose(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
         data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n",
    );
    let unlimited = {
        let mut body = completion(true, 1);
        body.as_object_mut().unwrap().remove("max_tokens");
        body
    };
    for (act, body, calls, is_done) in [
        (Act::EndEarly(1), completion(true, 5), 5, true),
        (Act::EndEarly(5), completion(true, 5), 1, true),
        (Act::Cut(1), chat(true, 5), 5, true),
        (Act::EndEarly(0), completion(true, 5), 2, false),
        (Act::EndEarly(0), chat(true, 5), 2, false),
        (ONLY_A_COMMENT, chat(true, 5), 2, false),
        (ONLY_A_ROLE, chat(true, 5), 2, false),
        (Act::EndEarly(1), unlimited, 9, false),
        (Act::EndEarly(1), completion(true, 5000), 9, false),
    ] {
        let mut once = config();
        once.router.migration_limit = 1;
        let scene = Scene::with(1, once, Duration::ZERO).await;
        scene.workers[0].plan(&[act; 50]);
        let path = if body["messages"].is_null() { "/v1/completions" } else { "/v1/chat/completions" };
        let answer = ask(&scene, path, &body, RESUME).await;
        assert_eq!(answer.is_done(), is_done, "{act:?} {body}: {}", answer.text);
        assert_eq!(answer.text.contains("\"error\""), !is_done, "{act:?} {body}: {}", answer.text);
        assert_eq!(answer.text.contains("\"finish_reason\":\"length\""), is_done, "{act:?}: {}", answer.text);
        assert_eq!(scene.calls(), calls, "{act:?} {body}: {}", answer.text);
        assert_eq!(
            answer.tokens(),
            expected(if is_done { 5 } else { answer.tokens().split(' ').count() - 1 })
        );
    }
}

#[tokio::test]
async fn a_continued_chat_is_sent_as_vllm_takes_it() {
    let scene = Scene::new(2).await;
    scene.workers[0].plan(&[Act::Cut(2)]);
    scene.workers[1].plan(&[Act::Cut(2)]);
    ask(&scene, "/v1/chat/completions", &chat(true, 4), RESUME).await;
    let calls: Vec<_> = scene.workers.iter().flat_map(Mock::calls).collect();
    let continued = calls.iter().find(|(_, body)| body["max_tokens"] == 2).expect("a continuation");
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "t0 t1 "}]);
    assert_eq!(continued.1["messages"], messages);
    assert_eq!(continued.1["continue_final_message"], true);
    assert_eq!(continued.1["add_generation_prompt"], false);
    assert!(!continued.0.contains("x-skein-resume"));
}

#[tokio::test]
async fn a_cut_stream_ends_with_a_clear_error_if_nobody_allows_more() {
    for act in [Act::Cut(3), Act::CutWithin(3)] {
        let scene = Scene::new(2).await;
        scene.workers.iter().for_each(|worker| worker.plan(&[act]));
        let answer = scene.post("/v1/chat/completions", &chat(true, 8)).await;
        assert_eq!(answer.tokens(), expected(3), "{}", answer.text);
        let error = answer.text.trim_end().rsplit_once("\n\ndata: ").unwrap().1;
        let error: serde_json::Value = serde_json::from_str(error).expect("the error is an event of its own");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("x-skein-resume: text"), "{message}");
        assert!(!answer.text.contains("[DONE]"));
        assert_eq!(scene.calls(), 1);
    }
}

#[tokio::test]
async fn a_request_may_forbid_what_the_operator_allows() {
    let mut allowed = config();
    allowed.resume_by_text = true;
    let scene = Scene::with(2, allowed, Duration::ZERO).await;
    scene.workers.iter().for_each(|worker| worker.plan(&[Act::Cut(3)]));
    let answer = ask(&scene, "/v1/chat/completions", &chat(true, 8), ("x-skein-resume", "never")).await;
    assert!(answer.text.contains("\"error\"") && answer.tokens() == expected(3), "{}", answer.text);
    let answer = scene.post("/v1/chat/completions", &chat(true, 8)).await;
    assert!(answer.is_done() && answer.tokens() == expected(8), "{}", answer.text);
    let answer = ask(&scene, "/v1/completions", &completion(true, 1), ("x-skein-resume", "maybe")).await;
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("X-Skein-Resume")));
}

#[tokio::test]
async fn what_text_cannot_continue_ends_with_the_reason() {
    let scene = Scene::new(2).await;
    for (field, why) in [("logprobs", "log-probabilities"), ("response_format", "constrained")] {
        scene.workers.iter().for_each(|worker| worker.plan(&[Act::Cut(2)]));
        let mut body = chat(true, 8);
        body[field] = json!({"type": "json_object"});
        let answer = ask(&scene, "/v1/chat/completions", &body, RESUME).await;
        assert!(answer.text.contains("\"error\"") && answer.text.contains(why), "{}", answer.text);
        scene.workers.iter().for_each(|worker| super::mock::lock(&worker.state.acts).clear());
    }
}

#[tokio::test]
async fn a_stream_that_stalls_continues_elsewhere() {
    let mut config = config();
    config.stall_timeout = Duration::from_secs(1);
    let scene = Scene::with(2, config, Duration::ZERO).await;
    scene.workers.iter().for_each(|worker| worker.plan(&[Act::Stall(3)]));
    let answer = ask(&scene, "/v1/chat/completions", &chat(true, 8), RESUME).await;
    assert!(answer.is_done() && answer.tokens() == expected(8), "{}", answer.text);
}

#[tokio::test]
async fn a_stream_of_a_stopped_worker_continues_elsewhere() {
    let scene = Scene::new(2).await;
    scene.workers[0].plan(&[Act::Stall(3)]);
    scene.workers[1].plan(&[Act::Stall(3)]);
    let asked = async { ask(&scene, "/v1/chat/completions", &chat(true, 8), RESUME).await };
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let at = scene.workers.iter().find(|worker| !worker.calls().is_empty()).unwrap();
        at.set_health(Health::Silent);
        let other = scene.workers.iter().find(|worker| worker.calls().is_empty()).unwrap();
        super::mock::lock(&other.state.acts).clear();
    };
    let (answer, ()) = tokio::join!(asked, stop);
    assert!(answer.is_done() && answer.tokens() == expected(8), "{}", answer.text);
}

/// The row of the issue: a worker killed under 64 streams loses none where requests allow resuming.
#[tokio::test]
async fn a_worker_killed_under_64_streams_loses_none() {
    let scene = Scene::with(4, config(), Duration::from_millis(10)).await;
    let streams =
        (0..64).map(|_| async { ask(&scene, "/v1/chat/completions", &chat(true, 60), RESUME).await });
    let kill = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.workers[2].kill().await;
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(streams), kill);
    for answer in &answers {
        assert!(answer.is_done() && answer.tokens() == expected(60), "{}", answer.text);
    }
    assert!(answers.iter().any(|answer| answer.text.contains("skein-resumed")), "some were hit");
    scene.wait_for_idle().await;
}
