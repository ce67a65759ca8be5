//! `/v1/embeddings`, and Ollama's paths for vectors.

use skein_proto::pooling::{PooledKind, PooledModel, Pooling};
use skein_text::pooled_text::PooledText;

use super::*;
use crate::pooled::draft::MAX_INPUTS;

const EMBEDDINGS: &str = "/v1/embeddings";

/// A model of vectors whose first value is the number of tokens.
pub(super) fn embedder() -> Script {
    of_kind(true)
}

fn of_kind(is_normalised: bool) -> Script {
    let model = PooledModel { width: 3, kind: PooledKind::Embedding { is_normalised }, labels: Vec::new() };
    Script {
        pooled: Some((model, |request| vec![request.prompt.len() as f32, 4.0, 0.0])),
        ..Script::default()
    }
}

/// The answer to `body`, and the requests that reached the generator.
async fn embed(script: Script, text: PooledText, path: &str, body: Value) -> (Answer, Vec<TokenRequest>) {
    let script = Arc::new(script);
    let mut model = testing::model_text();
    model.pooled = text;
    let app = App::new(Arc::new(model), script.clone(), testing::config());
    let answer = send(&app, post_bytes(path, body.to_string())).await;
    let requests = script.requests.lock().unwrap().clone();
    (answer, requests)
}

async fn plain(body: Value) -> Answer {
    embed(embedder(), PooledText::default(), EMBEDDINGS, body).await.0
}

fn vectors(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["data"].as_array().unwrap().iter().map(|one| one["embedding"].clone()).collect()
}

