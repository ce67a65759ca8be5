//! Log-probabilities and echoed prompts.

use super::*;

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let body = json!({"prompt": "aé", "max_tokens": 1, "echo": true, "logprobs": 1});
    let answer = post(says("x"), COMPLETIONS, body).await.json();
    assert_eq!(answer["choices"][0]["text"], "aéx");
    let expected = json!({
        "tokens": ["<|bos|>", "a", "bytes:\\xc3", "bytes:\\xa9", "x"],
        "token_logprobs": [null, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [null, {"a": -0.5}, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.5}, {"x": -0.5}],
        "text_offset": [0, 0, 1, 1, 2],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expected);
}

#[tokio::test]
async fn text_offsets_of_an_echo_stay_within_its_text() {
    let offsets = async |prompt: Value, skip: bool| {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 0, "skip_special_tokens": skip});
        let choice = post(says("x"), COMPLETIONS, body).await.json()["choices"][0].take();
        (choice["text"].as_str().unwrap().to_owned(), choice["logprobs"]["text_offset"].clone())
    };
    // The echo is the client's text, without the added BOS but with control tokens that the text spells out.
    for skip in [true, false] {
        assert_eq!(offsets(json!("ab"), skip).await, ("abx".to_owned(), json!([0, 0, 1, 2])));
        let spelt = ("a<|end|>x".to_owned(), json!([0, 0, 1, 8]));
        assert_eq!(offsets(json!("a<|end|>"), skip).await, spelt);
    }
    assert_eq!(offsets(json!([101, 1, 102]), true).await, ("abx".to_owned(), json!([0, 1, 1, 2])));
    let shown = ("a<|end|>bx".to_owned(), json!([0, 1, 8, 9]));
    assert_eq!(offsets(json!([101, 1, 102]), false).await, shown);
    let broken = ("\u{FFFD}x".to_owned(), json!([0, 0, 1]));
    assert_eq!(offsets(json!([0, 4 + 0xF0]), true).await, broken);
}

#[tokio::test]
async fn echo_streams_the_prompt_first() {
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 0, "stream": true});
    let answer = post(says("x"), COMPLETIONS, body).await;
    let first: Value = serde_json::from_str(&answer.events()[0]).unwrap();
    assert_eq!(first["choices"][0]["text"], "abx");
    assert_eq!(first["choices"][0]["logprobs"]["tokens"], json!(["<|bos|>", "a", "b", "x"]));
}

#[tokio::test]
async fn max_tokens_zero_with_echo_only_scores() {
    let body = json!({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 1});
    let script = Script::of([delta(0, "x"), finish(0, FinishReason::Length)]);
    let answer = post(script, COMPLETIONS, body).await.json();
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["<|bos|>", "a", "b"]));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn chat_logprobs_carry_bytes() {
    let answer = post(says("é"), CHAT, chat(json!({"logprobs": true, "top_logprobs": 1}))).await.json();
    let top = json!([{"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3]}]);
    let expected = json!({"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": top});
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0], expected);
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_shape() {
    let answer = post(says("x"), CHAT, chat(json!({"prompt_logprobs": 0}))).await.json();
    assert_eq!(answer["prompt_logprobs"][0], Value::Null);
    let expected = json!({"2": {"logprob": -0.5, "rank": 1, "decoded_token": "<|user|>"}});
    assert_eq!(answer["prompt_logprobs"][1], expected);
}
