//! Token counts of answers: while they stream, of several choices, of reasoning.

use super::tools::app;
use super::*;

/// `usage` of each event that has one.
fn usages(answer: &Answer) -> Vec<(Value, Value)> {
    let chunk = |event: &String| serde_json::from_str::<Value>(event).ok();
    let chunks = answer.events().iter().filter_map(chunk).collect::<Vec<_>>();
    let usage = |chunk: Value| (chunk["choices"][0]["index"].clone(), chunk["usage"].clone());
    chunks.into_iter().map(usage).collect()
}

#[tokio::test]
async fn each_chunk_counts_the_tokens_of_its_own_choice() {
    let script = || {
        let ends = [finish(1, STOP), finish(0, STOP)];
        Script::of([delta(0, "ab"), delta(1, "c"), delta(0, "d"), delta(1, "ef")].into_iter().chain(ends))
    };
    let options = json!({"continuous_usage_stats": true, "include_usage": true});
    let extra = json!({"n": 2, "stream": true, "stream_options": options});
    let counts = |answer: &Answer| {
        let count = |(index, usage): (Value, Value)| {
            let [prompt, completion, total] = ["prompt_tokens", "completion_tokens", "total_tokens"]
                .map(|name| usage[name].as_u64().unwrap());
            assert_eq!(prompt + completion, total);
            (index.as_u64(), completion)
        };
        usages(answer).into_iter().map(count).collect::<Vec<_>>()
    };
    let chat_answer = post(script(), CHAT, chat(extra.clone())).await;
    let (first, second) = (Some(0), Some(1));
    let chunks = [(first, 2), (second, 1), (first, 3), (second, 3), (second, 3), (first, 3)];
    let roles = [(first, 0), (second, 0)];
    let expected: Vec<_> = roles.into_iter().chain(chunks).chain([(None, 6)]).collect();
    assert_eq!(counts(&chat_answer), expected);
    let mut body = extra;
    body["prompt"] = json!("a");
    let answer = post(script(), COMPLETIONS, body).await;
    assert_eq!(counts(&answer), expected[2..], "completions have no chunks of roles");
}

#[tokio::test]
async fn reasoning_tokens_are_those_between_the_markers() {
    // One token a byte, in deltas of any size.
    let text = "<think>Hm \u{e9}.\n</think>\n\nWell.";
    let expected = "Hm \u{e9}.\n".len();
    for cut in [1, 3, 1000] {
        for extra in [json!({}), json!({"include_reasoning": false})] {
            let answer = send(&app(text, cut).0, post_bytes(CHAT, chat(extra).to_string())).await;
            let usage = answer.json()["usage"].clone();
            assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": expected}), "{cut}");
            assert_eq!(usage["completion_tokens"], text.len());
        }
        let streamed = json!({"stream": true, "stream_options": {"continuous_usage_stats": true, "include_usage": true}});
        let answer = send(&app(text, cut).0, post_bytes(CHAT, chat(streamed).to_string())).await;
        let count =
            |(_, usage): (Value, Value)| usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
        let counts: Option<Vec<u64>> = usages(&answer).into_iter().map(count).collect();
        let counts = counts.unwrap();
        assert_eq!((counts[0], counts.last()), (0, Some(&(expected as u64))));
        assert!(counts.is_sorted(), "{counts:?}");
        let body = json!({"input": "hi"}).to_string();
        let answer = send(&app(text, cut).0, post_bytes("/v1/responses", body)).await;
        assert_eq!(answer.json()["usage"]["output_tokens_details"], json!({"reasoning_tokens": expected}));
    }
    let cut_short = "<think>Hm </th";
    let answer = send(&app(cut_short, 1).0, post_bytes(CHAT, chat(json!({})).to_string())).await;
    let details = answer.json()["usage"]["completion_tokens_details"].clone();
    assert_eq!(details["reasoning_tokens"], "Hm </th".len());
    let plain = post(says("x"), CHAT, chat(json!({}))).await.json();
    assert!(plain["usage"].get("completion_tokens_details").is_none(), "no reasoning parser: {plain}");
}