#[tokio::test]
async fn texts_and_ids_become_vectors_in_their_order() {
    // `BOS a b` has three tokens: (3, 4, 0) has the length 5.
    let two = json!([0.6, 0.8, 0.0]);
    for (input, expected) in [
        (json!("ab"), vec![two.clone()]),
        (json!(["ab", "ab"]), vec![two.clone(), two.clone()]),
        (json!([101, 102, 103]), vec![two.clone()]),
        (json!([[101, 102, 103], [101, 102, 103]]), vec![two.clone(), two.clone()]),
    ] {
        let answer = plain(json!({"input": input, "user": "u", "encoding_format": "float"})).await;
        assert_eq!((vectors(&answer), answer.header("x-ignored-params")), (expected, ""), "{input}");
        let body = answer.json();
        let tokens = 3 * body["data"].as_array().unwrap().len();
        assert_eq!(body["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        assert_eq!(
            (&body["object"], &body["model"], &body["data"][0]["index"]),
            (&json!("list"), &json!("test"), &json!(0))
        );
    }
}

#[tokio::test]
async fn each_input_is_one_request_of_the_call() {
    let body = json!({"input": ["ab", "c"], "priority": 3, "cache_salt": "s", "request_id": "call"});
    let (answer, requests) = embed(embedder(), PooledText::default(), EMBEDDINGS, body).await;
    assert_eq!((answer.status, answer.json()["id"].as_str()), (200, Some("embd-call")));
    let shown: Vec<_> =
        requests.iter().map(|one| (&*one.id, one.part, one.prompt.to_vec(), one.priority)).collect();
    assert_eq!(shown, [("call-0", 0, vec![0, 101, 102], 3), ("call-1", 1, vec![0, 103], 3)]);
    assert!(requests[0].call != 0 && requests.iter().all(|one| one.call == requests[0].call));
    for request in &requests {
        assert_eq!((request.operation, &*request.cache_salt, request.n), ("embeddings", "s", 1));
        assert_eq!((request.sampling.max_tokens, request.sampling.pooling), (1, Some(Pooling::default())));
    }
}

#[tokio::test]
async fn vectors_come_as_base64_cut_or_undivided() {
    let base64 = plain(json!({"input": "ab", "encoding_format": "base64"})).await;
    assert_eq!(vectors(&base64), ["mpkZP83MTD8AAAAA"]);
    let big = plain(json!({"input": "ab", "encoding_format": "base64", "endianness": "big"})).await;
    assert_eq!(vectors(&big), ["PxmZmj9MzM0AAAAA"]);
    let cut = plain(json!({"input": "ab", "dimensions": 1})).await;
    assert_eq!(vectors(&cut), [json!([1.0])]);
    for name in ["use_activation", "normalize"] {
        let raw = plain(json!({"input": "ab", name: false, "dimensions": 2})).await;
        assert_eq!(vectors(&raw), [json!([3.0, 4.0])], "{name}");
    }
    let (undivided, _) =
        embed(of_kind(false), PooledText::default(), EMBEDDINGS, json!({"input": "ab"})).await;
    assert_eq!(vectors(&undivided), [json!([3.0, 4.0, 0.0])]);
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    for (body, message) in [
        (json!({}), "input is required: a string, a list of strings"),
        (json!({"input": []}), "input must not be an empty list."),
        (json!({"input": [1.5]}), "input must be a list of integers"),
        (json!({"input": ["a", 1]}), "input must be a string"),
        (json!({"input": [[]]}), "input: entry 0 has no tokens"),
        (json!({"input": [999]}), "input: token id 999 is not in the vocabulary (0..260)."),
        (
            json!({"input": "a", "dimensions": 4}),
            "dimensions must be in [1, 3], the values that this model gives, got 4.",
        ),
        (json!({"input": "a", "dimensions": 0}), "dimensions must be in [1, 3]"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format must be `float` or `base64`."),
        (json!({"input": "a", "embed_dtype": "float16"}), "embed_dtype must be \"float32\""),
        (json!({"input": "a", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens must be -1"),
        (json!({"input": "a", "priority": 500}), "priority must be in [-100, 100], got 500."),
        (
            json!({"input": "a", "messages": [{"role": "user", "content": "a"}]}),
            "input and messages are both given",
        ),
        (json!({"input": "a", "prompt_name": "query"}), "this model has no prompt `query`; it has none."),
        (json!({"input": vec!["a"; MAX_INPUTS + 1]}), "input takes at most 2048 prompts, got 2049."),
        (json!({"input": "x".repeat(300)}), "maximum context length is 256 tokens"),
        (json!({"input": vec![5; 300]}), "maximum context length is 256 tokens"),
    ] {
        let answer = plain(body).await;
        let told = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!((answer.status, told.contains(message)), (400, true), "{message}: {told}");
    }
    let answer = plain(json!({"input": "a", "model": "other"})).await;
    assert_eq!((answer.status, answer.body.contains("`other` does not exist")), (404, true));
}

#[tokio::test]
async fn a_prompt_may_fill_the_context_and_a_longer_one_is_cut_where_the_client_asks() {
    let whole = "x".repeat(255);
    assert_eq!(plain(json!({"input": whole})).await.status, 200, "with its BOS 256 tokens");
    let tokens = async |extra: Value| {
        let mut body = json!({"input": "abcdef"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (answer, requests) = embed(embedder(), PooledText::default(), EMBEDDINGS, body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        requests[0].prompt.to_vec()
    };
    assert_eq!(tokens(json!({"truncate_prompt_tokens": 3})).await, [0, 101, 102]);
    assert_eq!(tokens(json!({"truncate_prompt_tokens": 3, "truncation_side": "left"})).await, [0, 105, 106]);
    assert_eq!(
        tokens(json!({"truncate_prompt_tokens": 3, "add_special_tokens": false})).await,
        [101, 102, 103]
    );
    assert_eq!(tokens(json!({"input": "x".repeat(1000), "truncate_prompt_tokens": -1})).await.len(), 256);
    assert_eq!(tokens(json!({"input": "x".repeat(1000), "truncate": true})).await.len(), 256);
    assert_eq!(tokens(json!({"input": vec![7; 300], "truncate": "END"})).await.len(), 256);
    let ends = tokens(json!({"input": "x".repeat(300) + "ab", "truncate": "START"})).await;
    assert_eq!(ends[254..], [101, 102]);
}

#[tokio::test]
async fn the_models_prompts_stand_before_texts() {
    let text = || PooledText::default().with_prompts(&[("query", "q:"), ("document", "d:")], Some("query"));
    let begins = async |extra: Value| {
        let mut body = json!({"input": "ab"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (_, requests) = embed(embedder(), text(), EMBEDDINGS, body).await;
        testing::model_text().tokenizer.decode(&requests[0].prompt, true).unwrap()
    };
    assert_eq!(begins(json!({})).await, "q:ab");
    assert_eq!(begins(json!({"prompt_name": "document"})).await, "d:ab");
    assert_eq!(begins(json!({"input_type": "passage"})).await, "d:ab");
    assert_eq!(begins(json!({"task": "retrieval.query"})).await, "q:ab");
    assert_eq!(begins(json!({"input": [101]})).await, "a", "ids are taken as they are");
}

#[tokio::test]
async fn a_conversation_is_one_input() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let (answer, requests) = embed(embedder(), PooledText::default(), EMBEDDINGS, body).await;
    assert_eq!((answer.status, vectors(&answer).len()), (200, 1));
    assert_eq!(requests[0].prompt[..], [&[0, 2][..], &testing::tokens("hi"), &[1]].concat());
}

#[tokio::test]
async fn the_first_failure_ends_the_call() {
    let refusal = Refusal::WorkersLost { moves: 3, reason: "gone".to_owned() };
    let script = Script { say: vec![Say::Fail(refusal)], ..embedder() };
    let open = script.open.clone();
    let (answer, requests) =
        embed(script, PooledText::default(), EMBEDDINGS, json!({"input": vec!["a"; 500]})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (500, Some("engine_error")));
    assert!(requests.len() <= 128, "{} were started", requests.len());
    assert_eq!(open.load(Ordering::SeqCst), 0, "none is left open");
    let script = Script { refuse: Some(Refusal::Draining), ..embedder() };
    let (answer, _) = embed(script, PooledText::default(), EMBEDDINGS, json!({"input": "a"})).await;
    assert_eq!(answer.status, 503);
}

#[tokio::test]
async fn all_inputs_of_a_long_call_are_answered() {
    let input: Vec<String> = (0..MAX_INPUTS).map(|at| "x".repeat(at % 7 + 1)).collect();
    let (answer, requests) =
        embed(of_kind(false), PooledText::default(), EMBEDDINGS, json!({"input": input})).await;
    assert_eq!(requests.len(), MAX_INPUTS);
    for (at, vector) in vectors(&answer).into_iter().enumerate() {
        assert_eq!(vector[0], json!((at % 7 + 2) as f64), "of input {at}");
    }
}

#[tokio::test]
async fn a_vector_of_another_width_is_an_error_of_the_server() {
    let mut script = embedder();
    script.pooled.as_mut().unwrap().1 = |_: &TokenRequest| vec![1.0];
    let (answer, _) = embed(script, PooledText::default(), EMBEDDINGS, json!({"input": "a"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (500, Some("internal_error")));
}

#[tokio::test]
async fn models_say_what_they_are_not_for() {
    let answer = post(says("x"), EMBEDDINGS, json!({"input": "a"})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("`test` generates text and gives no vectors"), "{}", answer.body);
    for (path, body) in [
        (CHAT, chat(json!({}))),
        (COMPLETIONS, json!({"prompt": "a"})),
        ("/v1/responses", json!({"input": "a"})),
        ("/api/generate", json!({"prompt": "a"})),
    ] {
        let answer = post(embedder(), path, body).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(
            answer.body.contains("`test` gives vectors of texts and generates none"),
            "{path}: {}",
            answer.body
        );
    }
    let answer = post(reranking::scorer(), EMBEDDINGS, json!({"input": "a"})).await;
    assert!(answer.body.contains("gives scores and no embeddings"), "{}", answer.body);
}

#[tokio::test]
async fn ollamas_paths_give_its_shapes() {
    let ask = async |path: &str, body: Value| embed(embedder(), PooledText::default(), path, body).await;
    let (answer, _) = ask(
        "/api/embed",
        json!({"model": "test:latest", "input": ["ab", "ab"], "options": {"num_ctx": 8},
        "keep_alive": "5m"}),
    )
    .await;
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["model"], &body["prompt_eval_count"]),
        (200, &json!("test:latest"), &json!(6))
    );
    assert_eq!(body["embeddings"], json!([[0.6, 0.8, 0.0], [0.6, 0.8, 0.0]]));
    assert!(body["total_duration"].is_u64() && body["load_duration"] == 0);
    let (cut, _) = ask("/api/embed", json!({"model": "test", "input": "ab", "dimensions": 1})).await;
    assert_eq!(cut.json()["embeddings"], json!([[1.0]]));
    let (long, requests) = ask("/api/embed", json!({"model": "test", "input": "x".repeat(999)})).await;
    assert_eq!((long.status, requests[0].prompt.len()), (200, 256), "it cuts by default");
    let (refused, _) =
        ask("/api/embed", json!({"model": "test", "input": "x".repeat(999), "truncate": false})).await;
    assert_eq!((refused.status, refused.json()["error"].is_string()), (400, true));
    let (loaded, requests) = ask("/api/embed", json!({"model": "test"})).await;
    assert_eq!((&loaded.json()["embeddings"], requests.len()), (&json!([]), 0));
    let (shown, _) = ask("/api/show", json!({"model": "test"})).await;
    assert_eq!(shown.json()["capabilities"], json!(["embedding"]));
    let (old, _) = ask("/api/embeddings", json!({"model": "test", "prompt": "ab"})).await;
    assert_eq!(old.json(), json!({"embedding": [0.6, 0.8, 0.0]}));
    let (none, _) = ask("/api/embeddings", json!({"model": "test", "prompt": ""})).await;
    assert_eq!(none.json(), json!({"embedding": []}));
}

#[tokio::test]
async fn unknown_fields_are_told() {
    assert_eq!(plain(json!({"input": "a", "zig": 1})).await.header("x-ignored-params"), "zig");
}
