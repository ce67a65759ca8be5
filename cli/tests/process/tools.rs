//! Tools tried offline: with the shipped model, whose calls a grammar writes, and with a model of random
//! weights whose context takes an agent's prompt.

use serde_json::{Value, json};
use skein_bench::models::{Dtype, ModelShape, RandomWeights, SHAPES, make_model};
use skein_tests::process::{Cluster, shipped_model};

use crate::{SKEIN, block_on};

/// The command of the quick start.
const AS_IN_THE_QUICK_START: [&str; 2] =
    ["--no-structured-outputs-whitespace", "--no-structured-outputs-additional-properties"];

async fn chat(cluster: &Cluster, body: &Value) -> Value {
    let request = reqwest::Client::new().post(format!("{}/v1/chat/completions", cluster.url)).json(body);
    request.send().await.expect("the server answers").json().await.expect("JSON")
}

fn weather() -> Value {
    let parameters = json!({"type": "object", "required": ["city", "days"], "properties": {
        "city": {"enum": ["Lima", "Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}}});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
}

#[test]
fn the_shipped_model_calls_a_tool_when_it_must_and_reads_the_result() {
    block_on(async {
        let cluster =
            Cluster::serve(SKEIN, &[&["--workers", "1"][..], &AS_IN_THE_QUICK_START].concat()).await;
        let question = json!({"role": "user", "content": "What is the weather in Oslo?"});
        let body = json!({"messages": [question], "tools": weather(), "tool_choice": "required",
            "parallel_tool_calls": false, "temperature": 0, "max_tokens": 100});
        let answer = chat(&cluster, &body).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let message = &answer["choices"][0]["message"];
        let call = &message["tool_calls"][0];
        assert_eq!(call["function"]["name"], "weather");
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("text")).expect("JSON");
        assert!(["Lima", "Oslo", "Rome"].iter().any(|city| arguments["city"] == *city), "{arguments}");
        assert!((1..=7).contains(&arguments["days"].as_u64().expect("a number")), "{arguments}");
        assert_eq!(arguments.as_object().map(serde_json::Map::len), Some(2), "{arguments}");

        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "Sunny, 21 degrees"});
        let body = json!({"messages": [question, message, result], "tools": weather(), "temperature": 0, "max_tokens": 20});
        let told = chat(&cluster, &body).await;
        assert!(told["choices"][0]["message"]["content"].is_string(), "{told}");
        let shown = told["usage"]["prompt_tokens"].as_u64().expect("a number");
        assert!(
            shown > answer["usage"]["prompt_tokens"].as_u64().expect("a number"),
            "it reads call and result"
        );
    });
}

#[test]
fn a_made_model_with_a_longer_context_takes_an_agents_prompt() {
    let directory = tempfile::tempdir().expect("a directory");
    let model = directory.path().join("agent");
    let shape = ModelShape { max_position_embeddings: 131_072, ..SHAPES[0] };
    let random = RandomWeights { dtype: Dtype::Bf16, seed: 1, has_outliers: false };
    make_model(&shape, random, &shipped_model(), &model, |_| {}).expect("it is made");
    block_on(async {
        let model = model.display().to_string();
        let arguments = [&model[..], "--device", "cpu", "--workers", "1"];
        let cluster = Cluster::serve(SKEIN, &[&arguments[..], &AS_IN_THE_QUICK_START].concat()).await;
        let instructions = "def read(path): return open(path).read()\n".repeat(1700);
        let messages =
            json!([{"role": "system", "content": instructions}, {"role": "user", "content": "Go"}]);
        let body = json!({"messages": messages, "tools": weather(), "tool_choice": "required",
            "parallel_tool_calls": false, "temperature": 0, "max_tokens": 100});
        let answer = chat(&cluster, &body).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
        assert!((20_000..131_072).contains(&tokens), "{tokens}");
    });
}
