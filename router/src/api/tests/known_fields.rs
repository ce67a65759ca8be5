//! No field of OpenAI's or vLLM's requests is dropped silently.

use super::*;

/// Fields of OpenAI's chat and completions requests, as listed in its API reference.
const OPENAI: &str = "audio best_of echo frequency_penalty function_call functions logit_bias logprobs \
    max_completion_tokens max_tokens messages metadata modalities model n parallel_tool_calls prediction \
    presence_penalty prompt prompt_cache_key prompt_cache_retention reasoning_effort response_format \
    safety_identifier seed service_tier stop store stream stream_options suffix temperature tool_choice tools \
    top_logprobs top_p user verbosity web_search_options";

/// Further fields of vLLM's `ChatCompletionRequest` and `CompletionRequest`, including those dropped in later
/// releases.
const VLLM: &str = "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template \
    chat_template_kwargs continue_final_message documents early_stopping ec_transfer_params guided_choice \
    guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern ignore_eos \
    include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logits_processors \
    logprob_token_ids media_io_kwargs min_p min_tokens mm_processor_kwargs priority prompt_embeds prompt_logprobs \
    repetition_detection repetition_penalty request_id return_mm_kwargs return_prompt_text return_token_ids \
    return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start session_id skip_special_tokens \
    spaces_between_special_tokens stop_token_ids stream_interval structural_tag structured_outputs \
    thinking_token_budget top_k truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking";

/// Fields that never change an answer, whatever their value.
const WITHOUT_EFFECT: &str = "guided_decoding_backend media_io_kwargs metadata mm_processor_kwargs \
    prompt_cache_key \
    prompt_cache_retention return_mm_kwargs safety_identifier service_tier session_id store user";

/// Fields that change no answer here and are named in the header.
const LISTED: &str = "documents kv_transfer_params return_token_offsets vllm_xargs";

fn plain(path: &str) -> Value {
    if path == CHAT { chat(json!({})) } else { json!({"prompt": "a"}) }
}

#[tokio::test]
async fn a_known_field_is_never_silently_ignored() {
    let without_effect: Vec<&str> = WITHOUT_EFFECT.split_whitespace().collect();
    for path in [CHAT, COMPLETIONS] {
        for name in OPENAI.split_whitespace().chain(VLLM.split_whitespace()) {
            // No field has this type, so the handler that reads it must refuse it.
            let mut body = plain(path);
            body[name] = json!([{"no": "such"}]);
            let answer = send(&testing::app(says("x")), post_bytes(path, body.to_string())).await;
            let is_listed = LISTED.split_whitespace().any(|listed| listed == name);
            let expected = if is_listed || without_effect.contains(&name) { 200 } else { 400 };
            let expected =
                if name == "model" || name == "messages" && path == CHAT { answer.status } else { expected };
            assert_eq!(answer.status, expected, "{path} {name}: {}", answer.body);
            let listed = if is_listed { name } else { "" };
            assert_eq!(answer.header("x-ignored-params"), listed, "{path} {name}");
            if answer.status == 400 {
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(message.contains(name), "{path} {name}: {message}");
            }
        }
    }
}

#[tokio::test]
async fn values_that_change_nothing_are_taken() {
    let neutral = json!({"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "bad_words": [],
        "use_beam_search": false, "length_penalty": 1.0, "modalities": ["text"], "reasoning_effort": "none",
        "include_reasoning": true, "suffix": "", "stream_interval": 1, "thinking_token_budget": -1, "vllm_xargs": {},
        "logprob_token_ids": null, "verbosity": "medium", "allowed_token_ids": null, "truncate_prompt_tokens": null,
        "kv_transfer_params": {}, "return_token_offsets": false, "documents": [], "return_prompt_text": false,
        "best_of": 1, "return_tokens_as_token_ids": false, "zig": 1});
    for path in [CHAT, COMPLETIONS] {
        let mut body = plain(path);
        body.as_object_mut().unwrap().extend(neutral.as_object().unwrap().clone());
        let answer = send(&testing::app(says("x")), post_bytes(path, body.to_string())).await;
        assert_eq!((answer.status, answer.header("x-ignored-params")), (200, "zig"), "{}", answer.body);
    }
}

