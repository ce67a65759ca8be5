//! Stored responses: what they continue, who finds them, and those made in the background.

use std::path::Path;

use super::tools::{MESSAGES, RESPONSES, TEXT, ask, flat_tool, named, text, timeless_value};
use super::*;
use crate::config::RouterConfig;
use crate::request::tenant::Tenant;
use crate::stored::{StoreLimits, StoredResponses};
use crate::testing::tokens;

const LIMITS: StoreLimits = StoreLimits { bytes: 1 << 20, kept_for: Duration::from_secs(3600) };

fn storing(script: Script, responses: StoredResponses) -> (App, Arc<Script>) {
    let script = Arc::new(script);
    let config = RouterConfig { responses: Some(responses), ..testing::config() };
    (App::new(Arc::new(text()), script.clone(), config), script)
}

fn in_memory(script: Script) -> (App, Arc<Script>) {
    storing(script, StoredResponses::in_memory(LIMITS).unwrap())
}

fn saying(text: &str) -> Script {
    Script { every_sample: Some(text.to_owned()), ..Script::default() }
}

async fn to(app: &App, method: &str, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path);
    send(app, request.body(Body::empty()).unwrap()).await
}

/// The prompts that reached the generator.
fn prompts(app: &App, script: &Script) -> Vec<String> {
    let requests = script.requests.lock().unwrap();
    requests.iter().map(|request| app.text.tokenizer.decode(&request.prompt, false).unwrap()).collect()
}

