//! `/v1/rerank`, `/v2/rerank`, `/v1/score` and `/classify`.

use skein_proto::pooling::{Activation, PooledKind, PooledModel, Pooling};
use skein_text::pooled_text::PooledText;

use super::*;

/// A model of one score: the logit is the number of tokens less three.
pub(super) fn scorer() -> Script {
    of(1, Activation::Logistic, &[], |request| vec![request.prompt.len() as f32 - 3.0])
}

fn of(width: u32, activation: Activation, labels: &[&str], vector: fn(&TokenRequest) -> Vec<f32>) -> Script {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    let model = PooledModel { width, kind: PooledKind::Scores(activation), labels };
    Script { pooled: Some((model, vector)), ..Script::default() }
}

async fn ask(script: Script, path: &str, body: Value) -> (Answer, Vec<TokenRequest>) {
    let script = Arc::new(script);
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let answer = send(&app, post_bytes(path, body.to_string())).await;
    let requests = script.requests.lock().unwrap().clone();
    (answer, requests)
}

fn logistic(logit: f64) -> f32 {
    (1.0 / (1.0 + (-logit).exp())) as f32
}

fn scores(results: &Value, name: &str) -> Vec<(u64, f32)> {
    let one = |result: &Value| (result["index"].as_u64().unwrap(), result[name].as_f64().unwrap() as f32);
    results.as_array().unwrap().iter().map(one).collect()
}

