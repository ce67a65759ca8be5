//! Streams resumed with `Last-Event-ID`: wherever a stream is cut, the parts add up to the whole.

use proptest::prelude::*;
use skein_proto::TokenId;
use skein_text::model_text::ModelText;

use skein_proto::version::Version;

use super::*;
use crate::request::{Journey, TokenDelta};

/// Streams one sample per text, in deltas of `cut` tokens.
fn script(texts: &[String], cut: usize) -> Script {
    let tokens: Vec<Vec<TokenId>> = texts.iter().map(|text| testing::tokens(text)).collect();
    let rounds = tokens.iter().map(|tokens| tokens.len().div_ceil(cut)).max().unwrap_or(0);
    let mut deltas = Vec::new();
    for round in 0..rounds {
        for (index, tokens) in (0..).zip(&tokens) {
            if let Some(chunk) = tokens.chunks(cut).nth(round) {
                deltas.push(TokenDelta { tokens: chunk.to_vec(), ..delta(index, "") });
            }
        }
    }
    deltas.extend((0..).zip(texts).map(|(index, _)| finish(index, FinishReason::Length)));
    Script::of(deltas)
}

/// What a client has assembled from its events.
#[derive(Debug, Clone, Default, PartialEq)]
struct Assembled {
    choices: Vec<Whole>,
    usage: Vec<Value>,
    done: usize,
}

/// One choice; list fields collect one item per event.
#[derive(Debug, Clone, Default, PartialEq)]
struct Whole {
    roles: usize,
    text: String,
    tokens: Vec<Value>,
    prompt_tokens: Vec<Value>,
    logprobs: Vec<Vec<Value>>,
    finishes: Vec<Value>,
}

impl Assembled {
    fn of<'a>(choices: usize, events: impl IntoIterator<Item = &'a (String, String)>) -> Self {
        let mut all = Self { choices: vec![Whole::default(); choices], ..Self::default() };
        for (_, data) in events {
            match data.as_str() {
                "[DONE]" => all.done += 1,
                data => all.take(&serde_json::from_str(data).unwrap()),
            }
        }
        all
    }

    fn take(&mut self, event: &Value) {
        assert!(event.get("error").is_none(), "{event}");
        self.usage.extend(event.get("usage").filter(|usage| !usage.is_null()).cloned());
        for choice in event["choices"].as_array().unwrap() {
            self.choices[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()].take(choice);
        }
    }
}

impl Whole {
    fn take(&mut self, choice: &Value) {
        let text = choice.get("text").unwrap_or(&choice["delta"]["content"]);
        self.text.push_str(text.as_str().unwrap_or_default());
        self.roles += usize::from(choice["delta"]["role"].is_string());
        self.tokens.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        self.prompt_tokens.extend(choice.get("prompt_token_ids").cloned());
        self.logprobs.resize(5, Vec::new());
        let lists = ["content", "tokens", "token_logprobs", "top_logprobs", "text_offset"];
        for (all, name) in self.logprobs.iter_mut().zip(lists) {
            all.extend(choice["logprobs"][name].as_array().into_iter().flatten().cloned());
        }
        if !choice["finish_reason"].is_null() {
            self.finishes.push(json!([choice["finish_reason"], choice["stop_reason"]]));
        }
    }
}

/// A client whose connection may break. Each server splits the output into deltas differently.
struct Client {
    text: Arc<ModelText>,
    path: &'static str,
    body: Value,
    texts: Vec<String>,
    choices: usize,
}