fn id(answer: &Answer) -> String {
    answer.json()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_response_continues_another_as_if_all_had_been_sent() {
    let (app, script) = in_memory(saying(TEXT));
    let first = json!({"input": "hi", "tools": [flat_tool()], "instructions": "be brief"});
    let one = ask(&app, RESPONSES, &first).await;
    assert_eq!((&one.json()["store"], &one.json()["previous_response_id"]), (&json!(true), &Value::Null));
    let results = json!([
        {"type": "function_call_output", "call_id": one.json()["output"][2]["call_id"], "output": "r1"},
        {"type": "function_call_output", "call_id": one.json()["output"][3]["call_id"], "output": "r2"},
    ]);
    let two =
        json!({"input": results, "tools": [flat_tool()], "previous_response_id": id(&one), "stream": true});
    let streamed = named(&ask(&app, RESPONSES, &two).await);
    let whole = &streamed.last().unwrap().1["response"];
    assert_eq!((&whole["store"], &whole["previous_response_id"]), (&json!(true), &json!(id(&one))));
    let three = json!({"input": "bye", "previous_response_id": whole["id"], "store": false});
    let last = ask(&app, RESPONSES, &three).await;
    assert_eq!(last.json()["store"], json!(false));
    let output = |response: &Value| response["output"].as_array().unwrap().clone();
    let mut all = vec![json!({"role": "user", "content": "hi"})];
    all.extend(output(&one.json()));
    all.extend(results.as_array().unwrap().clone());
    all.extend(output(whole));
    all.push(json!({"role": "user", "content": "bye"}));
    ask(&app, RESPONSES, &json!({"input": all, "store": false})).await;
    let prompts = prompts(&app, &script);
    assert_eq!(prompts[2], prompts[3]);
    assert!(prompts[2].contains("r1") && prompts[2].contains("<think>Hm é.</think>"), "{}", prompts[2]);
    assert!(!prompts[2].contains("be brief"), "instructions are of one response");
    // What was not stored is not found.
    assert_eq!(to(&app, "GET", &format!("{RESPONSES}/{}", id(&last))).await.status, 404);
}

#[tokio::test]
async fn a_stored_response_is_read_listed_and_deleted() {
    let (app, _) = in_memory(saying(TEXT));
    let body = json!({"input": "hi", "tools": [flat_tool()], "metadata": {"a": "b"}});
    let one = ask(&app, RESPONSES, &body).await;
    let read = to(&app, "GET", &format!("{RESPONSES}/{}?include[]=x", id(&one))).await;
    assert_eq!(read.json(), one.json(), "as it was answered");
    let more = json!({"input": [{"role": "user", "content": "more"}], "previous_response_id": id(&one), "stream": true});
    let two = named(&ask(&app, RESPONSES, &more).await).last().unwrap().1["response"].clone();
    let path = format!("{RESPONSES}/{}", two["id"].as_str().unwrap());
    assert_eq!(to(&app, "GET", &path).await.json(), two);
    let items = |query: &str| {
        let path = format!("{path}/input_items{query}");
        let app = app.clone();
        async move { to(&app, "GET", &path).await.json() }
    };
    let all = items("?order=asc").await;
    let kinds: Vec<&str> =
        all["data"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "reasoning", "message", "function_call", "function_call", "message"]);
    let data = &all["data"];
    assert_eq!(
        (&data[0]["content"], &data[1]),
        (&json!([{"type": "input_text", "text": "hi"}]), &one.json()["output"][0])
    );
    let newest = items("?limit=1").await;
    assert_eq!((&newest["data"][0], &newest["has_more"]), (&data[5], &json!(true)));
    let next = items(&format!("?limit=2&after={}", data[5]["id"].as_str().unwrap())).await;
    assert_eq!(next["data"], json!([data[4], data[3]]));
    // An item may be sent again by its id alone.
    let refer = json!({"input": [{"type": "item_reference", "id": data[0]["id"]}, {"id": data[2]["id"]}, {"role": "user", "content": "so?"}]});
    let third = ask(&app, RESPONSES, &refer).await;
    let listed = to(&app, "GET", &format!("{RESPONSES}/{}/input_items?order=asc", id(&third))).await.json();
    assert_eq!((&listed["data"][0]["content"], &listed["data"][1]), (&data[0]["content"], &data[2]));
    let deleted = to(&app, "DELETE", &format!("{RESPONSES}/{}", id(&one))).await;
    assert_eq!(deleted.json(), json!({"id": id(&one), "object": "response", "deleted": true}));
    for (method, path) in [
        ("GET", id(&one)),
        ("DELETE", id(&one)),
        ("GET", format!("{}/input_items", id(&one))),
        ("POST", format!("{}/cancel", id(&one))),
    ] {
        let gone = to(&app, method, &format!("{RESPONSES}/{path}")).await;
        let message = format!("Response with id '{}' not found.", id(&one));
        assert_eq!(
            (gone.status, &gone.json()["error"]["message"]),
            (404, &json!(message)),
            "{method} {path}"
        );
    }
    assert_eq!(items("?order=asc").await["data"].as_array().unwrap().len(), 1, "its own input is left");
    let check = async |body: Value, code: Value, expected: &str| {
        let refused = ask(&app, RESPONSES, &body).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &code), "{error}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    };
    let missing = json!("previous_response_not_found");
    let continues = |id: &Value| json!({"input": "x", "previous_response_id": id});
    check(continues(&json!("resp_none")), missing.clone(), "response with id 'resp_none' not found").await;
    check(continues(&two["id"]), missing, &format!("continues '{}', which was deleted", id(&one))).await;
    let gone =
        json!({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": data[2]["id"]}]});
    check(gone, Value::Null, "input[1]: there is no stored item").await;
    check(json!({"input": "x", "conversation": "conv_1"}), Value::Null, "previous_response_id").await;
    let odd = to(&app, "GET", &format!("{path}?stream=true")).await;
    assert_eq!((odd.status, &odd.json()["error"]["param"]), (400, &json!("stream")));
    let foreground = to(&app, "POST", &format!("{path}/cancel")).await;
    assert!(foreground.body.contains("Only a response with background: true"), "{}", foreground.body);
}

#[tokio::test]
async fn tenants_do_not_find_each_others_responses_and_ids_are_not_the_clients() {
    let keys = ["one", "two"].map(|key| key.repeat(20));
    let responses = StoredResponses::in_memory(LIMITS).unwrap();
    let config = RouterConfig { responses: Some(responses), api_keys: keys.to_vec(), ..testing::config() };
    let app = App::new(Arc::new(text()), Arc::new(saying("x")), config);
    let ask = async |key: &str, method: &str, path: &str, body: &Value| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key);
        let request = request.header("content-type", "application/json").header("idempotency-key", "same");
        send(&app, request.body(body.to_string().into()).unwrap()).await
    };
    let first = ask(&keys[0], "POST", RESPONSES, &json!({"input": "a"})).await;
    let second = ask(&keys[0], "POST", RESPONSES, &json!({"input": "b"})).await;
    assert_ne!(id(&first), id(&second), "a client that repeats its id replaces nothing");
    let path = format!("{RESPONSES}/{}", id(&first));
    assert_eq!(ask(&keys[0], "GET", &path, &Value::Null).await.json(), first.json());
    for (method, path) in
        [("GET", path.clone()), ("DELETE", path.clone()), ("GET", path.clone() + "/input_items")]
    {
        assert_eq!(ask(&keys[1], method, &path, &Value::Null).await.status, 404, "{method} {path}");
        assert_eq!(ask("none", method, &path, &Value::Null).await.status, 401, "{method} {path}");
    }
    let continued = json!({"input": "c", "previous_response_id": id(&first)});
    assert_eq!(ask(&keys[1], "POST", RESPONSES, &continued).await.status, 400);
    let reference = format!("msg_{}_i0", id(&first).trim_start_matches("resp_"));
    let referring = json!({"input": [{"type": "item_reference", "id": reference}]});
    assert_eq!(ask(&keys[1], "POST", RESPONSES, &referring).await.status, 400);
    assert_eq!(ask(&keys[0], "POST", RESPONSES, &referring).await.status, 200);
}