#[tokio::test]
async fn unknown_fields_are_refused_where_the_operator_says_so() {
    let mut config = testing::config();
    config.refuse_unknown_fields = true;
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let ask = async |body: Value| send(&app, post_bytes(COMPLETIONS, body.to_string())).await;
    let message = "`zig` is not a field of this API; leave it out. `stream_options.zag` is not a field of this API; leave it out.";
    let answer = ask(json!({"prompt": "a", "zig": 1, "stream": true, "stream_options": {"zag": true}})).await;
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!(message)));
    assert_eq!(ask(json!({"prompt": "a", "user": "u"})).await.status, 200);
}

#[tokio::test]
async fn fields_of_vllm_that_have_no_effect_are_refused_where_the_operator_says_so() {
    let mut config = testing::config();
    config.refuse_unknown_fields = true;
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let fields = [
        ("vllm_xargs", json!({"a": 1})),
        ("kv_transfer_params", json!({"do_remote_decode": true})),
        ("return_token_offsets", json!(true)),
        ("documents", json!([{"title": "a", "text": "b"}])),
    ];
    for (name, value) in fields {
        let body = chat(json!({name: value}));
        let answer = send(&app, post_bytes(CHAT, body.to_string())).await;
        assert_eq!((answer.status, answer.body.contains(name)), (400, true), "{}", answer.body);
        let answer = post(says("x"), CHAT, body).await;
        assert_eq!((answer.status, answer.header("x-ignored-params")), (200, name), "{}", answer.body);
    }
}