impl Client {
    async fn ask(&self, cut: usize, last_event_id: Option<&str>) -> Answer {
        let script = script(&self.texts, cut);
        let app = App::new(self.text.clone(), Arc::new(script), testing::config());
        let request = Request::post(self.path).header("content-type", "application/json");
        let request = match last_event_id {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let answer = send(&app, request.body(self.body.to_string().into()).unwrap()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer
    }

    /// Cuts the connection after every event in turn, then once more within each remainder.
    async fn check_every_point(&self, cuts: (usize, usize)) {
        let whole = self.ask(cuts.0, None).await.events_with_ids();
        let expected = Assembled::of(self.choices, &whole);
        assert_eq!(expected.done, 1);
        let (_, resumable) = whole.split_last().unwrap();
        for (at, (id, _)) in resumable.iter().enumerate() {
            assert!(!id.is_empty(), "{resumable:?}");
            let rest = self.ask(cuts.1, Some(id)).await.events_with_ids();
            let parts = whole[..=at].iter().chain(&rest);
            assert_eq!(Assembled::of(self.choices, parts), expected, "{whole:?} cut at {id}");
            // Cut again in the middle of the remainder.
            let Some((again, _)) = rest.get(rest.len() / 2).filter(|(id, _)| !id.is_empty()) else {
                continue;
            };
            let last = self.ask(cuts.0, Some(again)).await.events_with_ids();
            let parts = whole[..=at].iter().chain(&rest[..=rest.len() / 2]).chain(&last);
            assert_eq!(Assembled::of(self.choices, parts), expected, "{whole:?} cut at {id} and {again}");
        }
    }
}

fn wants(chat: bool, extra: &[(&str, Value)]) -> (&'static str, Value) {
    let (path, mut body) = if chat {
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}]}))
    } else {
        (COMPLETIONS, json!({"prompt": "hé"}))
    };
    body["stream"] = json!(true);
    // Only a client that named its request gets ids.
    body["request_id"] = json!("t");
    for (name, value) in extra {
        body[*name] = value.clone();
    }
    (path, body)
}

#[tokio::test]
async fn events_say_the_version_of_the_model_and_a_resume_asks_for_it() {
    for (chat, choices) in [(false, 1), (true, 2)] {
        let (path, body) = wants(chat, &[("n", json!(choices)), ("request_id", json!("g"))]);
        let said = Script {
            journey: Journey { version: Version(0xc0ffee), ..Journey::default() },
            ..script(&vec!["abab".to_owned(); choices], 2)
        };
        let said = Arc::new(said);
        let app = App::new(Arc::new(testing::model_text()), said.clone(), testing::config());
        let ask = async |id: Option<&str>| {
            let request = Request::post(path).header("content-type", "application/json");
            let request = match id {
                Some(id) => request.header("last-event-id", id),
                None => request,
            };
            send(&app, request.body(body.to_string().into()).unwrap()).await.events_with_ids()
        };
        let whole = ask(None).await;
        let with_tokens: Vec<&String> =
            whole.iter().map(|(id, _)| id).filter(|id| id.contains("2.2")).collect();
        assert!(!with_tokens.is_empty(), "{whole:?}");
        for id in with_tokens {
            assert!(id.contains("@0000000000c0ffee"), "{id}");
            ask(Some(id)).await;
        }
        let asked: Vec<u64> = said.requests.lock().unwrap().iter().map(|request| request.version.0).collect();
        assert_eq!(asked[0], 0, "a new request may run on any version");
        assert!(asked[1..].iter().all(|version| *version == 0xc0ffee), "{asked:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn parts_add_up_to_the_whole_wherever_a_stream_was_cut(
        texts in prop::collection::vec("[ab😀é]{0,8}", 1..4),
        stop in prop::option::of("[ab😀é]{1,2}"),
        chat in any::<bool>(), logprobs in any::<bool>(), ids in any::<bool>(), usage in any::<bool>(),
        echo in any::<bool>(), min_tokens in 0_i64..4, cuts in (1_usize..6, 1_usize..6),
    ) {
        let mut extra = vec![
            ("n", json!(texts.len())), ("return_token_ids", json!(ids)), ("min_tokens", json!(min_tokens)),
            ("max_tokens", json!(40)), ("stream_options", json!({"include_usage": usage})),
        ];
        extra.extend(stop.map(|stop| ("stop", json!(stop))));
        match (chat, logprobs) {
            (true, true) => extra.extend([("logprobs", json!(true)), ("top_logprobs", json!(1))]),
            (false, true) => extra.push(("logprobs", json!(1))),
            _ => {}
        }
        extra.extend((!chat).then(|| ("echo", json!(echo))));
        let (path, body) = wants(chat, &extra);
        let choices = texts.len();
        let client = Client { text: Arc::new(testing::model_text()), path, body, texts, choices };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client.check_every_point(cuts));
    }
}