#[tokio::test]
async fn references_do_not_stand_for_more_than_a_body() {
    let roomy = StoreLimits { bytes: 1 << 30, ..LIMITS };
    let (app, _) = storing(saying("x"), StoredResponses::in_memory(roomy).unwrap());
    let padded = json!({"input": [{"role": "user", "content": "hi", "other": "A".repeat(3 << 20)}]});
    let one = ask(&app, RESPONSES, &padded).await;
    let item =
        json!({"type": "item_reference", "id": format!("msg_{}_i0", id(&one).trim_start_matches("resp_"))});
    let of = |count: usize| json!({"input": vec![item.clone(); count], "store": false});
    assert_eq!(ask(&app, RESPONSES, &of(2)).await.status, 200);
    let refused = ask(&app, RESPONSES, &of(3)).await;
    assert!(refused.status == 400 && refused.body.contains("have over 8388608 bytes"), "{}", refused.body);
    let nameless = json!({"input": [{"type": "item_reference"}]});
    let refused = ask(&app, RESPONSES, &nameless).await;
    assert!(refused.status == 400 && refused.body.contains("input[0].id is required"), "{}", refused.body);
    let empty = ask(&app, RESPONSES, &json!({"input": []})).await;
    assert!(
        empty.status == 400 && empty.body.contains("input must hold at least one item"),
        "{}",
        empty.body
    );
}