#[tokio::test]
async fn fields_without_which_an_answer_would_be_wrong_say_what_to_do() {
    for (field, hint) in [
        (json!({"thinking_token_budget": 5}), "bound the whole answer with max_tokens"),
        (json!({"logprobs": true, "logprob_token_ids": [5]}), "request these with logprobs"),
        (json!({"repetition_detection": {"max_pattern_size": 3}}), "bound it with max_tokens"),
    ] {
        let answer = post(says("x"), CHAT, chat(field)).await;
        assert_eq!((answer.status, answer.body.contains(hint)), (400, true), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_rendered_prompt_is_shown_where_the_client_asks_for_it() {
    let ask = async |stream: bool| {
        post(says("x"), CHAT, chat(json!({"return_prompt_text": true, "n": 1, "stream": stream}))).await
    };
    let plain = post(says("x"), CHAT, chat(json!({"return_token_ids": true}))).await.json();
    assert!(plain.get("prompt_text").is_none());
    let tokens: Vec<u32> = serde_json::from_value(plain["prompt_token_ids"].clone()).unwrap();
    let text = testing::model_text().tokenizer.decode(&tokens, false).unwrap();
    assert!(text.contains("<|user|>hi"), "{text}");
    assert_eq!(ask(false).await.json()["prompt_text"], text);
    let events = ask(true).await.events();
    let shown = |event: &String| serde_json::from_str::<Value>(event).ok()?.get("prompt_text").cloned();
    assert_eq!(events.iter().filter_map(shown).collect::<Vec<_>>(), [json!(text)], "only the first chunk");
}

#[tokio::test]
async fn documents_reach_a_template_that_reads_them() {
    const TEMPLATE: &str = "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}\
        {% for m in messages %}{{ m.content }}{% endfor %}";
    let text = Arc::new(testing::model_text_with(&Value::Null, Some(TEMPLATE)));
    let script = Arc::new(says("x"));
    let app = App::new(text.clone(), script.clone(), testing::config());
    let ask = async |documents: Value| {
        send(&app, post_bytes(CHAT, chat(json!({"documents": documents})).to_string())).await
    };
    let answer = ask(json!([{"title": "a", "text": "b"}])).await;
    assert_eq!((answer.status, answer.header("x-ignored-params")), (200, ""), "{}", answer.body);
    let prompt = script.requests.lock().unwrap()[0].prompt.to_vec();
    assert_eq!(text.tokenizer.decode(&prompt, true).unwrap(), "[a: b]hi");
    for wrong in [json!({"title": "a"}), json!(["a"]), json!([{"title": 1}])] {
        let answer = ask(wrong).await;
        assert_eq!((answer.status, answer.body.contains("a list of objects of text")), (400, true));
    }
}

#[tokio::test]
async fn a_long_prompt_is_cut_where_the_client_asks_for_it() {
    let prompt = async |path: &str, extra: Value| {
        let mut body = plain(path);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (requests, answer) = asked(path, &body, "trace").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        (requests[0].prompt.to_vec(), answer)
    };
    let (tokens, answer) =
        prompt(COMPLETIONS, json!({"prompt": "abcd", "truncate_prompt_tokens": 3, "echo": true})).await;
    assert_eq!(tokens, [0, 103, 104], "BOS and the end");
    assert_eq!(answer.json()["choices"][0]["text"], "cdx", "what is left is echoed");
    let long = json!({"prompt": "a".repeat(1000), "truncate_prompt_tokens": -1, "max_tokens": 6,
        "truncation_side": "right"});
    assert_eq!(prompt(COMPLETIONS, long).await.0.len(), 250);
    assert_eq!(prompt(CHAT, json!({"truncate_prompt_tokens": 2})).await.0.len(), 2);
}

#[tokio::test]
async fn tokens_of_logprobs_may_be_named_by_id() {
    let extra = json!({"logprobs": 1, "return_tokens_as_token_ids": true, "prompt": "a"});
    let logprobs = post(says("x"), COMPLETIONS, extra).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"], json!(["token_id:124"]));
    assert!(logprobs["top_logprobs"][0].get("token_id:124").is_some(), "{logprobs}");
    let extra = json!({"logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": true});
    let logprobs = post(says("x"), CHAT, chat(extra)).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["content"][0]["token"], "token_id:124");
    assert_eq!(logprobs["content"][0]["top_logprobs"][0]["token"], "token_id:124");
    assert_eq!(logprobs["content"][0]["bytes"], json!([120]), "its bytes stay");
}

#[tokio::test]
async fn many_prompts_of_many_samples_each_are_bounded_together() {
    let ask = async |prompts: usize, n: u32| {
        post(says("x"), COMPLETIONS, json!({"prompt": vec!["a"; prompts], "n": n})).await
    };
    let message = "prompts times n must be at most 2048, got 2176; send fewer prompts.";
    check_error(ask(17, 128).await, 400, &invalid("n", message)).await;
}

#[tokio::test]
async fn without_max_tokens_an_answer_may_fill_the_context() {
    for (path, prompt) in [(COMPLETIONS, 2), (CHAT, 6)] {
        let (requests, _) = asked(path, &plain(path), "trace").await;
        assert_eq!(requests[0].sampling.max_tokens, testing::MAX_MODEL_LEN - prompt);
    }
}

/// Fields of OpenAI's and vLLM's requests for embeddings, of Cohere's and Jina's for reranking, and of vLLM's
/// for scores and classes.
const POOLED: [(&str, &str); 4] = [
    (
        "/v1/embeddings",
        "add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs \
         continue_final_message dimensions embed_dtype embedding_types encoding_format endianness input input_type \
         late_chunking media_io_kwargs messages mm_processor_kwargs model normalize padding priority prompt_name \
         request_id task truncate truncate_prompt_tokens truncation_side use_activation user",
    ),
    (
        "/v1/rerank",
        "cache_salt documents instruction max_chunks_per_doc max_tokens_per_doc mm_processor_kwargs model priority query \
         rank_fields request_id return_documents top_n truncate_prompt_tokens truncation_side use_activation user",
    ),
    (
        "/v1/score",
        "activation cache_salt data_1 data_2 documents items mm_processor_kwargs model priority queries request_id text_1 \
         text_2 truncate_prompt_tokens truncation_side use_activation user",
    ),
    (
        "/classify",
        "activation add_special_tokens cache_salt input messages mm_processor_kwargs model priority request_id \
         truncate_prompt_tokens truncation_side use_activation user",
    ),
];

#[tokio::test]
async fn a_known_field_of_requests_for_vectors_and_scores_is_never_silently_ignored() {
    for (path, names) in POOLED {
        for name in names.split_whitespace() {
            let (script, mut body) = match path {
                "/v1/embeddings" => (embeddings::embedder(), json!({"input": "a"})),
                "/classify" => (reranking::scorer(), json!({"input": "a"})),
                "/v1/rerank" => (reranking::scorer(), json!({"query": "q", "documents": ["a"]})),
                _ => (reranking::scorer(), json!({"text_1": "q", "text_2": "a"})),
            };
            // No field has this type, so the handler that reads it must refuse it.
            body[name] = json!([{"no": "such"}]);
            let answer = send_odd(&testing::app(script), post_bytes(path, body.to_string())).await;
            let is_without_effect = ["user", "mm_processor_kwargs"].contains(&name);
            let is_listed = answer.header("x-ignored-params") == name;
            let is_refused = answer.status == 400 && answer.body.contains(name);
            let is_read_as_another =
                path == "/v1/score" && answer.status == 400 && answer.body.contains("text_");
            assert!(
                is_refused || is_read_as_another || answer.status == 200 && (is_listed || is_without_effect),
                "{path} {name}: {} {}",
                answer.status,
                answer.body
            );
        }
    }
}