#[tokio::test]
async fn documents_are_sorted_by_their_scores() {
    // The test's tokenizer puts nothing around a pair: one token, and the document's.
    let body =
        json!({"model": "test", "query": "q", "documents": ["a", {"text": "abcd"}, "ab"], "request_id": "c"});
    let expected = [(1, logistic(2.0)), (2, logistic(0.0)), (0, logistic(-1.0))];
    for (path, version, shows) in
        [("/v1/rerank", "1", true), ("/rerank", "1", true), ("/v2/rerank", "2", false)]
    {
        let (answer, requests) = ask(scorer(), path, body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let object = answer.json();
        assert_eq!(scores(&object["results"], "relevance_score"), expected, "{path}");
        assert_eq!((&object["id"], &object["model"]), (&json!("rerank-c"), &json!("test")));
        assert_eq!(object["meta"]["api_version"]["version"], version);
        assert_eq!(object["usage"]["total_tokens"], 2 + 5 + 3);
        let document = object["results"][0].get("document").cloned();
        assert_eq!(document, shows.then(|| json!({"text": "abcd"})), "{path}");
        assert_eq!(requests[0].operation, "rerank");
        assert_eq!(requests[0].sampling.pooling, Some(Pooling { second_from: Some(1) }));
    }
}

#[tokio::test]
async fn the_best_few_are_returned_with_or_without_their_documents() {
    let body = |extra: Value| {
        let mut body = json!({"query": {"text": "q"}, "documents": ["a", "abc"]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let results = async |path: &str, extra: Value| {
        let (answer, _) = ask(scorer(), path, body(extra)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["results"].clone()
    };
    let one = results("/v1/rerank", json!({"top_n": 1, "return_documents": false})).await;
    assert_eq!(one, json!([{"index": 1, "relevance_score": one[0]["relevance_score"]}]));
    assert_eq!(results("/v2/rerank", json!({"return_documents": true})).await[0]["document"]["text"], "abc");
    assert_eq!(results("/v1/rerank", json!({"top_n": 0})).await.as_array().unwrap().len(), 2);
    let cut = results("/v2/rerank", json!({"max_tokens_per_doc": 1, "use_activation": false})).await;
    assert_eq!(scores(&cut, "relevance_score"), [(0, -1.0), (1, -1.0)], "logits of documents of one token");
}

#[tokio::test]
async fn long_documents_are_cut_for_reranking_and_refused_for_scores() {
    let long = "x".repeat(1000);
    let (answer, requests) = ask(scorer(), "/v1/rerank", json!({"query": "q", "documents": [long]})).await;
    assert_eq!((answer.status, requests[0].prompt.len()), (200, 256));
    assert_eq!(requests[0].prompt[..2], testing::tokens("qx"), "the shorter text is whole");
    let score = async |extra: Value| {
        let mut body = json!({"text_1": "q", "text_2": long});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask(scorer(), "/v1/score", body).await
    };
    let (refused, _) = score(json!({})).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "text_2");
    let (cut, requests) = score(json!({"truncate_prompt_tokens": 10})).await;
    assert_eq!((cut.status, requests[0].prompt.len()), (200, 10));
}

#[tokio::test]
async fn pairs_are_scored_one_with_many_or_each_with_its_own() {
    let data = async |body: Value| {
        let (answer, requests) = ask(scorer(), "/v1/score", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        (scores(&answer.json()["data"], "score"), requests.len())
    };
    let both = vec![(0, logistic(0.0)), (1, logistic(1.0))];
    assert_eq!(data(json!({"text_1": "q", "text_2": ["ab", "abc"]})).await, (both.clone(), 2));
    assert_eq!(data(json!({"text_1": ["q", "qq"], "text_2": ["ab", "ab"]})).await, (both.clone(), 2));
    assert_eq!(data(json!({"queries": "q", "documents": ["ab", "abc"]})).await, (both.clone(), 2));
    assert_eq!(data(json!({"data_1": "q", "data_2": "ab"})).await, (vec![both[0]], 1));
    let (refused, _) =
        ask(scorer(), "/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})).await;
    assert!(refused.body.contains("as many as text_2 has (3), got 2"), "{}", refused.body);
}

#[tokio::test]
async fn a_model_of_embeddings_scores_by_the_cosine() {
    let mut script = embeddings::embedder();
    // Along one axis or the other, by the last letter.
    script.pooled.as_mut().unwrap().1 = |request| match request.prompt.last() {
        Some(last) if *last == testing::tokens("z")[0] => vec![0.0, 2.0, 0.0],
        _ => vec![3.0, 0.0, 0.0],
    };
    let script = Arc::new(script);
    let mut text = testing::model_text();
    text.pooled = PooledText::default().with_prompts(&[("query", "q:"), ("document", "d:")], None);
    let app = App::new(Arc::new(text), script.clone(), testing::config());
    let body = json!({"query": "a", "documents": ["z", "b"]});
    let answer = send(&app, post_bytes("/v1/rerank", body.to_string())).await;
    assert_eq!(scores(&answer.json()["results"], "relevance_score"), [(1, 1.0), (0, 0.0)]);
    let requests = script.requests.lock().unwrap();
    let shown: Vec<String> = requests
        .iter()
        .map(|one| testing::model_text().tokenizer.decode(&one.prompt, true).unwrap())
        .collect();
    assert_eq!(shown, ["q:a", "d:z", "d:b"], "one vector of the query");
}

#[tokio::test]
async fn classes_have_labels_and_probabilities() {
    let script = || of(2, Activation::Softmax, &["no", "yes"], |_| vec![1.0, 1.0 + 3.0_f32.ln()]);
    let (answer, requests) = ask(script(), "/classify", json!({"input": ["a", "b"]})).await;
    let data = answer.json()["data"].clone();
    assert_eq!(
        (answer.status, requests.len(), &data[1]["label"], &data[1]["num_classes"]),
        (200, 2, &json!("yes"), &json!(2))
    );
    let probabilities: Vec<f64> = serde_json::from_value(data[0]["probs"].clone()).unwrap();
    assert!((probabilities[0] - 0.25).abs() < 1e-6 && (probabilities[1] - 0.75).abs() < 1e-6);
    let (raw, _) = ask(script(), "/classify", json!({"input": "a", "activation": false})).await;
    assert_eq!(raw.json()["data"][0]["probs"][0], 1.0);
    let (refused, _) = ask(script(), "/v1/rerank", json!({"query": "q", "documents": ["a"]})).await;
    assert!(refused.body.contains("2 scores of a text (`no`, `yes`)"), "{}", refused.body);
    let (refused, _) = ask(embeddings::embedder(), "/classify", json!({"input": "a"})).await;
    assert!(refused.body.contains("gives embeddings and no classes"), "{}", refused.body);
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    for (path, body, message) in [
        ("/v1/rerank", json!({"documents": ["a"]}), "query is required"),
        ("/v1/rerank", json!({"query": ["a", "b"], "documents": ["a"]}), "query must be one text, got 2."),
        ("/v1/rerank", json!({"query": "q"}), "documents is required"),
        ("/v1/rerank", json!({"query": "q", "documents": []}), "documents must not be an empty list."),
        ("/v1/rerank", json!({"query": "q", "documents": [1]}), "documents must be a string, an object"),
        (
            "/v1/rerank",
            json!({"query": "q", "documents": ["a"], "top_n": -1}),
            "top_n must be at least 0, got -1.",
        ),
        (
            "/v1/rerank",
            json!({"query": "q", "documents": ["a"], "rank_fields": ["title"]}),
            "rank_fields must be",
        ),
        (
            "/v1/rerank",
            json!({"query": "q", "documents": ["a"], "instruction": "i"}),
            "instruction is not read",
        ),
        ("/v1/score", json!({"text_1": "q"}), "text_2 is required"),
        ("/classify", json!({}), "input is required"),
    ] {
        let (answer, _) = ask(scorer(), path, body).await;
        assert_eq!((answer.status, answer.body.contains(message)), (400, true), "{message}: {}", answer.body);
    }
    let (answer, _) = ask(says("x"), "/v1/rerank", json!({"query": "q", "documents": ["a"]})).await;
    assert!(answer.body.contains("generates text and gives no vectors or scores"), "{}", answer.body);
    let (answer, _) = ask(scorer(), CHAT, chat(json!({}))).await;
    assert!(answer.body.contains("send texts to /v1/rerank"), "{}", answer.body);
}