#[tokio::test]
async fn what_cannot_be_stored_is_answered_and_says_so() {
    let small = StoreLimits { bytes: 100, ..LIMITS };
    let (app, _) = storing(saying("well"), StoredResponses::in_memory(small).unwrap());
    let body = json!({"input": "x", "stream": true});
    let events = named(&ask(&app, RESPONSES, &body).await);
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["response"]["store"]), ("response.completed", &json!(false)));
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "well");
    let whole = ask(&app, RESPONSES, &json!({"input": "x"})).await;
    assert_eq!((whole.status, &whole.json()["store"]), (200, &json!(false)));
    let background = ask(&app, RESPONSES, &json!({"input": "x", "background": true})).await;
    assert!(background.status == 400 && background.body.contains("cannot be stored"), "{}", background.body);
    let scrape = to(&app, "GET", "/metrics").await.body;
    let has = |line: &str| assert!(scrape.lines().any(|one| one.starts_with(line)), "{line}: {scrape}");
    has("skein_responses_not_stored_total{engine=\"0\",model_name=\"test\"} 3");
    has("skein_stored_responses_limit_bytes{engine=\"0\",model_name=\"test\"} 100");
}

#[tokio::test]
async fn a_failed_stream_is_stored_as_such() {
    let lost = Refusal::WorkersLost { moves: 3, reason: "gone".to_owned() };
    let say = tokens("Well, ")
        .into_iter()
        .map(|token| Say::Delta(crate::request::TokenDelta { tokens: vec![token], ..delta(0, "") }));
    let script = Script { say: say.chain([Say::Fail(lost)]).collect(), ..Script::default() };
    let (app, _) = in_memory(script);
    let events = named(&ask(&app, RESPONSES, &json!({"input": "x", "stream": true})).await);
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.failed");
    let path = format!("{RESPONSES}/{}", last["response"]["id"].as_str().unwrap());
    let stored = to(&app, "GET", &path).await.json();
    assert_eq!((&stored["status"], &stored), (&json!("failed"), &last["response"]));
}