#[tokio::test]
async fn each_prompt_of_a_call_resumes_where_it_was() {
    let prompts = json!(["a", "bb", "c"]);
    let (path, body) = wants(false, &[("prompt", prompts), ("n", json!(2)), ("echo", json!(true))]);
    let text = Arc::new(testing::model_text());
    let texts = vec!["xé".to_owned(), "yy😀".to_owned()];
    Client { text, path, body, texts, choices: 6 }.check_every_point((1, 3)).await;
}

#[tokio::test]
async fn a_client_that_has_all_but_the_word_that_it_is_over_gets_that_word() {
    let app = testing::app(says("a"));
    let ask = async |id: &str, extra: &[(&str, Value)]| {
        let (path, body) = wants(true, extra);
        let request = Request::post(path).header("last-event-id", id);
        send(&app, request.body(body.to_string().into()).unwrap()).await
    };
    let usage = [("stream_options", json!({"include_usage": true}))];
    for (id, extra) in [("t/1.1f", &[][..]), ("t/1.1f+", &usage[..])] {
        let answer = ask(id, extra).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "data: [DONE]\n\n"));
        assert_eq!(answer.header("x-request-id"), "t");
    }
    let owed = ask("t/1.1f", &usage).await;
    assert_eq!(owed.events().len(), 2, "its usage is still owed: {}", owed.body);
}

#[tokio::test]
async fn a_forged_finish_or_usage_in_an_id_does_not_end_a_stream_early() {
    let ask = async |id: &str| {
        let (path, body) = wants(true, &[("stream_options", json!({"include_usage": true}))]);
        let request = Request::post(path).header("last-event-id", id);
        send(&testing::app(says("abc")), request.body(body.to_string().into()).unwrap()).await
    };
    for id in ["t/1.1f", "t/1.1f+"] {
        let answer = ask(id).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (409, &json!("not_continued")), "{id}");
    }
    let answer = ask("t/1.1+").await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("Last-Event-ID")));
}

#[tokio::test]
async fn ids_that_do_not_fit_the_body_are_refused() {
    let check = async |id: &str, extra: &[(&str, Value)], status: u16, message: &str| {
        let (path, body) = wants(true, extra);
        let request = Request::post(path).header("last-event-id", id);
        let answer = send(&testing::app(says("ab")), request.body(body.to_string().into()).unwrap()).await;
        assert!(answer.body.contains(message), "{}", answer.body);
        assert_eq!(answer.status, status, "{}", answer.body);
    };
    check("t", &[], 400, "`<request id>/<state>`, got `t`").await;
    check("t/1.1,1.1", &[], 400, "call with 2 choices, but this body requests 1").await;
    check("t/1.1", &[("n", json!(3))], 400, "call with 1 choices, but this body requests 3").await;
    check("t/1.1", &[("request_id", json!("u"))], 400, "to a different request").await;
    check("t/1.1", &[("stream", json!(false))], 400, "only with stream: true").await;
    check("t/1.1f,", &[], 400, "`<request id>/<state>`").await;
    // Counts beyond the output, a finish before the end, or impossible counts: the stream's first event is an
    // error.
    for id in ["t/9.9", "t/1.1f", "t/9.1", "t/1.9"] {
        let usage = [("stream_options", json!({"include_usage": true}))];
        check(id, &usage, 409, r#"{"error":{"message":"The answer under this request id is not"#).await;
    }
}

#[tokio::test]
async fn calls_with_many_choices_have_no_ids_and_end_with_an_error_at_shutdown() {
    let prompts = vec!["a"; 17];
    let say = vec![Say::Delta(delta(0, "x")), Say::Fail(Refusal::Draining)];
    let answer =
        post(Script { say, ..Script::default() }, COMPLETIONS, json!({"prompt": prompts, "stream": true}))
            .await;
    assert!(answer.events_with_ids().iter().all(|(id, _)| id.is_empty()), "{}", answer.body);
    assert!(answer.body.contains(r#""code":"draining""#), "{}", answer.body);
}