/// Waits until the response at `path` has one of `statuses`.
async fn until(app: &App, path: &str, statuses: &[&str]) -> Value {
    loop {
        let response = to(app, "GET", path).await.json();
        if statuses.contains(&response["status"].as_str().unwrap()) {
            return response;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_response_in_the_background_is_there_when_its_client_comes_back() {
    let (app, script) = in_memory(saying(TEXT));
    let body = json!({"input": "hi", "tools": [flat_tool()], "background": true, "model": "test"});
    let queued = ask(&app, RESPONSES, &body).await;
    assert_eq!(
        (queued.status, &queued.json()["status"], &queued.json()["output"]),
        (200, &json!("queued"), &json!([]))
    );
    let path = format!("{RESPONSES}/{}", id(&queued));
    let done = until(&app, &path, &["completed"]).await;
    let mut plain = body.clone();
    plain["background"] = false.into();
    let whole = ask(&app, RESPONSES, &plain).await.json();
    let without_ids = |response: &Value| {
        let text = timeless_value(response.clone()).to_string();
        text.replace(response["id"].as_str().unwrap().trim_start_matches("resp_"), "")
    };
    let mut expected = whole.clone();
    expected["background"] = true.into();
    let calls = |response: &Value, at: usize| response["output"][at]["call_id"].as_str().unwrap().to_owned();
    let without_calls = |response: &Value| {
        without_ids(response).replace(&calls(response, 2), "").replace(&calls(response, 3), "")
    };
    assert_eq!(without_calls(&done), without_calls(&expected));
    assert_eq!(done["created_at"], queued.json()["created_at"]);
    let prompts = prompts(&app, &script);
    assert_eq!(prompts[0], prompts[1]);
    // It is continued like any other, and has nothing more to cancel.
    let more = json!({"input": "more", "previous_response_id": id(&queued), "background": true});
    let more = ask(&app, RESPONSES, &more).await;
    until(&app, &format!("{RESPONSES}/{}", id(&more)), &["completed"]).await;
    assert_eq!(to(&app, "POST", &format!("{path}/cancel")).await.json(), done);
    let check = async |extra: Value, expected: &str| {
        let mut body = json!({"input": "x", "background": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let refused = ask(&app, RESPONSES, &body).await;
        assert!(refused.status == 400 && refused.body.contains(expected), "{}", refused.body);
    };
    check(json!({"store": false}), "the response must be stored").await;
    check(json!({"stream": true}), "not streamed as yet").await;
    check(json!({"input": "x".repeat(5000)}), "maximum context length").await;
    check(json!({"metadata": {"key": "x".repeat(513)}}), "strings of up to 512 characters").await;
    assert_eq!(to(&app, "GET", "/v1/responses").await.status, 405);
    assert_eq!(ask(&app, MESSAGES, &json!({"messages": []})).await.status, 400);
}

#[tokio::test]
async fn a_response_in_the_background_is_cancelled_or_deleted_and_then_stops() {
    let hanging = Script { say: vec![Say::Delta(delta(0, "W")), Say::Hang], ..Script::default() };
    let (app, script) = in_memory(hanging);
    let begin = async || {
        let queued = ask(&app, RESPONSES, &json!({"input": "hi", "background": true})).await;
        let path = format!("{RESPONSES}/{}", id(&queued));
        until(&app, &path, &["in_progress"]).await;
        (id(&queued), path)
    };
    let (one, path) = begin().await;
    let unfinished = ask(&app, RESPONSES, &json!({"input": "x", "previous_response_id": one})).await;
    assert!(unfinished.status == 400 && unfinished.body.contains("still being made"), "{}", unfinished.body);
    let cancelled = to(&app, "POST", &format!("{path}/cancel")).await.json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(to(&app, "POST", &format!("{path}/cancel")).await.json(), cancelled);
    let (_, path) = begin().await;
    assert_eq!(to(&app, "DELETE", &path).await.status, 200);
    while script.open.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(to(&app, "GET", &path).await.status, 404);
}

async fn directory_app(directory: &Path, script: Script) -> App {
    loop {
        match StoredResponses::open(directory, LIMITS) {
            // The tasks and threads of the one before may still be ending.
            Err(error) if error.to_string().contains("in use") => {
                tokio::time::sleep(Duration::from_millis(2)).await
            }
            opened => return storing(script, opened.unwrap()).0,
        }
    }
}

#[tokio::test]
async fn the_next_process_makes_what_was_owed_and_tries_again_while_it_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let queued = {
        let full = Refusal::Overloaded { reason: "full".to_owned(), retry_after: Duration::from_secs(60) };
        let app = directory_app(directory.path(), Script { refuse: Some(full), ..Script::default() }).await;
        let queued = ask(&app, RESPONSES, &json!({"input": "hi", "background": true})).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        // As at a shutdown.
        app.drain.drain(Duration::from_millis(1), || {}).await;
        queued
    };
    let path = format!("{RESPONSES}/{}", id(&queued));
    let app = directory_app(directory.path(), saying("well")).await;
    assert_eq!(to(&app, "GET", &path).await.json()["status"], "queued");
    super::super::finish_responses(app.clone()).await;
    let done = until(&app, &path, &["completed"]).await;
    assert_eq!(done["output"][0]["content"][0]["text"], "well");
}

#[tokio::test]
async fn a_response_in_the_background_that_is_refused_has_failed() {
    let script = Script {
        refuse: Some(Refusal::DeadlineExceeded { timeout: Duration::from_secs(1) }),
        ..Script::default()
    };
    let (app, _) = in_memory(script);
    let queued = ask(&app, RESPONSES, &json!({"input": "hi", "background": true})).await;
    let failed = until(&app, &format!("{RESPONSES}/{}", id(&queued)), &["failed"]).await;
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("The deadline of 1000 ms passed"), "{message}");
}

#[tokio::test]
async fn names_of_tenants_in_a_directory_are_hashes_under_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let responses = StoredResponses::open(directory.path(), LIMITS).unwrap();
    let tenant = Tenant::of_key("guessable");
    let owner = responses.owner(&tenant);
    assert!(owner.starts_with("k1-") && !owner.contains(tenant.name()), "{owner}");
    assert_eq!(responses.owner(&Tenant::default()), "");
}
